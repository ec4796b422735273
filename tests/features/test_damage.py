"""Single bytes of a store changed: what is read is what was written, or the shard is named and moved aside."""

import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.features.finish import DamagedShardError
from eagle3lab.features.store import FeatureStore
from eagle3lab.features.verify import set_damaged_aside
from eagle3lab.workbench.files import read_json, write_json_atomic
from tests.features.rows import make_row, write_rows
from tests.features.test_store import assert_row

ROWS = 12


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "store"
    write_rows(folder, ROWS, 100)
    assert len(list(folder.glob("shard-*"))) > 1
    return folder


def read_all(folder):
    store = FeatureStore(folder)
    for row in store.rows():
        assert_row(row, int(row.id[4:]))
        assert row.split == make_row(int(row.id[4:]))[5] and row.set == make_row(int(row.id[4:]))[6]
    return store.ids


def damaged_copy(whole, file, byte, value):
    """A copy of the store with one byte of a file set; None where it has that value already."""
    folder = whole.with_name("damaged")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(folder.with_name("damaged-quarantine"), ignore_errors=True)
    shutil.copytree(whole, folder)
    path = sorted(folder.glob(file))[0]
    data = bytearray(path.read_bytes())
    place = byte % header_end(data) if file.startswith("shard") else byte % len(data)
    if data[place] == value:
        return None
    data[place] = value
    path.write_bytes(data)
    return folder


def header_end(data):
    return 8 + int.from_bytes(data[:8], "little")


def check_damaged(folder):
    """Every row is as it was written (False), or a shard is named, and only its rows are captured again (True)."""
    try:
        assert len(read_all(folder)) == ROWS
        return False
    except DamagedShardError as error:
        assert "shard-00-" in str(error) and "run the extraction again" in str(error)
    added = []
    write_rows(folder, ROWS, 100, added.append)
    assert 0 < len(added) < ROWS
    assert sorted(read_all(folder)) == sorted(f"row-{number}" for number in range(ROWS))
    return True


@pytest.mark.parametrize("file", ["shard-*", "index-*"])
def test_any_byte_of_a_shards_header_and_of_the_index(whole, file):
    @given(st.integers(0, 10**6), st.integers(0, 255))
    @settings(max_examples=120, deadline=None)
    def change(byte, value):
        if folder := damaged_copy(whole, file, byte, value):
            assert check_damaged(folder)

    change()


@pytest.mark.parametrize("place, value", [(5, 1), (7, 0xFF), (0, 0), (4, 2)])
def test_a_header_of_gigabytes_is_not_read(whole, place, value):
    folder = damaged_copy(whole, "shard-*", place, value)
    (found,) = set_damaged_aside(folder)
    assert "a header of " in str(found) and found.row_ids
    added = []
    write_rows(folder, ROWS, 100, added.append)
    assert [f"row-{number}" for number in added] == found.row_ids
    read_all(folder)


def test_a_store_written_before_headers_and_index_had_checksums_is_read_and_never_ends_in_a_raw_error(whole):
    @given(st.integers(0, 10**6), st.integers(0, 255), st.sampled_from(["shard-*", "index-*"]))
    @settings(max_examples=120, deadline=None)
    def change(byte, value, file):
        if folder := damaged_copy(whole, file, byte, value):
            for name in ("store.json", "part-00.json"):
                manifest = read_json(folder / name)
                for entry in manifest["shards"]:
                    del entry["header_crc32"], entry["index_crc32"]
                write_json_atomic(folder / name, manifest)
            try:
                list(FeatureStore(folder).rows())
            except ValueError as error:  # FeatureStoreError; a loss span that cannot be
                assert "shard-00-" in str(error) or "loss span" in str(error)

    change()
    assert len(read_all(whole)) == ROWS
