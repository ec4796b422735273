"""Disks that are too small: refused before the start, or stopped at cleanly."""

import errno
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from eagle3lab.features import store as store_module
from eagle3lab.features.estimate import StoreEstimate, estimate_extraction
from eagle3lab.features.layout import DiskFullError, FeatureStoreError
from eagle3lab.features.store import FeatureStore, FeatureWriter
from tests.features.rows import AUX_LAYERS, FINGERPRINT, HIDDEN, make_row, write_rows

ROOT = Path(__file__).parents[2]


def assert_whole(folder, count):
    store = FeatureStore(folder)
    assert sorted(store.ids) == sorted(f"row-{n}" for n in range(count))
    for row in store.rows():
        assert torch.equal(row.aux_TAH, make_row(int(row.id[4:]))[3].bfloat16())


@pytest.mark.parametrize("at", ["shard", "index", "part"])
def test_a_full_disk_stops_cleanly_and_the_run_goes_on_later(tmp_path, monkeypatch, at):
    """The third write of a shard, of its index rows or of the part's JSON fails half-way."""
    calls = 0

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    if at == "shard":
        write = store_module.write_blocks

        def failing(path, blocks):
            nonlocal calls
            calls += 1
            if calls == 3:
                path.write_bytes(b"half a sh")
                full()
            write(path, blocks)

        monkeypatch.setattr(store_module, "write_blocks", failing)
    elif at == "index":

        @contextmanager
        def failing_open(path, mode):
            nonlocal calls
            calls += 1
            with open(path, mode) as file:
                if calls < 3:
                    yield file
                else:
                    file.write(b'{"id": "half a li')
                    file.flush()
                    full()

        monkeypatch.setattr(store_module, "open", failing_open, raising=False)
    else:
        save = store_module.write_json_atomic

        def failing_json(path, obj):
            if len(obj["shards"]) == 3:
                full()
            save(path, obj)

        monkeypatch.setattr(store_module, "write_json_atomic", failing_json)
    with pytest.raises(DiskFullError, match=r"MB to write for \d+ rows, .* MB free.*run the extraction again"):
        write_rows(tmp_path, 20, 60)
    monkeypatch.undo()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"part-00.json", "index-00.jsonl", ".part-00.lock"} | {
        f"shard-00-0000{n}.safetensors" for n in (0, 1)
    }
    with pytest.raises(FeatureStoreError, match="no finished feature store"):
        FeatureStore(tmp_path)
    added = []
    write_rows(tmp_path, 20, 60, added.append)
    assert 0 < len(added) < 20
    assert_whole(tmp_path, 20)


def test_the_same_writer_may_try_again_when_there_is_room(tmp_path, monkeypatch):
    writer = FeatureWriter(tmp_path, FINGERPRINT, AUX_LAYERS, HIDDEN)
    for number in range(5):
        writer.add(*make_row(number))

    def full(*_):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(store_module, "write_blocks", full)
    with pytest.raises(DiskFullError):
        writer.flush()
    monkeypatch.undo()
    writer.close()
    assert_whole(tmp_path, 5)


def test_other_errors_of_the_file_system_are_left_as_they_are(tmp_path, monkeypatch):
    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    writer = FeatureWriter(tmp_path, FINGERPRINT, AUX_LAYERS, HIDDEN)
    writer.add(*make_row(1))
    monkeypatch.setattr(store_module, "write_blocks", broken)
    with pytest.raises(OSError, match="Input/output error"):
        writer.flush()


def test_a_file_size_limit_stops_a_real_write(tmp_path):
    """The kernel itself refuses the write: a process that may write files of 20,000 bytes at most."""
    script = (
        "import resource, signal, sys; from tests.features.rows import write_rows;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000));"
        "write_rows(sys.argv[1], 40, 300)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 1 and "File too large" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"part-00.json", "index-00.jsonl", ".part-00.lock"}
    write_rows(tmp_path, 40, 300)
    assert_whole(tmp_path, 40)


def corpus(count):
    rows = []
    for number in range(count):
        row_id, ids, spans, *_ = make_row(number)
        rows.append({"id": row_id, "input_ids": ids.tolist(), "loss_spans": spans})
    return rows


def capture(pairs):
    for row_id, _ in pairs:
        _, _, _, aux, last, *_ = make_row(int(row_id[4:]))
        yield SimpleNamespace(id=row_id, aux_TAH=aux, last_TH=last)


@pytest.mark.parametrize("codec", ["bf16", "fp8+top4"])
def test_the_estimate_is_what_the_store_takes(tmp_path, codec):
    head = torch.randn(60, HIDDEN) if "top" in codec else None
    rows = corpus(200)
    estimate = estimate_extraction(tmp_path / "store", rows, capture, AUX_LAYERS, HIDDEN, codec, head)
    assert list(tmp_path.iterdir()) == []
    writer = FeatureWriter(tmp_path / "store", FINGERPRINT, AUX_LAYERS, HIDDEN, codec=codec, head_VH=head)
    for states, row in zip(capture((row["id"], None) for row in rows), rows, strict=True):
        writer.add(row["id"], row["input_ids"], row["loss_spans"], states.aux_TAH, states.last_TH)
    info = writer.close()
    taken = sum(path.stat().st_size for path in (tmp_path / "store").iterdir())
    assert (estimate.rows, estimate.tokens) == (200, info["tokens"])
    assert estimate.bytes == pytest.approx(taken, rel=0.1) and estimate.bytes > info["bytes"]
    assert estimate.hours == pytest.approx(estimate.tokens / estimate.tokens_per_second / 3600)


def test_a_disk_that_is_too_small_is_refused_with_the_numbers(tmp_path, monkeypatch):
    estimate = StoreEstimate(10, 1000, 2_000_000_000, 0.5, 100.0)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2_050_000_000))
    with pytest.raises(DiskFullError, match=r"2.10 GB are needed for 1,000 tokens .*2.05 GB are free"):
        estimate.require_disk(tmp_path)
    estimate.require_disk(tmp_path / "not" / "made" / "yet", spare=0.02)
    assert str(estimate) == "10 rows, 1,000 tokens: 2.00 GB, 0.50 h at 100 tokens/s"


def test_nothing_to_capture_takes_nothing(tmp_path):
    estimate = estimate_extraction(tmp_path / "store", [], capture, AUX_LAYERS, HIDDEN)
    assert (estimate.rows, estimate.bytes, estimate.hours) == (0, 0, 0.0)
