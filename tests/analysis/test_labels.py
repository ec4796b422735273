"""Labels of tokens, the drafter's proposals with their calibration, and the controls."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from eagle3lab.analysis.accept import accept_length
from eagle3lab.analysis.attribution import Walked, verifications, walked
from eagle3lab.analysis.controls import shuffled_layers, shuffled_states, shuffled_teacher
from eagle3lab.analysis.heldout import simulate
from eagle3lab.analysis.labels import (
    OUTSIDE,
    all_slices,
    bin_names,
    binned,
    dimensions,
    target_entropy,
)
from eagle3lab.analysis.proposals import answer_proposals, calibration, calibration_error, draft_probability
from eagle3lab.analysis.slices import attempts
from eagle3lab.draft.decode import answer_hits
from eagle3lab.draft.model import random_like
from tests.analysis.overfit import STEPS
from tests.tiny import VOCAB


def length(simulation):
    cycles = simulation.cycles
    return accept_length(sum(c.committed for c in cycles), sum(len(c.accepted) for c in cycles))


@pytest.fixture(scope="module")
def tried(overfit):
    simulation = simulate(overfit.draft, overfit.rows, STEPS)
    in_vocab = np.zeros(VOCAB, bool)
    in_vocab[overfit.draft.target_ids_W] = True
    return attempts(verifications(walked(overfit.rows, simulation.cycles), STEPS, in_vocab))


def test_bins_by_hand():
    assert bin_names((1, 4), "bits") == ["below 1 bits", "1 to 4 bits", "4 bits and more"]
    assert binned([0.5, 1, 3.9, 4, math.nan], (1, 4), "bits").tolist() == [
        "below 1 bits", "1 to 4 bits", "1 to 4 bits", "4 bits and more", OUTSIDE,
    ]  # fmt: skip


def test_entropy_by_hand():
    # four ids; the states choose a distribution: even over four (2 bits), even over two (1 bit), certain (0 bits)
    head_VH = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, -99.0], [0.0, -99.0]])
    last_MH = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    row = SimpleNamespace(input_ids_T=torch.arange(5), last_slots=torch.tensor([2, 3]), last_MH=last_MH)
    entropy = target_entropy(row, head_VH)
    assert np.isnan(entropy[:3]).all()
    assert entropy[3:] == pytest.approx([2.0, 1.0], abs=1e-6)  # of x3 and x4, from the states before them
    last_MH = torch.tensor([[0, 1.0]])
    certain = SimpleNamespace(input_ids_T=torch.arange(3), last_slots=torch.tensor([0]), last_MH=last_MH)
    head_VH = torch.tensor([[0.0, 99.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert target_entropy(certain, head_VH)[1] == pytest.approx(0.0, abs=1e-6)
    assert target_entropy(row, head_VH, chunk=1)[3:] == pytest.approx(target_entropy(row, head_VH)[3:])


def test_entropy_equals_that_of_the_model(overfit):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(overfit.folder).eval()
    row = overfit.rows[0]
    with torch.no_grad():
        p_TV = model(row.input_ids_T[None]).logits[0].double().softmax(-1)
    expected_T = -(p_TV * p_TV.log2()).sum(-1).numpy()
    entropy_T = target_entropy(row, overfit.engine.lm_head_VH)
    assert entropy_T[row.n_prompt :] == pytest.approx(expected_T[row.n_prompt - 1 : -1], abs=1e-4)
    assert np.isnan(entropy_T[: row.n_prompt]).all()


def test_every_dimension_holds_every_attempt(overfit, tried, chatml_like):
    found = dimensions(overfit.rows, chatml_like, overfit.engine.lm_head_VH)
    assert list(found) == [
        "set", "target entropy", "language", "part of the answer", "token class", "position in the answer",
        "context length",
    ]  # fmt: skip
    for name, slices in all_slices(tried, found).items():
        assert sum(one.attempts for one in slices) == len(tried), name
        assert OUTSIDE not in {one.label for one in slices}, name
    assert {one.label for one in all_slices(tried, found)["set"]} == {"even", "odd"}
    assert set(dimensions(overfit.rows)) == {"set", "position in the answer", "context length"}


def test_the_language_is_the_answers_own_not_the_prompts():
    texts = [["Translate: ", "Tous les êtres humains ", "naissent libres et égaux."], ["Bonjour, ", "print(1)"]]
    words = [word for text in texts for word in text]
    tokenizer = SimpleNamespace(all_special_ids=[], decode=lambda ids, **kwargs: "".join(words[int(i)] for i in ids))
    rows = [
        SimpleNamespace(set="s", n_prompt=1, input_ids_T=torch.tensor(ids, dtype=torch.int64))
        for ids in ([0, 1, 2], [3, 4])
    ]
    assert dimensions(rows, tokenizer)["language"].labels == ["fr", "unclear"]


def test_positions_and_contexts_by_hand():
    row = SimpleNamespace(set="s", n_prompt=120, input_ids_T=torch.zeros(140, dtype=torch.int64))
    found = dimensions([row])
    (position,) = found["position in the answer"].labels
    (context,) = found["context length"].labels
    assert position[119] == OUTSIDE
    assert (position[120], position[135], position[136]) == ("below 16 tokens", "below 16 tokens", "16 to 64 tokens")
    assert (context[127], context[128]) == ("below 128 tokens", "128 to 512 tokens")


@pytest.fixture(scope="module")
def chatml_like():
    """Stands for a tokenizer of the tiny target: id i is the letter i."""
    text = [chr(ord("A") + i) for i in range(VOCAB)]
    return SimpleNamespace(all_special_ids=[1], decode=lambda ids, **kwargs: "".join(text[int(i)] for i in ids))


def test_the_first_proposal_is_the_draft(overfit):
    hits = {row.id: hits_TK.numpy() for row, hits_TK in answer_hits(overfit.draft, overfit.rows, STEPS)}
    for row, one in zip(overfit.rows, answer_proposals(overfit.draft, overfit.rows, STEPS), strict=True):
        T = len(row.input_ids_T)
        token_TK = np.arange(T)[:, None] + 2 + np.arange(STEPS)
        true_TK = row.input_ids_T.numpy()[np.minimum(token_TK, T - 1)]
        assert ((one.ids_TKE[..., 0] == true_TK) & (one.ids_TKE[..., 0] >= 0) == hits[row.id]).all()
        shown = one.ids_TKE[..., 0] >= 0
        assert (np.diff(one.p_TKE[shown]) <= 0).all() and (one.p_TKE[shown].sum(-1) <= 1 + 1e-6).all()
        assert not shown[: row.n_prompt - 1].any() and not one.p_TKE[~shown].any()


def test_calibration_by_hand():
    bins = calibration([0.05, 0.15, 0.19, 1.0, 0.95], [False, True, False, True, True], bins=10)
    assert [(b.low, b.drafts, b.accepted) for b in bins] == [(0.0, 1, 0), (0.1, 2, 1), (0.9, 2, 2)]
    assert bins[1].probability == pytest.approx(0.17) and bins[1].acceptance == 0.5
    assert calibration_error(bins) == pytest.approx((0.05 + 2 * 0.33 + 2 * 0.025) / 5)


def test_an_overfit_drafter_is_surer_where_it_is_right(overfit, tried):
    p_N = draft_probability(tried, answer_proposals(overfit.draft, overfit.rows, STEPS))
    assert ((p_N > 0) & (p_N <= 1)).all()
    right_N, wrong_N = p_N[tried.hit_N], p_N[~tried.hit_N]
    error = math.sqrt(right_N.var() / len(right_N) + wrong_N.var() / len(wrong_N))
    assert right_N.mean() > wrong_N.mean() + 2 * error


def test_the_probability_is_that_of_the_attempted_slot_and_step():
    from eagle3lab.analysis.proposals import Proposals

    answer = Walked("a", "s", 2, np.arange(11), (2, 0, 1, 1))  # slots 1, 4, 5, 7, see test_slices
    tried = attempts(verifications([answer], 3, np.ones(11, bool)))
    p_TKE = np.arange(11 * 3, dtype=float).reshape(11, 3, 1) / 100
    p_N = draft_probability(tried, [Proposals("a", np.zeros((11, 3, 1), int), p_TKE)])
    assert p_N.tolist() == pytest.approx([0.03, 0.04, 0.05, 0.12, 0.15, 0.16, 0.21])


def test_the_controls_fail(overfit):
    trained = length(simulate(overfit.draft, overfit.rows, STEPS))
    assert trained > 1.6
    controls = {
        "random": simulate(random_like(overfit.draft, 0), overfit.rows, STEPS),
        "layers": simulate(overfit.draft, shuffled_layers(overfit.rows), STEPS),
        "states": simulate(overfit.draft, shuffled_states(overfit.rows), STEPS),
    }
    for name, simulation in controls.items():
        assert length(simulation) < 1 + 0.5 * (trained - 1), name


def test_what_the_controls_change_and_what_they_leave(overfit):
    row = overfit.rows[0]
    (layers,) = shuffled_layers([row])
    assert torch.equal(layers.aux_TAH[:, 1], row.aux_TAH[:, 0])
    assert torch.equal(layers.aux_TAH[:, 0], row.aux_TAH[:, -1])
    (states,) = shuffled_states([row], seed=3)
    assert not torch.equal(states.aux_TAH, row.aux_TAH)
    assert sorted(states.aux_TAH[:, 0, 0].tolist()) == sorted(row.aux_TAH[:, 0, 0].tolist())
    (teacher,) = shuffled_teacher([row], seed=3)
    assert torch.equal(teacher.aux_TAH, row.aux_TAH) and not torch.equal(teacher.last_MH, row.last_MH)
    for changed in (layers, states, teacher):
        assert torch.equal(changed.input_ids_T, row.input_ids_T)
    with pytest.raises(ValueError, match="no other order"):
        list(shuffled_layers([SimpleNamespace(id="x", aux_TAH=torch.zeros(3, 1, 2))]))
