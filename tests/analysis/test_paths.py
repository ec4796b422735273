"""States and logits by different ways are the same, and are seen to differ where a fault is planted."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from eagle3lab.analysis.heldout import capture_answers
from eagle3lab.analysis.paths import (
    decoding_logits,
    logit_parity,
    nearest_layers,
    state_errors,
    training_logits,
    ways_agree,
)
from eagle3lab.draft.checkpoint import export_draft, load_draft
from eagle3lab.engines.embedded import EmbeddedEngine
from tests.analysis.overfit import STEPS


def rows_of(overfit, layers):
    engine = EmbeddedEngine(overfit.folder, aux_layers=layers, end_ids=())
    return sorted(capture_answers(engine, overfit.answers, 512), key=lambda row: int(row.id[1:]))


def test_training_code_decoding_code_and_checkpoint_agree(overfit, tmp_path):
    folder = export_draft(overfit.draft, tmp_path / "draft", {}, dtype=torch.float32)
    loaded = load_draft(folder, overfit.engine.embed_VH.detach())
    for row in overfit.rows[:3]:
        slots, trained = training_logits(overfit.draft, row, STEPS)
        assert slots[0] == row.n_prompt - 1
        for draft in (overfit.draft, loaded):
            # the last slots have fewer steps; there the training code repeats the last token as the decoding does here
            found = logit_parity(trained, decoding_logits(draft, row, slots.tolist(), STEPS))
            assert found.worst < 1e-3 and found.same_choice == 1.0 and found.slots == len(slots)


def test_several_rows_together(overfit):
    whole = ways_agree(overfit.draft, overfit.rows[:3], STEPS)
    one_by_one = [ways_agree(overfit.draft, [row], STEPS) for row in overfit.rows[:3]]
    assert whole.slots == sum(one.slots for one in one_by_one) and whole.worst == max(one.worst for one in one_by_one)
    assert whole.equal and str(whole).endswith("same first choice in 100.0%")
    with pytest.raises(ValueError, match="no row"):
        ways_agree(overfit.draft, [], STEPS)


def test_a_difference_between_the_ways_is_seen(overfit):
    row = overfit.rows[0]
    slots, trained = training_logits(overfit.draft, row, STEPS)
    wrong = copy.deepcopy(overfit.draft)
    wrong.config = replace(wrong.config, rope_theta=500000.0)
    found = logit_parity(trained, decoding_logits(wrong, row, slots.tolist(), STEPS))
    assert found.worst > 0.05 and not found.equal
    with pytest.raises(ValueError, match="different vocabularies"):
        logit_parity(trained, trained[..., :5])


def test_state_errors_by_hand():
    left = [SimpleNamespace(id="a", aux_TAH=torch.tensor([[[3.0, 4.0], [1.0, 0.0]]]))]
    right = [SimpleNamespace(id="a", aux_TAH=torch.tensor([[[3.0, 4.5], [1.0, 0.0]]])),
             SimpleNamespace(id="b", aux_TAH=torch.zeros(1, 2, 2))]  # fmt: skip
    first, second = state_errors(left, right, [2, 15])
    assert (first.layer, first.error, first.worst_row) == (2, pytest.approx(0.1), "a")  # 0.5 / 5
    assert second.error == 0.0
    with pytest.raises(ValueError, match="no row was captured on both sides"):
        state_errors(left, right[1:], [2, 15])
    with pytest.raises(ValueError, match="a: states"):
        state_errors(left, [SimpleNamespace(id="a", aux_TAH=torch.zeros(2, 2, 2))], [2, 15])


def test_layers_off_by_one_are_named(overfit):
    layers = overfit.engine.aux_layers
    every = torch.cat([row.aux_TAH for row in rows_of(overfit, list(range(8)))])
    for shift in (-1, 0, 1):
        shifted = rows_of(overfit, [k + shift for k in layers])
        found = nearest_layers(torch.cat([row.aux_TAH for row in shifted]), every)
        assert [index for index, _ in found] == [k + shift for k in layers]
        assert all(error < 1e-5 for _, error in found)
        errors = state_errors(overfit.rows, shifted, layers)
        assert all((one.error < 1e-5) == (shift == 0) for one in errors)
