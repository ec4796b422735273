"""What a writer of a store does not take: rows that would be stored as something else, and folders of others."""

import errno

import pytest
import torch

from eagle3lab.features import finish, layout
from eagle3lab.features import store as store_module
from eagle3lab.features.checks import NonFiniteStateError
from eagle3lab.features.layout import DiskFullError, FeatureStoreError
from eagle3lab.features.live import write_plan
from eagle3lab.features.store import FeatureStore, FeatureWriter
from tests.features.rows import AUX_LAYERS, FINGERPRINT, HIDDEN, make_row, write_rows
from tests.features.test_store import assert_row


def writer_of(folder, **changes):
    return FeatureWriter(folder, FINGERPRINT, changes.pop("aux_layers", AUX_LAYERS), HIDDEN, **changes)


GOOD = dict(zip(("row_id", "input_ids", "loss_spans", "aux_TAH", "last_TH", "split", "set"), make_row(3), strict=True))
T = len(GOOD["input_ids"])
REFUSED = {  # changes of a good row -> a word of the error
    "a batch of one": ({"input_ids": GOOD["input_ids"][None]}, "one dimension"),
    "float ids": ({"input_ids": GOOD["input_ids"] + 0.7}, "whole numbers"),
    "bool ids": ({"input_ids": GOOD["input_ids"] > 9}, "whole numbers"),
    "ids of more than 32 bits": ({"input_ids": GOOD["input_ids"] + 2**40}, "none of a model"),
    "negative ids": ({"input_ids": [-1] * T}, "none of a model"),
    "whole states": ({"aux_TAH": torch.ones(T, 3, HIDDEN, dtype=torch.int32)}, "torch.int32"),
    "bool states": ({"last_TH": torch.ones(T, HIDDEN, dtype=torch.bool)}, "torch.bool"),
    "eight bits": ({"aux_TAH": GOOD["aux_TAH"].to(torch.float8_e4m3fn)}, "float8_e4m3fn"),
    "no id": ({"row_id": None}, "texts"),
    "a number for an id": ({"row_id": 7}, "texts"),
    "no split": ({"split": None}, "texts"),
}


@pytest.mark.parametrize("changes, word", REFUSED.values(), ids=REFUSED)
def test_a_row_that_would_be_stored_as_another_is_refused_and_the_others_are_kept(tmp_path, changes, word):
    writer = writer_of(tmp_path)
    writer.add(*make_row(1))
    bad = GOOD | changes
    with pytest.raises(ValueError, match=f"row {bad['row_id']!r}.*{word}"):
        writer.add(**bad)
    writer.add(*make_row(2))
    writer.close()
    store = FeatureStore(tmp_path)
    assert store.ids == ["row-1", "row-2"]
    for row in store.rows():
        assert_row(row, int(row.id[4:]))


@pytest.mark.parametrize("aux_layers", [[], [2, 2, 5], [-1, 2, 3]])
def test_layers_that_cannot_be_are_refused(tmp_path, aux_layers):
    with pytest.raises(ValueError, match="different layers"):
        writer_of(tmp_path / "store", aux_layers=aux_layers)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("head", ["nan", "overflow"])
def test_a_top_k_teacher_that_is_not_finite_is_refused_by_row(tmp_path, head):
    head_VH = torch.randn(50, HIDDEN)
    if head == "nan":
        head_VH[7, 3] = float("nan")
    else:
        head_VH = (head_VH * 3e4).half()  # logits beyond 65,504
    writer = writer_of(tmp_path, codec="bf16+top4", head_VH=head_VH)
    with pytest.raises(NonFiniteStateError, match=f"row 'row-3': the teacher's logits.*{head_VH.dtype}"):
        writer.add(**GOOD)
    assert writer.done_ids == set()


def plan_rows():
    return [{"id": "a", "input_ids": [1, 2, 3], "loss_spans": [[1, 3]], "split": "train", "set": ""}]


def test_a_plan_and_a_store_do_not_replace_each_other(tmp_path):
    write_rows(tmp_path / "store", 6, 100)
    with pytest.raises(FeatureStoreError, match="store holds .*, no plan"):
        write_plan(tmp_path / "store", plan_rows(), FINGERPRINT, AUX_LAYERS, HIDDEN, "bf16", "float32")
    assert len(FeatureStore(tmp_path / "store")) == 6
    for _ in range(2):  # a plan may replace a plan
        write_plan(tmp_path / "plan", plan_rows(), FINGERPRINT, AUX_LAYERS, HIDDEN, "bf16", "float32")
    with pytest.raises(FeatureStoreError, match="plan of a training without a store"):
        writer_of(tmp_path / "plan")
    assert {path.name for path in (tmp_path / "plan").iterdir()} == {"live.json", "rows.jsonl"}


def test_of_two_writers_of_a_part_in_one_process_the_newer_goes_on(tmp_path):
    older = writer_of(tmp_path)
    older.add(*make_row(1))
    newer = writer_of(tmp_path)  # a cell that failed and is run again
    newer.add(*make_row(2))
    for stop in (older.flush, older.close):
        with pytest.raises(FeatureStoreError, match="another writer of this process has taken over part '00'"):
            stop()
    newer.add(*make_row(1))
    newer.close()
    assert sorted(FeatureStore(tmp_path).ids) == ["row-1", "row-2"]


@pytest.mark.parametrize("at", ["opening", "closing", "finishing"])
def test_a_disk_that_is_full_at_the_ends_is_told_as_such(tmp_path, monkeypatch, at):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    writer = None if at == "opening" else writer_of(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(DiskFullError, match=f"the disk of {tmp_path} is full"):
        if at == "opening":
            patch.setattr(store_module, "write_index", full)
            writer_of(tmp_path)
        writer.add(*make_row(1))
        writer.flush()
        patch.setattr(store_module if at == "closing" else finish, "write_json_atomic", full)
        writer.close()
    again = writer_of(tmp_path)
    if "row-1" not in again.done_ids:
        again.add(*make_row(1))
    again.close()
    assert_row(FeatureStore(tmp_path).row("row-1"), 1)


def test_an_index_reads_the_same_whoever_wrote_it(tmp_path):
    """Its lines are written row by row and, after a resume, anew: their checksum must not change."""
    write_rows(tmp_path, 12, 100)
    before = (tmp_path / "index-00.jsonl").read_bytes()
    index, _ = layout.read_index(tmp_path, "00", layout.read_parts(tmp_path)["00"]["shards"])
    layout.write_index(tmp_path, "00", index.rows())
    assert (tmp_path / "index-00.jsonl").read_bytes() == before
