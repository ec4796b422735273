"""Whatever writers did, left undone or had cut off: going on gives every row once, as if nothing had happened."""

import tempfile
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.features.store import FeatureStore, FeatureWriter
from tests.features.rows import AUX_LAYERS, FINGERPRINT, HIDDEN, SOLE_FILES, make_row, write_rows

COUNT = 8
WRITERS = st.tuples(
    st.sampled_from([None, "a", "b"]),  # part
    st.lists(st.integers(0, COUNT - 1), max_size=6),  # rows it is given
    st.integers(1, 60),  # tokens of a shard
    st.sampled_from(["closed", "flushed", "left"]),
)
DAMAGE = st.sampled_from(["none", "index tail", "half a shard", "lost shard", "store.json", "temporary"])


def leave(folder, part, numbers, shard_tokens, end):
    writer = FeatureWriter(folder, FINGERPRINT, AUX_LAYERS, HIDDEN, shard_tokens, part=part)
    for number in numbers:
        if f"row-{number}" not in writer.done_ids:
            writer.add(*make_row(number))
    if end == "closed":
        writer.close()
    elif end == "flushed":
        writer.flush()


def damage(folder: Path, kind: str) -> None:
    shards = sorted(folder.glob("shard-*"))
    if kind == "index tail":
        for index in folder.glob("index-*"):
            index.write_bytes(index.read_bytes()[:-3])
    elif kind == "half a shard" and shards:
        shards[-1].write_bytes(shards[-1].read_bytes()[:50])
    elif kind == "lost shard" and shards:
        shards[0].unlink()
    elif kind == "store.json":
        (folder / "store.json").unlink(missing_ok=True)
    elif kind == "temporary":
        (folder / ".shard-00-00007.99-ab.tmp.safetensors").write_bytes(b"half")


@given(st.lists(st.tuples(WRITERS, DAMAGE), max_size=4))
@settings(max_examples=40, deadline=None)
def test_any_history_ends_in_the_same_rows(history):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "store"  # a folder beside it may hold damaged shards
        folder.mkdir()
        for writer, kind in history:
            leave(folder, *writer)
            damage(folder, kind)
        added = []
        info = write_rows(folder, COUNT, 40, added.append)
        assert len(set(added)) == len(added) and info["rows"] == COUNT
        store = FeatureStore(folder, FINGERPRINT)
        assert sorted(store.ids) == [f"row-{n}" for n in range(COUNT)]
        for row in store.rows():
            _, ids, _, aux, last, *_ = make_row(int(row.id[4:]))
            assert torch.equal(row.input_ids_T, ids) and torch.equal(row.aux_TAH, aux.bfloat16())
            assert torch.equal(row.last_MH, last.bfloat16()[row.last_slots])
        listed = {entry["name"] for entry in info["shards"]}
        assert {path.name for path in folder.glob("shard-*")} >= listed
        own = {path.name for path in folder.iterdir() if "-a" not in path.name and "-b" not in path.name}
        assert own == SOLE_FILES | {shard for shard in listed if shard.startswith("shard-00")}


@given(st.lists(st.lists(st.integers(0, COUNT - 1), unique=True, max_size=COUNT), min_size=1, max_size=3))
@settings(max_examples=20, deadline=None)
def test_writers_at_once_that_do_not_know_of_each_other(rows_of):
    """All are open before any has written: each may store what another stores too."""
    with tempfile.TemporaryDirectory() as name:
        writers = [FeatureWriter(name, FINGERPRINT, AUX_LAYERS, HIDDEN, 30, part=str(k)) for k in range(len(rows_of))]
        for writer, numbers in zip(writers, rows_of, strict=True):
            for number in numbers:
                writer.add(*make_row(number))
        for writer in reversed(writers):
            writer.close()
        info = write_rows(name, 0, 30)  # adds nothing, and finishes
        distinct = {number for numbers in rows_of for number in numbers}
        assert info["rows"] == len(distinct)
        assert info["duplicates"] == sum(map(len, rows_of)) - len(distinct)
        assert {row.id for row in FeatureStore(name).rows()} == {f"row-{n}" for n in distinct}
