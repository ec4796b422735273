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

from eagle3lab.features import estimate as estimate_module
from eagle3lab.features import store as store_module
from eagle3lab.features.estimate import SAMPLE_ROWS, StoreEstimate, estimate_by_sample
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
        rows.append(SimpleNamespace(id=row_id, input_ids=ids.tolist(), loss_spans=spans))
    return rows


def capture_into(writer, seen=None):
    """A capture that makes rows durable, as `estimate_by_sample` wants it."""

    def capture(rows):
        for row in rows:
            _, _, _, aux, last, *_ = make_row(int(row.id[4:]))
            writer.add(row.id, row.input_ids, row.loss_spans, aux, last)
        writer.flush()
        if seen is not None:
            seen.append([row.id for row in rows])

    return capture


@pytest.mark.parametrize("codec", ["bf16", "fp8+top4"])
def test_the_estimate_is_what_the_rest_of_the_store_takes(tmp_path, codec):
    head = torch.randn(60, HIDDEN) if "top" in codec else None
    rows, seen = corpus(200), []
    writer = FeatureWriter(tmp_path, FINGERPRINT, AUX_LAYERS, HIDDEN, codec=codec, head_VH=head)
    capture = capture_into(writer, seen)
    estimate = estimate_by_sample(tmp_path, rows, capture, codec, 3, HIDDEN, 60)
    sample = [row_id for part in seen for row_id in part]
    assert [len(part) for part in seen] == [1, SAMPLE_ROWS - 1] and writer.done_ids == set(sample)
    before = sum(path.stat().st_size for path in tmp_path.iterdir())
    rest = [row for row in rows if row.id not in writer.done_ids]
    capture(rest)
    taken = sum(path.stat().st_size for path in tmp_path.iterdir()) - before
    assert (estimate.rows, estimate.tokens) == (len(rest), sum(len(row.input_ids) for row in rest))
    # bytes of a row in small shards: a sample of 16 has two headers of its own, which weigh more there
    assert taken * 0.9 < estimate.bytes < taken * 1.25
    assert estimate.hours == pytest.approx(estimate.tokens / estimate.tokens_per_second / 3600)
    assert len(FeatureStore(tmp_path) if writer.close() else ()) == 200  # the sample's rows stayed


def test_hours_go_by_tokens_and_the_first_pass_is_left_out(tmp_path, monkeypatch):
    """160 rows: those of the sample, every tenth, have 5 tokens, the others 5 to 33. A token takes 0.25 s, the first
    pass 100 s more, a shard 2 s. By rows the rest would take a fourth of what it takes by tokens."""
    now, lengths = 0.0, [5 if n % 10 == 0 else 5 + n * 7 % 35 for n in range(160)]
    rows = [SimpleNamespace(id=str(n), input_ids=[1] * length, loss_spans=[]) for n, length in enumerate(lengths)]
    monkeypatch.setattr(estimate_module, "time", SimpleNamespace(perf_counter=lambda: now))

    def capture(some):
        nonlocal now
        now += sum(len(row.input_ids) for row in some) * 0.25 + 2 + 100 * (now == 0)

    estimate = estimate_by_sample(tmp_path, rows, capture, "bf16", 3, HIDDEN)
    rest = sum(length for n, length in enumerate(lengths) if n % 10)
    assert (estimate.rows, estimate.tokens) == (144, rest) and rest > 3.9 * 5 * 144
    assert estimate.hours * 3600 == pytest.approx(rest * (0.25 + 2 / 75))  # 15 rows of 5 tokens in the sample's shard
    assert estimate.tokens_per_second == pytest.approx(75 / (75 * 0.25 + 2))


def test_the_sample_is_spread_over_the_rows(tmp_path):
    seen, rows = [], corpus(165)
    writer = FeatureWriter(tmp_path, FINGERPRINT, AUX_LAYERS, HIDDEN)
    estimate_by_sample(tmp_path, rows, capture_into(writer, seen), "bf16", 3, HIDDEN)
    assert [row_id for part in seen for row_id in part] == [f"row-{n}" for n in range(0, 160, 10)]
    with pytest.raises(ValueError, match="no rows to estimate from"):
        estimate_by_sample(tmp_path, [], capture_into(writer), "bf16", 3, HIDDEN)


def test_a_disk_that_is_too_small_is_refused_with_the_numbers(tmp_path, monkeypatch):
    estimate = StoreEstimate(10, 1000, 2_000_000_000, 0.5, 100.0)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2_050_000_000))
    with pytest.raises(DiskFullError, match=r"2.10 GB are needed for 1,000 tokens .*2.05 GB are free"):
        estimate.require_disk(tmp_path)
    estimate.require_disk(tmp_path / "not" / "made" / "yet", spare=0.02)
    assert str(estimate) == "10 rows, 1,000 tokens: 2 GB, 30 min at 100 tokens/s"
    assert str(StoreEstimate(1, 90, 4_560_000, 0.01, 2.5)) == "1 rows, 90 tokens: 0.00456 GB, 36 s at 2 tokens/s"
    assert "12.5 h" in str(StoreEstimate(1, 90, 10, 12.5, 2.0))
