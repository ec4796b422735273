"""Which rows are trained, and windows of long rows: every (slot, step) once, whatever the length."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.draft.batch import MASKS, make_batch
from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.rows import heldout_rows, training_rows, windows
from tests.draft import reference
from tests.draft.samples import make_draft, make_row
from tests.draft.test_ttt import package_loss


class Store:
    """The part of a FeatureStore that choosing rows needs: ids and index lines."""

    def __init__(self, entries):
        self.entries = {f"r{i}": entry for i, entry in enumerate(entries)}
        self.ids = list(self.entries)

    def index(self, row_id):
        n, spans, split = self.entries[row_id]
        return {"id": row_id, "n": n, "loss_spans": spans, "split": split}


def test_rows_are_counted_by_hand():
    store = Store([
        (10, [[3, 10]], "train"),
        (10, [], "train"),  # all masked
        (10, [[9, 10]], "train"),  # one generated token: nothing to predict after it
        (30, [[4, 30]], "train"),
        (30, [[1, 5]], "train"),  # its later windows have nothing to train
        (12, [[4, 12]], "heldout"),
    ])  # fmt: skip
    recipe = Recipe(ttt_steps=3, max_length=12)
    rows = training_rows(store, "train", recipe)
    # a window owns 12 - 4 = 8 slots: 0..12, 8..20, 16..28, 24..30
    expected = {"r0": 10, "r3[0:12]": 12, "r3[8:20]": 12, "r3[16:28]": 12, "r3[24:30]": 6, "r4[0:12]": 12}
    assert rows.lengths == expected
    assert rows.counts == {"rows": 5, "whole": 1, "cut": 2, "windows": 5, "too_long": 0, "untrained": 2}
    assert rows.row_of("r3[8:20]") == "r3" and rows.row_of("r0") == "r0"
    assert rows.row_ids == ["r0", "r3", "r4"]
    assert rows.subset(["r0", "r4"]).lengths == {"r0": 10, "r4[0:12]": 12}
    dropped = training_rows(store, "train", dataclasses.replace(recipe, long_rows="drop"))
    assert dropped.lengths == {"r0": 10} and dropped.counts["too_long"] == 2
    whole = training_rows(store, "train", dataclasses.replace(recipe, max_length=None))
    assert whole.lengths == {"r0": 10, "r3": 30, "r4": 30} and not whole.pieces


def test_nothing_to_train_says_why():
    store = Store([(10, [], "train"), (40, [[2, 40]], "train")])
    recipe = Recipe(max_length=20, long_rows="drop")
    with pytest.raises(ValueError, match="of 2 rows 1 have an empty loss mask and 1 are longer than max_length=20"):
        training_rows(store, "train", recipe)
    with pytest.raises(ValueError, match="'heldout'.* of 0 rows"):
        training_rows(store, "heldout", recipe)


def test_heldout_rows_are_spread_and_long_enough():
    spans = [[[2, 9]], [[2, 4]], [[2, 5]], [[3, 9]], [[4, 9]], [[2, 9]]]
    store = Store([(9, span, "heldout") for span in spans] + [(9, [[2, 9]], "train")])
    assert heldout_rows(store) == ["r0", "r2", "r3", "r4", "r5"]
    assert heldout_rows(store, limit=2) == ["r0", "r3"]
    assert heldout_rows(Store([])) == []


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.booleans(), min_size=3, max_size=70),
    st.integers(1, 5),
    st.integers(0, 20),
    st.sampled_from(MASKS),
)
def test_windows_train_every_slot_and_step_of_a_row_once(mask, ttt_steps, extra, kind):
    """The pairs that the windows' batches train, moved back to the row, are those of the definition."""
    n, recipe = len(mask), Recipe(ttt_steps=ttt_steps, loss_mask_kind=kind, max_length=ttt_steps + 2 + extra)
    spans, start = [], None
    for t, flag in enumerate([*mask, False]):
        if flag and start is None:
            start = t
        elif not flag and start is not None:
            spans.append([start, t])
            start = None
    row = make_row(1, n, spans)
    # a pair needs a stored teacher too: the token after position t + 1 + i was generated
    expected = {
        (t, i) for t in range(n) for i in range(ttt_steps) if reference.trained(mask, t, i, kind, n) and mask[t + 2 + i]
    }
    store = Store([(n, spans, "train")])
    if not expected:
        with pytest.raises(ValueError, match="no row"):
            training_rows(store, "train", recipe)
        return
    rows = training_rows(store, "train", recipe)
    read, found = rows.reader({"r0": row}.__getitem__), []
    for piece_id, length in rows.lengths.items():
        assert length <= recipe.max_length
        start = rows.pieces[piece_id].start if piece_id in rows.pieces else 0
        batch = make_batch([read(piece_id)], ttt_steps, kind)
        for i, n_ in (batch.weight_KN > 0).nonzero().tolist():
            t = start + int(batch.position_S[batch.anchor_N[n_]])
            found.append((t, i))
            assert int(batch.label_ids_KN[i, n_]) == int(row.input_ids_T[t + 2 + i])
            teacher = batch.last_PH[batch.teacher_KN[i, n_]]
            assert torch.equal(teacher, row.last_MH[row.last_slots.tolist().index(t + 1 + i)])
    assert sorted(found) == sorted(expected)


def test_a_window_equals_the_row_cut_there(head):
    """A window is trained as a row of its own that begins at its first token."""
    row = make_row(5, 20, [(2, 20)])
    recipe = Recipe(ttt_steps=2, max_length=11, lk_weight=0.2)
    [first, second, last] = windows("r0", 20, 11, 2)
    assert [(p.start, p.end, p.own) for p in (first, second, last)] == [(0, 11, 8), (8, 19, 8), (16, 20, 4)]
    rows = training_rows(Store([(20, [[2, 20]], "train")]), "train", recipe)
    window = rows.reader({"r0": row}.__getitem__)("r0[16:20]")
    inside = row.last_slots >= 16
    alone = SimpleNamespace(
        input_ids_T=row.input_ids_T[16:],
        loss_mask_T=row.loss_mask_T[16:],
        aux_TAH=row.aux_TAH[16:],
        last_slots=row.last_slots[inside] - 16,
        last_MH=row.last_MH[inside],
    )
    draft = make_draft()
    assert torch.equal(package_loss(draft, [window], recipe, head), package_loss(draft, [alone], recipe, head))
