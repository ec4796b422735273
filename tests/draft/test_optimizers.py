"""Which optimizer moves which weight, and how far: AdamW by hand, Muon against the singular value decomposition."""

import math

import pytest
import torch

from eagle3lab.draft.recipe import Recipe, build_optimizers, schedule
from tests.draft.samples import make_draft

DTYPES = ("float32", "bfloat16")
LEARNING = {"lr": 2e-3, "head_lr": 5e-4, "weight_decay": 0.1}
BLOCK = {"fc", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def random_gradients(draft, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in draft.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator) * 0.01


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_matrices_of_the_block_and_the_rest_learn_at_their_own_rates(optimizer, dtype):
    draft = make_draft(fc_norm=True)
    names = {parameter: name for name, parameter in draft.named_parameters()}
    owner = {}
    for one in build_optimizers(draft, Recipe(optimizer=optimizer, compute_dtype=dtype, **LEARNING)):
        for group in one.param_groups:
            for parameter in group["params"]:
                assert names[parameter] not in owner
                owner[names[parameter]] = (type(one).__name__, group["peak_lr"], group["weight_decay"])
    for name in names.values():
        of_block = name.split(".")[-2] in BLOCK
        kind = f"{'Float32' * (dtype == 'float32')}Muon" if optimizer == "muon" and of_block else "AdamW"
        assert owner[name] == (kind, 2e-3 if of_block else 5e-4, 0.1), name


def test_adamw_is_the_formula():
    """Three steps of one matrix and one norm in float64: m, v, bias corrections, decoupled decay."""
    draft = make_draft()
    optimizers = build_optimizers(draft, Recipe(optimizer="adamw", **LEARNING))
    watched = {"fc.weight": 2e-3, "norm.weight": 5e-4}
    state = {name: [draft.get_parameter(name).detach().double(), 0.0, 0.0] for name in watched}
    for t in range(1, 4):
        random_gradients(draft, t)
        for name, lr in watched.items():
            weight, m, v = state[name]
            gradient = draft.get_parameter(name).grad.double()
            m, v = 0.9 * m + 0.1 * gradient, 0.95 * v + 0.05 * gradient**2
            step = (m / (1 - 0.9**t)) / ((v / (1 - 0.95**t)).sqrt() + 1e-8)
            state[name] = [weight - lr * 0.1 * weight - lr * step, m, v]
        for one in optimizers:
            one.step()
    for name, (weight, _, _) in state.items():
        torch.testing.assert_close(draft.get_parameter(name).detach().double(), weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_muon_moves_along_the_orthogonal_factor(dtype):
    """Update = lr * 0.2 * sqrt(longer side) * U V^T of the momentum; its singular values come near one, no more."""
    draft = make_draft()
    [muon, _] = build_optimizers(
        draft, Recipe(optimizer="muon", compute_dtype=dtype, **(LEARNING | {"weight_decay": 0.0}))
    )
    name = "midlayer.mlp.gate_proj.weight"
    before = draft.get_parameter(name).detach().clone()
    random_gradients(draft, 1)
    u, _, v = torch.linalg.svd(draft.get_parameter(name).grad.double(), full_matrices=False)
    muon.step()
    scale = 2e-3 * 0.2 * math.sqrt(max(before.shape))
    update = (before - draft.get_parameter(name).detach()).double() / scale
    singular = (u.T @ update @ v.T).diagonal()
    assert 0.6 < float(singular.min()) and float(singular.max()) < 1.3
    assert float((update - u @ v).norm() / (u @ v).norm()) < 0.35


def test_muon_in_float32_is_the_formula():
    """Three steps of a wide and a tall matrix in float64: momentum, its look ahead, five Newton-Schulz steps, decay."""
    draft = make_draft()
    [muon, _] = build_optimizers(draft, Recipe(optimizer="muon", compute_dtype="float32", **LEARNING))
    a, b, c = 3.4445, -4.7750, 2.0315
    state = {n: [draft.get_parameter(n).detach().double(), 0.0] for n in ("fc.weight", "midlayer.mlp.up_proj.weight")}
    for t in range(1, 4):
        random_gradients(draft, t)
        for name, (weight, momentum) in state.items():
            gradient = draft.get_parameter(name).grad.double()
            momentum = 0.95 * momentum + 0.05 * gradient
            x = 0.05 * gradient + 0.95 * momentum
            x = x / x.norm()
            for _ in range(5):
                x = a * x + (b * x @ x.T + c * x @ x.T @ x @ x.T) @ x
            state[name] = [weight * (1 - 2e-3 * 0.1) - 2e-3 * 0.2 * math.sqrt(max(weight.shape)) * x, momentum]
        muon.step()
    for name, (weight, _) in state.items():
        torch.testing.assert_close(draft.get_parameter(name).detach().double(), weight, rtol=1e-5, atol=1e-6)


def test_muon_in_float32_is_torchs_but_for_rounding():
    moved = {}
    for dtype in DTYPES:
        draft = make_draft()
        [muon, _] = build_optimizers(draft, Recipe(optimizer="muon", compute_dtype=dtype, **LEARNING))
        before = draft.get_parameter("fc.weight").detach().clone()
        for t in range(1, 4):
            random_gradients(draft, t)
            muon.step()
        moved[dtype] = draft.get_parameter("fc.weight").detach() - before
    one, other = moved.values()
    assert 0 < (one - other).norm() < 0.02 * other.norm()


def test_schedule_by_hand():
    recipe = Recipe(warmup_share=0.1, final_lr_share=0.0)
    assert [schedule(s, 20, recipe) for s in (0, 1)] == [0.5, 1.0]
    assert schedule(11, 20, recipe) == pytest.approx(0.5)  # half-way through the 18 cosine steps
    assert schedule(20, 20, Recipe(final_lr_share=0.1)) == pytest.approx(0.1)
