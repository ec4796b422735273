"""A sound drafter learns a few answers by heart; with a fault in its features it cannot."""

from dataclasses import replace

import torch

from eagle3lab.analysis.accept import accept_length
from eagle3lab.analysis.attribution import best_possible
from eagle3lab.analysis.by_heart import learn_by_heart, most_passes
from eagle3lab.analysis.verdict import OVERFIT_SHARE
from eagle3lab.draft.model import random_like
from tests.analysis.overfit import STEPS
from tests.tiny import VOCAB


def share_learned(draft, rows, head_VH):
    known_V = torch.zeros(VOCAB, dtype=torch.bool)
    known_V[draft.target_ids_W] = True
    cycles = learn_by_heart(draft, rows, head_VH, STEPS, epochs=160, lr=1e-2).cycles
    length = accept_length(sum(c.committed for c in cycles), sum(len(c.accepted) for c in cycles))
    return length / best_possible(rows, STEPS, known_V)


def test_a_sound_drafter_learns_by_heart_and_is_left_as_it_is(overfit):
    draft = random_like(overfit.draft, 3)
    before = {name: weight.clone() for name, weight in draft.named_parameters()}
    assert share_learned(draft, overfit.rows[:1], overfit.engine.lm_head_VH) >= OVERFIT_SHARE
    assert all(torch.equal(weight, before[name]) for name, weight in draft.named_parameters())


def test_too_few_passes_are_not_taken_for_a_fault(overfit):
    draft, rows, head_VH = random_like(overfit.draft, 3), overfit.rows[:1], overfit.engine.lm_head_VH

    def length(**more):
        cycles = learn_by_heart(draft, rows, head_VH, STEPS, epochs=20, lr=1e-2, **more).cycles
        return accept_length(sum(c.committed for c in cycles), sum(len(c.accepted) for c in cycles))

    once = length()
    assert length(enough=1.0) == once < length(enough=4.0)
    assert most_passes(20) == 80  # twice doubled


def test_a_fault_in_the_data_cannot_be_learned(overfit):
    """The teacher is of other tokens than those that follow: the labels are beyond learning."""
    wrong = [replace(row, last_MH=row.last_MH.roll(3, 0)) for row in overfit.rows[:1]]
    assert share_learned(random_like(overfit.draft, 3), wrong, overfit.engine.lm_head_VH) < OVERFIT_SHARE
