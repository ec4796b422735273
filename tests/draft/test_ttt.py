"""Training-time test against the float64 double loop, forward and gradient, for every switch."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.draft import attention, ttt
from eagle3lab.draft.batch import make_batch, slot_mask
from eagle3lab.draft.recipe import Recipe
from tests.draft import reference
from tests.draft.samples import V, agent_rows, make_draft, make_row


def package_loss(draft, rows, recipe, head_VH):
    batch = make_batch(rows, recipe.ttt_steps, recipe.loss_mask_kind)
    slots = torch.full((recipe.ttt_steps,), float(batch.row_S.numel()))
    denominator_K = batch.weight_KN.sum(1).clamp(min=1) if recipe.denominator == "valid" else slots
    draft_id_V = torch.full((draft.config.vocab_size,), -1)
    draft_id_V[draft.target_ids_W] = torch.arange(draft.config.draft_vocab_size)
    loss, _ = ttt.ttt_loss(
        draft,
        batch,
        head_VH[draft.target_ids_W],
        draft_id_V,
        recipe,
        denominator_K,
    )
    return loss


def reference_loss(draft, rows, recipe, head_VH):
    weights = {n: p.detach().double().requires_grad_() for n, p in draft.named_parameters()}

    def last_of(row):
        known = dict(zip(row.last_slots.tolist(), row.last_MH.double(), strict=True))
        return [known.get(t) for t in range(row.input_ids_T.shape[0])]

    loss = reference.loss(
        weights, draft.config, draft.embed_VH.double(), rows, recipe, head_VH.double(), draft.target_ids_W, last_of
    )
    return loss, weights


def assert_double_loop(draft, rows, recipe, head_VH):
    """The package's loss and the draft's gradients are those of the reference in float64; none stands for zeros."""
    expected, weights = reference_loss(draft, rows, recipe, head_VH)
    expected.backward()
    loss = package_loss(draft, rows, recipe, head_VH)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for name, parameter in draft.named_parameters():
        gradient = weights[name].grad if weights[name].grad is not None else torch.zeros_like(weights[name])
        torch.testing.assert_close(
            parameter.grad.double(), gradient, rtol=2e-4, atol=2e-6, msg=lambda m, n=name: f"{n}: {m}"
        )


def all_of(**choices):
    """Every combination of the choices."""
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


SLOTS = all_of(
    loss_mask_kind=("strict", "shifted", "specforge"),
    denominator=("valid", "all"),
    drop_oov=(True, False),
    lk_weight=(0.0, 0.4),
)
LOSSES = [
    {"lk_weight": 1.0},
    {"lk_weight": 1.0, "lk_form": "log"},
    {"lk_weight": 0.3, "lk_form": "log", "drop_oov": False},
    {"step_decay": 1.0},
    {"step_weights": [0.2, 1.5, 0.7]},
    {"ttt_steps": 1},
    {"ttt_steps": 7},  # longer than any answer here: the last steps train nothing
]
NETWORKS = [
    {"fc_norm": True},
    {"norm_output": True},
    {"fc_norm": True, "norm_output": True},
    {"norm_before_residual": True},
    {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True},
    {"hidden_size": 12},
    {"hidden_size": 20, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 6, "intermediate_size": 10},
    {"num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 4},
    {"draft_vocab_size": V},  # full vocabulary
    {"aux_layers": (1, 3, 6), "rope_theta": 50.0, "rms_norm_eps": 1e-2},
]
SWITCHES = [(recipe, {}) for recipe in SLOTS + LOSSES] + [({}, network) for network in NETWORKS]


@pytest.mark.parametrize("recipe, network", SWITCHES, ids=lambda d: "-".join(map(str, d.values())) or "default")
def test_loss_and_gradient_equal_the_double_loop(rows, head, recipe, network):
    draft, recipe = make_draft(**network), Recipe(**recipe)
    assert_double_loop(draft, rows, recipe, head)


def test_small_chunks_give_the_same_loss(draft, rows, head, monkeypatch):
    recipe = Recipe(ttt_steps=3)
    whole = package_loss(draft, rows, recipe, head).item()
    monkeypatch.setattr(ttt, "CHUNK", 2)
    assert package_loss(draft, rows, recipe, head).item() == pytest.approx(whole, rel=1e-6)


def test_few_anchors_train_like_the_double_loop(head):
    """Every slot and step of rows whose anchors are few, both ways; and the kernel gets no other query."""
    draft, recipe, rows = make_draft(), Recipe(ttt_steps=3), agent_rows()
    queries = attention.Layout.of(make_batch(rows, 3)).queries
    assert queries.length == 9 and len(set(queries.cell_N.tolist())) == len(queries.cell_N)  # row 3: 10 less 1
    assert_double_loop(draft, rows, recipe, head)


@given(
    st.lists(st.booleans(), min_size=1, max_size=24),
    st.integers(0, 5),
    st.sampled_from(["strict", "shifted", "specforge"]),
)
def test_slot_mask_is_the_definition(mask, step, kind):
    expected = [reference.trained(mask, t, step, kind, len(mask)) for t in range(len(mask))]
    assert slot_mask(torch.tensor(mask), step, kind).tolist() == expected


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(4, 14), st.integers(1, 3)), min_size=2, max_size=5), st.integers(1, 4))
def test_rows_together_equal_rows_one_by_one(shapes, steps):
    """No row sees another: outputs of a joint batch are those of the single rows."""
    draft = make_draft(1)
    rows = [make_row(i, length, [(start, length)]) for i, (length, start) in enumerate(shapes)]
    rows = [row for row in rows if slot_mask(row.loss_mask_T, 0, "strict").any()]
    if not rows:
        return
    with torch.no_grad():
        together = ttt.unroll(draft, make_batch(rows, steps))
        alone = torch.cat([ttt.unroll(draft, make_batch([row], steps)) for row in rows], dim=1)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_a_batch_without_anything_to_train_is_refused(rows):
    for row in rows:
        row.loss_mask_T[:] = False
    with pytest.raises(ValueError, match="no row of this batch has a slot to train"):
        make_batch(rows, 3)
