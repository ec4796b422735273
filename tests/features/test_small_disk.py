"""A file system of a few hundred kilobytes: the kernel itself says that there is no room, wherever that comes."""

import shutil
import subprocess
from contextlib import contextmanager

import pytest
import torch

from eagle3lab.features.estimate import StoreEstimate, estimate_by_sample
from eagle3lab.features.layout import STORE, DiskFullError, read_parts
from eagle3lab.features.store import FeatureStore, FeatureWriter, finish_store
from eagle3lab.features.verify import set_damaged_aside
from eagle3lab.workbench.files import read_json
from tests.features.rows import AUX_LAYERS, FINGERPRINT, HIDDEN, make_row, write_rows
from tests.features.test_disk import assert_whole, capture_into, corpus

COUNT, SHARD_TOKENS, PAGE = 120, 150, 4096  # tmpfs gives out whole pages


class SmallDisk:
    """A tmpfs. Sizes are bytes."""

    def __init__(self, folder):
        self.folder = folder

    def resize(self, size):
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self.folder)], check=True)

    def used(self):
        return shutil.disk_usage(self.folder).used


@contextmanager
def mounted(folder, size):
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no `mount` here")
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def disk(tmp_path):
    with mounted(tmp_path / "disk", 300 * 1024) as disk:
        yield disk


def stored_rows(folder):
    """Ids of the rows that count. No file stands beside those that count, and each row reads as it was written."""
    parts = read_parts(folder)
    listed = {entry["name"] for manifest in parts.values() for entry in manifest["shards"]}
    assert {path.name for path in folder.iterdir()} - {".part-00.lock"} == listed | {"part-00.json", "index-00.jsonl"}
    assert set_damaged_aside(folder) == []
    writable = folder.parent.parent / "copy"  # a full disk has no room for what makes a store readable
    shutil.copytree(folder, writable)
    index = [line.split('"')[3] for line in (folder / "index-00.jsonl").read_text().splitlines()]
    if index:
        finish_store(writable, index)
        store = FeatureStore(writable)
        assert sorted(store.ids) == sorted(index)
        for row in store.rows():
            assert torch.equal(row.aux_TAH, make_row(int(row.id[4:]))[3].bfloat16())
    shutil.rmtree(writable)
    return set(index)


def test_a_disk_that_fills_up_again_and_again_loses_no_row(disk):
    """Room grows by a page at a time, so that shards, index, the part's JSON and the store's each run out of it."""
    folder, size, told, kept = disk.folder / "store", 48 * 1024, [], set()
    disk.resize(size)
    while True:
        try:
            write_rows(folder, COUNT, SHARD_TOKENS)
            break
        except DiskFullError as error:
            told.append(str(error))
        now = stored_rows(folder)
        assert kept <= now, "rows that were durable are gone"
        kept, size = now, size + PAGE
        disk.resize(size)
    assert len(told) > 20 and 0 < len(kept)
    assert any("to write for" in text for text in told) and any("run it again" in text for text in told)
    assert_whole(folder, COUNT)


def test_a_disk_without_a_free_byte_leaves_the_store_as_it_is(disk):
    folder = disk.folder / "store"
    with pytest.raises(DiskFullError, match=r"MB to write for \d+ rows, 0.0 MB free"):
        write_rows(folder, 1000, SHARD_TOKENS)
    kept = stored_rows(folder)
    assert 40 < len(kept) < 200
    with pytest.raises(OSError, match="No space left"):
        (disk.folder / "others").write_bytes(bytes(400 * 1024))
    assert shutil.disk_usage(disk.folder).free == 0
    with pytest.raises(DiskFullError, match=r"is full \(0.0 MB free\)"):
        write_rows(folder, 1000, SHARD_TOKENS)
    assert stored_rows(folder) == kept
    (disk.folder / "others").unlink()
    disk.resize(400 * 1024)
    added = []
    write_rows(folder, COUNT, SHARD_TOKENS, added.append)
    assert sorted(f"row-{n}" for n in added) == sorted({f"row-{n}" for n in range(COUNT)} - kept)
    assert_whole(folder, COUNT)


def test_the_estimate_refuses_a_real_disk_and_fits_one_of_its_size(disk):
    rows, folder = corpus(300), disk.folder / "store"
    writer = FeatureWriter(folder, FINGERPRINT, AUX_LAYERS, HIDDEN)
    estimate = estimate_by_sample(folder, rows, capture_into(writer), "bf16", len(AUX_LAYERS), HIDDEN)
    with pytest.raises(DiskFullError, match=r"0.00 GB are free; use another disk"):
        estimate.require_disk(folder)
    needed = round(estimate.bytes * 1.05)
    disk.resize(disk.used() + needed - PAGE)
    with pytest.raises(DiskFullError):
        estimate.require_disk(folder / "not" / "made" / "yet")
    disk.resize(disk.used() + needed + PAGE)
    estimate.require_disk(folder)
    capture_into(writer)([row for row in rows if row.id not in writer.done_ids])
    writer.close()
    assert read_json(folder / STORE)["rows"] == 300


def test_what_is_free_is_what_the_file_system_says(disk):
    StoreEstimate(1, 1, 280_000, 0.0, 1.0).require_disk(disk.folder)  # 294,000 of 307,200
    (disk.folder / "others").write_bytes(bytes(4 * PAGE))
    with pytest.raises(DiskFullError):
        StoreEstimate(1, 1, 280_000, 0.0, 1.0).require_disk(disk.folder)
