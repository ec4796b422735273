"""Teachers from stored top-k distributions, against distributions spelt out over the whole vocabulary in float64."""

import copy
import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.draft.batch import make_batch
from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.teacher import TopKTeacher
from eagle3lab.draft.train import Trainer
from eagle3lab.features.codec import TopK, decode_top, encode_top
from tests.draft import reference
from tests.draft.samples import V, W, make_draft
from tests.draft.test_ttt import package_loss


def spelt_out(top: TopK, vocab_size: int) -> torch.Tensor:
    """p [M, V] in float64: the entries as stored, the tail's mass in equal parts on every other id."""
    p_MV = torch.zeros(top.ids_ME.shape[0], vocab_size, dtype=torch.float64)
    for m, (ids, log_p, tail) in enumerate(zip(*(tensor.tolist() for tensor in top), strict=True)):
        for v in range(vocab_size):
            p_MV[m, v] = math.exp(tail) / (vocab_size - len(ids))
        for v, value in zip(ids, log_p, strict=True):
            p_MV[m, v] = math.exp(value)
    return p_MV


def top_rows(rows, head, k):
    """The rows with top-k teachers made from their states."""
    changed = copy.deepcopy(rows)
    for row in changed:
        row.top, row.last_MH = decode_top(encode_top(row.last_MH, head, k)), None
    return changed


@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 12))
@settings(deadline=None, max_examples=50)
def test_probabilities_are_the_spelt_out_ones_renormalised(seed, k, draft_size):
    generator = torch.Generator().manual_seed(seed)
    last, head = torch.randn(4, 3, generator=generator) * 2, torch.randn(13, 3, generator=generator)
    top = decode_top(encode_top(last, head, k))
    target_ids = torch.randperm(13, generator=generator)[:draft_size].sort().values
    draft_id = torch.full((13,), -1)
    draft_id[target_ids] = torch.arange(draft_size)
    expected = spelt_out(top, 13)[:, target_ids]
    expected /= expected.sum(-1, keepdim=True)
    got = TopKTeacher(top, draft_id, draft_size, torch.float32).probabilities(0, 4)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-9)
    assert torch.equal(TopKTeacher(top, draft_id, draft_size, torch.float32).probabilities(1, 3), got[1:3])


def test_entries_that_the_draft_vocabulary_lacks_leave_an_even_teacher():
    top = TopK(torch.tensor([[5, 6]]), torch.tensor([[-0.1, -2.4]]), torch.tensor([-1e4]))
    draft_id = torch.tensor([0, 1, 2, -1, -1, -1, -1])
    assert TopKTeacher(top, draft_id, 3, torch.float32).probabilities(0, 1).tolist() == [[pytest.approx(1 / 3)] * 3]


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("lk_weight", [0.0, 0.4])
@pytest.mark.parametrize("drop_oov", [True, False])
def test_loss_and_gradient_with_a_top_k_teacher_equal_the_double_loop(draft, rows, head, k, lk_weight, drop_oov):
    recipe = Recipe(ttt_steps=3, lk_weight=lk_weight, drop_oov=drop_oov)
    with_top = top_rows(rows, head, k)
    weights = {n: p.detach().double().requires_grad_() for n, p in draft.named_parameters()}

    def log_p_of(row):  # the softmax over the draft vocabulary of log p is p, restricted and renormalised
        known = dict(zip(row.last_slots.tolist(), spelt_out(row.top, V).log(), strict=True))
        return [known.get(t) for t in range(row.input_ids_T.shape[0])]

    one_hot = torch.eye(V, dtype=torch.float64)
    expected = reference.loss(
        weights, draft.config, draft.embed_VH.double(), with_top, recipe, one_hot, draft.target_ids_W, log_p_of
    )
    expected.backward()
    loss = package_loss(draft, with_top, recipe, head)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for name, parameter in draft.named_parameters():
        torch.testing.assert_close(parameter.grad.double(), weights[name].grad, rtol=2e-4, atol=2e-6, msg=name)


def test_all_entries_but_one_are_the_exact_teacher(draft, rows, head):
    """float16 log probabilities are all that is lost."""
    exact = package_loss(draft, rows, Recipe(), head)
    stored = package_loss(draft, top_rows(rows, head, V - 1), Recipe(), head)
    assert stored.item() == pytest.approx(exact.item(), rel=2e-3)


def test_teachers_of_two_kinds_do_not_share_a_batch(rows, head):
    mixed = [*rows[:2], *top_rows(rows[2:3], head, 4)]
    with pytest.raises(ValueError, match="different teachers"):
        make_batch(mixed, 3)
    with pytest.raises(ValueError, match="different teachers"):
        make_batch([*top_rows(rows[:1], head, 3), *top_rows(rows[2:3], head, 4)], 3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_drafter_learns_from_a_top_k_teacher(tmp_path, rows, head, dtype):
    with_top = {row.id: row for row in top_rows(rows, head, 5)}
    lengths = {key: row.input_ids_T.shape[0] for key, row in with_top.items()}
    recipe = dataclasses.replace(Recipe(), epochs=40, compute_dtype=dtype, lr=1e-2, head_lr=1e-2)
    history = list(Trainer(make_draft(), lengths, with_top.__getitem__, head, recipe, tmp_path).run(log_every=20))
    assert history[-1]["loss"] < 0.9 * history[0]["loss"]
    assert W < V  # part of every distribution lies outside the draft vocabulary
