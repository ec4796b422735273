"""Several writers of one folder: parts, their union, and when the store is finished."""

import pytest
import torch

from eagle3lab.features.layout import FeatureStoreError, quarantine_folder
from eagle3lab.features.store import FeatureStore, FeatureWriter, finish_store
from tests.features.rows import AUX_LAYERS, FINGERPRINT, HIDDEN, make_row, write_rows


def writer_of(folder, part, shard_tokens=100, **changes):
    return FeatureWriter(folder, FINGERPRINT, AUX_LAYERS, HIDDEN, shard_tokens, part=part, **changes)


def test_the_store_is_the_union_of_the_parts(tmp_path):
    for part in ("2", "0", "1"):
        write_rows(tmp_path, 30, 100, part=part, step=3)
    with pytest.raises(FeatureStoreError, match="no finished feature store"):
        FeatureStore(tmp_path)
    info = finish_store(tmp_path)
    store = FeatureStore(tmp_path, FINGERPRINT)
    assert store.ids == [f"row-{n}" for part in range(3) for n in range(part, 30, 3)]
    assert info["rows"] == 30 and info["duplicates"] == 0
    assert info["tokens"] == sum(len(make_row(n)[1]) for n in range(30))
    for number in range(30):
        assert torch.equal(store.row(f"row-{number}").aux_TAH, make_row(number)[3].bfloat16())


def test_a_writer_knows_the_rows_of_all_parts(tmp_path):
    first = writer_of(tmp_path, "a")
    for number in range(6):
        first.add(*make_row(number))
    first.flush()
    second = writer_of(tmp_path, "b")
    assert second.done_ids == {f"row-{n}" for n in range(6)}
    with pytest.raises(ValueError, match="'row-3' is in .* already"):
        second.add(*make_row(3))


def test_a_row_in_two_parts_counts_once_and_the_first_part_wins(tmp_path):
    first, second = writer_of(tmp_path, "a"), writer_of(tmp_path, "b")
    for writer, numbers, change in ((second, (4, 3, 2), 1.0), (first, (2, 3), 0.0)):
        for number in numbers:
            row_id, ids, spans, aux, *rest = make_row(number)
            writer.add(row_id, ids, spans, aux + change, *rest)
        writer.close()
    info = finish_store(tmp_path)
    store = FeatureStore(tmp_path)
    assert (info["rows"], info["duplicates"]) == (3, 2)
    assert store.ids == ["row-2", "row-3", "row-4"] and len(list(store.rows())) == 3
    assert info["tokens"] == sum(len(make_row(n)[1]) for n in (2, 3, 4))
    for number, change in ((2, 0.0), (3, 0.0), (4, 1.0)):
        assert torch.equal(store.row(f"row-{number}").aux_TAH, (make_row(number)[3] + change).bfloat16())


def test_an_unclosed_part_needs_the_list_of_rows(tmp_path):
    first, second = writer_of(tmp_path, "a"), writer_of(tmp_path, "b", shard_tokens=10**6)
    first.add(*make_row(0))
    second.add(*make_row(1))
    first.close()
    with pytest.raises(FeatureStoreError, match="part b was not closed"):
        finish_store(tmp_path)
    with pytest.raises(FeatureStoreError, match="lacks 1 of the expected rows .*'row-1'"):
        finish_store(tmp_path, ["row-0", "row-1"])
    second.flush()
    assert finish_store(tmp_path, ["row-0", "row-1"])["rows"] == 2
    assert FeatureStore(tmp_path).ids == ["row-0", "row-1"]


def test_a_damaged_shard_is_no_loss_where_another_part_holds_its_rows(tmp_path):
    first, second = writer_of(tmp_path, "a"), writer_of(tmp_path, "b")
    for writer in (first, second):
        writer.add(*make_row(1))
        writer.close()
    (tmp_path / "shard-a-00000.safetensors").write_bytes(b"cut")
    assert finish_store(tmp_path, ["row-1"])["duplicates"] == 0
    assert (quarantine_folder(tmp_path) / "shard-a-00000.safetensors").exists()
    assert FeatureStore(tmp_path).index("row-1")["shard"] == "shard-b-00000.safetensors"


def test_an_only_writer_goes_on_where_several_were_cut_off(tmp_path):
    cut = writer_of(tmp_path, "server1")
    for number in range(5):
        cut.add(*make_row(number))
    cut.flush()
    info = write_rows(tmp_path, 9, 100)
    assert info["rows"] == 9 and info["duplicates"] == 0 and len(FeatureStore(tmp_path)) == 9


def test_opening_a_part_takes_the_store_back(tmp_path):
    write_rows(tmp_path, 5, 100)
    writer = writer_of(tmp_path, "more")
    with pytest.raises(FeatureStoreError, match="no finished feature store"):
        FeatureStore(tmp_path)
    writer.add(*make_row(7))
    writer.close()
    assert finish_store(tmp_path)["rows"] == 6


def test_parts_of_different_things_are_refused(tmp_path):
    writer_of(tmp_path, "a").close()
    with pytest.raises(FeatureStoreError, match="codec: the store has 'bf16', expected 'float32'"):
        writer_of(tmp_path, "b", codec="float32")
    with pytest.raises(FeatureStoreError, match="target: the store has 'abc', expected 'other'"):
        FeatureWriter(tmp_path, {**FINGERPRINT, "target": "other"}, AUX_LAYERS, HIDDEN, part="b")
    assert {path.name for path in tmp_path.glob("part-*")} == {"part-a.json"}


def test_a_folder_without_parts_is_not_finished(tmp_path):
    with pytest.raises(FeatureStoreError, match="holds no part"):
        finish_store(tmp_path)


@pytest.mark.parametrize("part", ["", "a-b", "../x", "a.b"])
def test_part_names_that_cannot_be_file_names_are_refused(tmp_path, part):
    with pytest.raises(ValueError, match="part="):
        writer_of(tmp_path, part)
    assert list(tmp_path.iterdir()) == []


def test_a_store_of_the_first_format_is_refused(tmp_path):
    (tmp_path / "store.json").write_text('{"complete": true, "shards": []}')
    with pytest.raises(FeatureStoreError, match="has format 1, this version reads 2"):
        FeatureStore(tmp_path)
    with pytest.raises(FeatureStoreError, match="has format 1, this version reads 2"):
        writer_of(tmp_path, "a")
