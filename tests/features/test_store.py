import json
import re
import tempfile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.features.checks import NonFiniteStateError
from eagle3lab.features.finish import DamagedShardError
from eagle3lab.features.layout import FeatureStoreError, quarantine_folder
from eagle3lab.features.store import FeatureStore, FeatureWriter, finish_store
from eagle3lab.workbench.files import read_jsonl
from tests.features.rows import AUX_LAYERS, FINGERPRINT, HIDDEN, SOLE_FILES, make_row, write_rows


def assert_row(row, number):
    row_id, ids, spans, aux, last, split, set_name = make_row(number)
    assert (row.id, row.split, row.set) == (row_id, split, set_name)
    assert row.input_ids_T.dtype == torch.int64 and torch.equal(row.input_ids_T, ids)
    mask = torch.zeros(len(ids), dtype=torch.bool)
    mask[spans[0][0] : spans[0][1]] = True
    assert torch.equal(row.loss_mask_T, mask)
    assert torch.equal(row.aux_TAH, aux.bfloat16())
    assert row.last_slots.tolist() == [t for t in range(len(ids) - 1) if mask[t + 1]]
    assert torch.equal(row.last_MH, last.bfloat16()[row.last_slots])


@given(
    st.lists(
        st.tuples(st.integers(1, 12), st.lists(st.booleans(), min_size=12, max_size=12)),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 30),
    st.integers(1, 3),
)
@settings(max_examples=25, deadline=None)
def test_what_is_written_is_read_back(rows, shard_tokens, layers):
    with tempfile.TemporaryDirectory() as folder:
        writer = FeatureWriter(folder, {"x": 1}, list(range(layers)), 4, shard_tokens)
        written = {}
        for number, (T, bits) in enumerate(rows):
            spans = [[t, t + 1] for t in range(T) if bits[t]]
            aux, last = torch.randn(T, layers, 4).bfloat16(), torch.randn(T, 4).bfloat16()
            written[f"é{number}"] = (list(range(T)), bits[:T], aux, last)
            writer.add(f"é{number}", list(range(T)), spans, aux, last)
        info = writer.close()
        store = FeatureStore(folder, {"x": 1})
        assert store.ids == list(written) and len(store) == len(rows) == info["rows"]
        for row in store.rows():
            ids, bits, aux, last = written[row.id]
            assert row.input_ids_T.tolist() == ids and row.loss_mask_T.tolist() == bits
            assert torch.equal(row.aux_TAH, aux) and torch.equal(row.last_MH, last[row.last_slots])
        assert info["tokens"] == sum(T for T, _ in rows)
        assert sum(entry["tokens"] >= shard_tokens for entry in info["shards"]) >= len(info["shards"]) - 1


def test_rows_by_subset_and_order(tmp_path):
    write_rows(tmp_path, 20, shard_tokens=100)
    store = FeatureStore(tmp_path)
    assert [row.id for row in store.rows()] == [f"row-{n}" for n in range(20)]
    assert [row.id for row in store.rows(["row-7", "row-3"])] == ["row-7", "row-3"]
    shuffled = [row.id for row in store.rows(order=1)]
    assert shuffled != store.ids and sorted(shuffled) == sorted(store.ids)
    assert shuffled == [row.id for row in store.rows(order=1)]
    for number in (0, 5, 19):
        assert_row(store.row(f"row-{number}"), number)
    with pytest.raises(KeyError, match="row-99"):
        store.row("row-99")


def test_stored_bytes_are_those_of_the_format(tmp_path):
    info = write_rows(tmp_path, 20, shard_tokens=100)
    payload = info["tokens"] * (3 * HIDDEN * 2 + 4) + info["teacher_slots"] * HIDDEN * 2
    headers = info["bytes"] - payload
    assert 0 < headers < 400 * len(info["shards"])
    assert json.loads((tmp_path / "store.json").read_text()) == info


def test_resume_skips_what_is_done_and_gives_the_same_files(tmp_path):
    whole = write_rows(tmp_path / "whole", 30, 100)
    writer = FeatureWriter(tmp_path / "cut", FINGERPRINT, AUX_LAYERS, HIDDEN, 100)
    for number in range(17):
        writer.add(*make_row(number))
    del writer  # never closed
    with pytest.raises(FeatureStoreError, match="no finished feature store"):
        FeatureStore(tmp_path / "cut")
    again = FeatureWriter(tmp_path / "cut", FINGERPRINT, AUX_LAYERS, HIDDEN, 100)
    assert 0 < len(again.done_ids) < 17
    assert write_rows(tmp_path / "cut", 30, 100) == whole
    assert len(FeatureStore(tmp_path / "cut")) == 30
    assert write_rows(tmp_path / "cut", 30, 100) == whole  # a finished store may be opened again


def test_a_finished_store_can_grow(tmp_path):
    write_rows(tmp_path, 5, 100)
    write_rows(tmp_path, 9, 100)
    for number, row in enumerate(FeatureStore(tmp_path).rows()):
        assert_row(row, number)


@pytest.mark.parametrize("damage", ["index tail", "index line", "stray shard", "no store.json", "no part"])
def test_leftovers_of_a_cut_are_cleared(tmp_path, damage):
    write_rows(tmp_path, 20, 100)
    index, shards = tmp_path / "index-00.jsonl", sorted(tmp_path.glob("shard-*"))
    if damage == "index tail":
        index.write_bytes(index.read_bytes()[:-5])
    elif damage == "index line":
        index.write_text("".join(index.read_text().splitlines(keepends=True)[:-1]))
    elif damage == "stray shard":
        (tmp_path / "shard-00-00099.safetensors").write_bytes(shards[0].read_bytes())
        (tmp_path / ".shard-00-00100.1-ab.tmp.safetensors").write_bytes(b"half")
        (tmp_path / ".part-00.1-ab.tmp.json").write_bytes(b"half")
    else:
        (tmp_path / {"no store.json": "store.json", "no part": "part-00.json"}[damage]).unlink()
    if damage in ("index tail", "index line"):
        with pytest.raises(DamagedShardError, match="the index does not hold all its rows"):
            FeatureStore(tmp_path)
    write_rows(tmp_path, 20, 100)
    store = FeatureStore(tmp_path)
    assert sorted(store.ids) == sorted(f"row-{n}" for n in range(20))
    for row in store.rows():
        assert_row(row, int(row.id[4:]))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {*SOLE_FILES, *(entry["name"] for entry in store.info["shards"])}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_states_are_refused_by_row_and_layer(tmp_path, bad):
    writer = FeatureWriter(tmp_path, FINGERPRINT, AUX_LAYERS, HIDDEN)
    row = list(make_row(3))
    row[3][1, 1, 0] = bad
    with pytest.raises(NonFiniteStateError, match=r"'row-3'.*hs\[4\].*1 of"):
        writer.add(*row)
    row = list(make_row(4))
    row[4][0, 0] = bad
    with pytest.raises(NonFiniteStateError, match="'row-4'.*last hidden state"):
        writer.add(*row)
    assert not writer.done_ids


def test_float32_values_too_large_for_bfloat16_are_refused(tmp_path):
    writer = FeatureWriter(tmp_path, FINGERPRINT, AUX_LAYERS, HIDDEN)
    row = list(make_row(3))
    row[3][0, 0, 0] = torch.finfo(torch.float32).max  # rounds to infinity in bfloat16
    with pytest.raises(NonFiniteStateError, match=r"'row-3'.*hs\[2\]"):
        writer.add(*row)


def test_wrong_shapes_spans_and_repeated_ids_are_refused(tmp_path):
    writer = FeatureWriter(tmp_path, FINGERPRINT, AUX_LAYERS, HIDDEN)
    row = make_row(1)
    with pytest.raises(ValueError, match="'row-1' has .* tokens, aux states"):
        writer.add(row[0], row[1], row[2], row[3][:, :2], row[4])
    with pytest.raises(ValueError, match="'row-1' has .* last states"):
        writer.add(row[0], row[1], row[2], row[3], row[4][1:])
    with pytest.raises(ValueError, match="'row-1': loss span"):
        writer.add(row[0], row[1], [[0, 999]], row[3], row[4])
    writer.add(*row)
    with pytest.raises(ValueError, match="'row-1' is in .* already"):
        writer.add(*row)


@pytest.mark.parametrize("damage", ["flipped byte", "cut short", "missing"])
def test_a_damaged_shard_is_named_moved_aside_and_captured_again(tmp_path, damage):
    write_rows(tmp_path, 20, 100)
    shard = sorted(tmp_path.glob("shard-*"))[1]
    inside = [row["id"] for row in read_jsonl(tmp_path / "index-00.jsonl") if row["shard"] == shard.name]
    data = bytearray(shard.read_bytes())
    data[-3] ^= 1
    if damage == "flipped byte":
        shard.write_bytes(data)
        store = FeatureStore(tmp_path)
        assert_row(store.row("row-0"), 0)  # the first shard is whole
        with pytest.raises(DamagedShardError, match=f"{shard.name} .*checksum of row '{inside[-1]}' differs") as error:
            list(store.rows())
    else:
        shard.unlink()
        if damage == "cut short":
            shard.write_bytes(data[:-1])
        with pytest.raises(DamagedShardError, match=f"{shard.name} .*missing, or of another size") as error:
            FeatureStore(tmp_path)
    assert error.value.row_ids == inside and f"only the {len(inside)} rows" in str(error.value)
    assert (quarantine_folder(tmp_path) / shard.name).exists() == (damage != "missing") and not shard.exists()
    with pytest.raises(FeatureStoreError, match="no finished feature store"):
        FeatureStore(tmp_path)
    added = []
    write_rows(tmp_path, 20, 100, added.append)
    assert [f"row-{number}" for number in added] == inside
    for row in FeatureStore(tmp_path).rows():
        assert_row(row, int(row.id[4:]))


def test_a_store_with_damage_is_not_finished(tmp_path):
    write_rows(tmp_path, 20, 100)
    sorted(tmp_path.glob("shard-*"))[1].unlink()
    with pytest.raises(DamagedShardError, match="shard-00-00001"):
        finish_store(tmp_path)
    with pytest.raises(FeatureStoreError, match="part 00 was not closed"):
        finish_store(tmp_path)


def test_a_wrong_fingerprint_is_refused_field_by_field(tmp_path):
    write_rows(tmp_path, 3, 100)
    FeatureStore(tmp_path, FINGERPRINT)
    other = {"target": "xyz", "template": "t1", "codec2": None}
    with pytest.raises(FeatureStoreError) as error:
        FeatureStore(tmp_path, other)
    text = str(error.value)
    assert "target: the store has 'abc', expected 'xyz'" in text
    assert "corpus: the store has {'rows': 40}, expected '(nothing)'" in text
    assert "codec2: the store has '(nothing)', expected None" in text and "template" not in text
    with pytest.raises(FeatureStoreError, match="target: the store has 'abc', expected 'new'"):
        FeatureWriter(tmp_path, {**FINGERPRINT, "target": "new"}, AUX_LAYERS, HIDDEN)
    with pytest.raises(FeatureStoreError, match=re.escape("aux_layers: the store has [2, 4, 5], expected [1, 4, 5]")):
        FeatureWriter(tmp_path, FINGERPRINT, [1, 4, 5], HIDDEN)
    assert len(FeatureStore(tmp_path)) == 3  # the refused writers left it alone


def test_fingerprints_may_hold_tuples(tmp_path):
    FeatureWriter(tmp_path, {"layers": (1, 2)}, AUX_LAYERS, HIDDEN).close()
    FeatureWriter(tmp_path, {"layers": (1, 2)}, AUX_LAYERS, HIDDEN).close()
    assert len(FeatureStore(tmp_path, {"layers": (1, 2)})) == 0
