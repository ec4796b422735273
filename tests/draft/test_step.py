"""The optimizer step against a training in float64 that shares nothing with it but the start: gradients of the double
loop, clipped and applied by the formulas as they stand in the papers."""

import math

import pytest
import torch

from eagle3lab.draft.batch import make_batch
from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.step import OptimizerStep
from eagle3lab.draft.team import ALONE
from eagle3lab.draft.train import Trainer
from tests.draft import reference
from tests.draft.samples import make_draft, make_row

LEARNING = {"lr": 2e-3, "head_lr": 5e-4, "weight_decay": 0.1, "optimizer": "adamw"}
BLOCK = {"fc", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def reference_gradients(weights, draft, rows, recipe, head):
    """Gradient of the rows' loss at these weights, float64."""

    def last_of(row):
        known = dict(zip(row.last_slots.tolist(), row.last_MH.double(), strict=True))
        return [known.get(t) for t in range(row.input_ids_T.shape[0])]

    leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    embed, ids = draft.embed_VH.double(), draft.target_ids_W
    reference.loss(leaves, draft.config, embed, rows, recipe, head.double(), ids, last_of).backward()
    return {name: leaf.grad for name, leaf in leaves.items()}


def norm_of(gradients):
    return math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients.values()))


def reference_training(draft, rows, recipe, head, factors):
    """AdamW with decoupled decay over these factors on the peak rates; every step sees all rows."""
    weights = {name: parameter.detach().double() for name, parameter in draft.named_parameters()}
    m, v = ({name: torch.zeros_like(weight) for name, weight in weights.items()} for _ in range(2))
    for t, factor in enumerate(factors, 1):
        gradients = reference_gradients(weights, draft, rows, recipe, head)
        shrink = min(1.0, recipe.clip_norm / norm_of(gradients))
        for name, weight in weights.items():
            gradient = gradients[name] * shrink
            m[name], v[name] = 0.9 * m[name] + 0.1 * gradient, 0.95 * v[name] + 0.05 * gradient**2
            step = (m[name] / (1 - 0.9**t)) / ((v[name] / (1 - 0.95**t)).sqrt() + 1e-8)
            lr = factor * (recipe.lr if name.split(".")[-2] in BLOCK else recipe.head_lr)
            weights[name] = weight - lr * recipe.weight_decay * weight - lr * step
    return weights


def gradients_of(step, rows, groups, recipe):
    """What the step leaves in the float32 weights for the rows in these micro-batches."""
    batches = [make_batch([rows[i] for i in group], recipe.ttt_steps, recipe.loss_mask_kind) for group in groups]
    step.gradients(batches, measure=False)
    return {name: parameter.grad.double() for name, parameter in step.draft.named_parameters()}


def difference(found, expected):
    """Norm of the difference over the norm of what was expected, of all weights together."""
    return norm_of({name: found[name] - expected[name] for name in expected}) / norm_of(expected)


TOGETHER, APART = [[0, 1, 2, 3]], [[2], [0, 3], [1]]  # the last micro-batch alone is far from all of them


@pytest.mark.parametrize("denominator", ["valid", "all"])
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("bfloat16", 4e-2)])
@pytest.mark.parametrize("groups", [TOGETHER, APART], ids=["together", "apart"])
def test_gradients_are_those_of_the_double_loop(rows, head, denominator, dtype, tolerance, groups):
    """Of all micro-batches together, with the denominators of all of them; in the working copy's precision too."""
    draft = make_draft(fc_norm=True, norm_output=True)
    recipe = Recipe(ttt_steps=3, denominator=denominator, compute_dtype=dtype, **LEARNING)
    weights = {name: parameter.detach().double() for name, parameter in draft.named_parameters()}
    expected = reference_gradients(weights, draft, rows, recipe, head)
    found = gradients_of(OptimizerStep(draft, head, recipe, ALONE), rows, groups, recipe)
    assert found.keys() == expected.keys()
    assert difference(found, expected) < tolerance
    for name, gradient in expected.items():  # none is lost in the sum over all
        assert (found[name] - gradient).norm() < 5 * tolerance * gradient.norm(), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("share", [0.3, 3.0])
def test_a_gradient_is_clipped_to_the_norm_and_not_stretched(rows, head, dtype, share):
    draft = make_draft()
    recipe = Recipe(ttt_steps=3, compute_dtype=dtype, **LEARNING)
    weights = {name: parameter.detach().double() for name, parameter in draft.named_parameters()}
    whole = norm_of(reference_gradients(weights, draft, rows, recipe, head))
    recipe = Recipe(ttt_steps=3, compute_dtype=dtype, clip_norm=share * whole, **LEARNING)
    step = OptimizerStep(draft, head, recipe, ALONE)
    before = gradients_of(step, rows, TOGETHER, recipe)
    assert step.clip() == pytest.approx(whole, rel=1e-5 if dtype == "float32" else 2e-2)
    after = {name: parameter.grad.double() for name, parameter in draft.named_parameters()}
    kept = min(1.0, share * whole / norm_of(before))
    assert difference(after, {name: kept * gradient for name, gradient in before.items()}) < 1e-5


# factors by hand: four steps, two of warm-up (1/2, 1), then a cosine from 1 to 0.2, half-way down at 0.6
@pytest.mark.parametrize("clip", [0.2, 1e6], ids=["clipped", "unclipped"])
@pytest.mark.parametrize("denominator", ["valid", "all"])
def test_a_training_is_adamw_on_the_double_loop(tmp_path, head, denominator, clip):
    """Four steps of warm-up and cosine, each of two micro-batches or more; the gradient's norm lies between the two."""
    rows = {f"r{i}": make_row(i, 7 + i, [(3, 7 + i)]) for i in range(4)}
    recipe = Recipe(
        ttt_steps=2, epochs=4, batch_tokens=20, accumulate=9, warmup_share=0.5, final_lr_share=0.2, clip_norm=clip,
        denominator=denominator, compute_dtype="float32", **LEARNING,
    )  # fmt: skip
    draft, start = make_draft(), make_draft()
    lengths = {name: len(row.input_ids_T) for name, row in rows.items()}
    trainer = Trainer(draft, lengths, rows.__getitem__, head, recipe, tmp_path)
    assert trainer.total_steps == 4 and all(len(step) >= 2 for step in trainer.plan)
    told = list(trainer.run(log_every=1))
    assert all(0.2 < row["grad_norm"] < 1e6 for row in told)
    expected = reference_training(start, list(rows.values()), recipe, head, factors=(0.5, 1.0, 1.0, 0.6))
    for name, parameter in start.named_parameters():
        moved = expected[name] - parameter.detach().double()
        found = draft.get_parameter(name).detach().double() - parameter.detach().double()
        assert (found - moved).norm() < 2e-3 * moved.norm(), name
