"""Acceptance under sampling: by hand, by drawing, and slot by slot from the model's own distributions."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from eagle3lab.analysis.paths import decoding_logits
from eagle3lab.analysis.sampled import expected_acceptance, overlap
from eagle3lab.draft.model import random_like
from tests.analysis.overfit import KNOWN_W, STEPS


def test_overlap_by_hand():
    p = torch.tensor([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]])
    q = torch.tensor([[0.2, 0.5, 0.3], [0.25, 0.5, 0.25]])
    assert overlap(p, q).tolist() == pytest.approx([0.2 + 0.3 + 0.2, 0.25])


def test_it_is_how_often_a_drawn_token_is_accepted():
    """Drawn from q and accepted with probability min(1, p / q)."""
    generator = torch.Generator().manual_seed(0)
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])
    drawn = torch.multinomial(q, 200_000, replacement=True, generator=generator)
    accepted = torch.rand(len(drawn), generator=generator) < (p / q)[drawn]
    assert float(accepted.float().mean()) == pytest.approx(float(overlap(p[None], q[None])), abs=0.005)


def test_slot_by_slot_from_the_models_own_distributions(overfit):
    """The decoding code's logits, and transformers' own of the target: p(. | x_0 .. x_{t+1+i}) at slot t, step i."""
    model, row = AutoModelForCausalLM.from_pretrained(overfit.folder), overfit.rows[0]
    with torch.no_grad():
        p_TV = model(row.input_ids_T[None]).logits[0].softmax(-1)
    T, slots = len(row.input_ids_T), range(row.n_prompt - 1, len(row.input_ids_T) - 2)
    q_KNW = decoding_logits(overfit.draft, row, list(slots), STEPS).softmax(-1)
    expected = []
    for step in range(STEPS):
        found = []
        for n, slot in enumerate(slots):
            if slot + 2 + step < T:
                both = zip(p_TV[slot + 1 + step, KNOWN_W].tolist(), q_KNW[step, n].tolist(), strict=True)
                found.append(sum(min(p, q) for p, q in both))
        expected.append(sum(found) / len(found))
    assert expected_acceptance(overfit.draft, [row], overfit.engine.lm_head_VH, STEPS) == pytest.approx(
        expected, abs=1e-4
    )


def test_an_overfit_drafter_overlaps_more_than_a_random_one(overfit):
    head_VH, rows = overfit.engine.lm_head_VH, overfit.rows
    trained = expected_acceptance(overfit.draft, rows, head_VH, STEPS)
    random = expected_acceptance(random_like(overfit.draft, 1), rows, head_VH, STEPS)
    assert all(a > b for a, b in zip(trained, random, strict=True))
    assert expected_acceptance(overfit.draft, [], head_VH, 2) == (None, None)
