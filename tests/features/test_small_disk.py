"""A file system of a few hundred kilobytes: the kernel itself says that there is no room, wherever that comes."""

import shutil
from functools import partial

import pytest
import torch

from eagle3lab.features.estimate import StoreEstimate, estimate_by_sample
from eagle3lab.features.layout import STORE, DiskFullError, read_parts
from eagle3lab.features.store import FeatureStore, FeatureWriter, finish_store
from eagle3lab.features.verify import set_damaged_aside
from eagle3lab.workbench.files import read_json
from tests.features.rows import AUX_LAYERS, FINGERPRINT, HIDDEN, make_row, write_rows
from tests.features.test_disk import assert_whole, capture_into, corpus
from tests.small_disk import mounted

COUNT, SHARD_TOKENS, PAGE = 120, 150, 4096  # tmpfs gives out whole pages


@pytest.fixture
def disk(tmp_path):
    with mounted(tmp_path / "disk", 300 * 1024) as disk:
        yield disk


def stored_rows(folder):
    """Ids of the rows that count. No file stands beside those that count, and each row reads as it was written."""
    listed = [entry["name"] for manifest in read_parts(folder).values() for entry in manifest["shards"]]
    others = {"part-00.json", "index-00.jsonl", ".part-00.lock", STORE}
    assert sorted(path.name for path in folder.iterdir() if path.name not in others) == sorted(listed)
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


def test_one_writer_goes_on_whenever_a_page_of_room_is_made(disk):
    folder, size, full = disk.folder / "store", 48 * 1024, 0
    disk.resize(size)
    writer = FeatureWriter(folder, FINGERPRINT, AUX_LAYERS, HIDDEN, SHARD_TOKENS)
    for number in range(COUNT):
        step = partial(writer.add, *make_row(number))
        while True:
            try:
                step()
                break
            except DiskFullError:
                full, size, step = full + 1, size + PAGE, writer.flush  # the row is taken, and waits for its shard
                stored_rows(folder)
                disk.resize(size)
    disk.resize(size + 10 * PAGE)
    writer.close()
    assert full > 20 and len(stored_rows(folder)) == COUNT
    assert_whole(folder, COUNT)


def test_parts_on_a_full_disk_become_a_store_when_there_is_room(disk):
    folder = disk.folder / "store"
    write_rows(folder, 20, SHARD_TOKENS, part="0")
    with pytest.raises(OSError, match="No space left"):
        (disk.folder / "others").write_bytes(bytes(400 * 1024))
    with pytest.raises(DiskFullError, match=r"is full \(0.0 MB free\).*run it again"):
        finish_store(folder)
    assert not (folder / STORE).exists()
    (disk.folder / "others").unlink()
    finish_store(folder)
    assert_whole(folder, 20)


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
