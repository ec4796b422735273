"""One drafter, many ways to run it: packed, padded, alone; unrolled, decoded with a cache, exported and read back."""

from types import SimpleNamespace

import pytest
import torch

from eagle3lab.draft.batch import make_batch
from eagle3lab.draft.checkpoint import export_draft, load_draft
from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.ttt import ttt_loss, unroll
from tests.draft import reference
from tests.draft.samples import H, V, make_draft

RECIPE = Recipe(ttt_steps=3, lk_weight=0.2)
NETWORKS = [
    {},
    {"fc_norm": True, "norm_output": True},
    {"norm_before_residual": True},
    {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True},  # as speculators trains by default
    {"hidden_size": 12, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 6},
    {"draft_vocab_size": V},
]


def padded(row, length):
    """The row as dumps with fixed lengths hold it: junk tokens and states behind its end, masked out."""
    n, junk = row.input_ids_T.shape[0], torch.Generator().manual_seed(7)
    more = length - n
    return SimpleNamespace(
        input_ids_T=torch.cat([row.input_ids_T, torch.randint(0, V, (more,), generator=junk)]),
        loss_mask_T=torch.cat([row.loss_mask_T, torch.zeros(more, dtype=torch.bool)]),
        aux_TAH=torch.cat([row.aux_TAH, 50 * torch.randn(more, *row.aux_TAH.shape[1:], generator=junk)]),
        last_slots=row.last_slots,
        last_MH=row.last_MH,
    )


def sums(draft, batches, head, denominator_K):
    """Loss and gradients of some batches together."""
    draft.zero_grad()
    draft_id_V = torch.full((V,), -1)
    draft_id_V[draft.target_ids_W] = torch.arange(draft.config.draft_vocab_size)
    total = 0.0
    for batch in batches:
        loss, _ = ttt_loss(draft, batch, head[draft.target_ids_W], draft_id_V, RECIPE, denominator_K)
        loss.backward()
        total += loss.item()
    return total, {name: p.grad.clone() for name, p in draft.named_parameters()}


@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_packed_equals_padded_equals_one_by_one(rows, head, network):
    draft = make_draft(**network)
    packed = make_batch(rows, 3)
    denominator_K = packed.weight_KN.sum(1).clamp(min=1)
    ways = {
        "packed": [packed],
        "padded": [make_batch([padded(row, 20) for row in rows], 3)],
        "one by one": [make_batch([row], 3) for row in rows],
        "backwards": [make_batch(rows[::-1], 3)],
    }
    assert len({tuple(batch.row_S.shape) for batch in (packed, ways["padded"][0])}) == 1  # padding costs nothing
    (loss, gradients), *others = (sums(draft, batches, head, denominator_K) for batches in ways.values())
    for other_loss, other_gradients in others:
        assert other_loss == pytest.approx(loss, rel=1e-5)
        for name, gradient in gradients.items():
            torch.testing.assert_close(other_gradients[name], gradient, rtol=1e-4, atol=1e-6)


def decoded_logits(draft, row, slot, steps):
    """The engine's way: true slots into the cache, then a chain that reads its own outputs (tokens teacher-forced)."""
    ids = row.input_ids_T
    cache = draft.new_cache(slot + 1 + steps)
    y = draft.forward_cached(draft.fuse(row.aux_TAH[: slot + 1]), ids[1 : slot + 2], torch.arange(slot + 1), cache)[-1:]
    logits = [draft.logits(y)[0]]
    for i in range(1, steps):
        y = draft.forward_cached(y, ids[slot + 1 + i][None], torch.tensor([slot + i]), cache)
        logits.append(draft.logits(y)[0])
    return torch.stack(logits)


@torch.no_grad()
@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_training_equals_decoding_equals_the_exported_drafter(tmp_path, rows, network):
    draft = make_draft(**network)
    own = {} if draft.config.owns_embedding else {"embed_VH": draft.embed_VH}
    folder = export_draft(draft, tmp_path / "draft", {}, torch.float32, engine="vllm==0.32.0")  # knows all of them
    exported = load_draft(folder, own.get("embed_VH", torch.zeros(V, H)))
    batch = make_batch(rows, 3)
    unrolled_KNW = torch.stack([draft.logits(y_NH) for y_NH in unroll(draft, batch)])
    weights = {name: p.double() for name, p in draft.named_parameters()}
    expected = [
        reference.row_logits(
            weights, draft.config, draft.embed_VH.double(), row.input_ids_T.tolist(), row.aux_TAH.double(), 3
        )
        for row in rows
    ]
    compared = 0
    for n in range(batch.anchor_N.numel()):
        r, slot = int(batch.row_S[batch.anchor_N[n]]), int(batch.position_S[batch.anchor_N[n]])
        steps = int(batch.weight_KN[:, n].sum())
        decoded, reloaded = (decoded_logits(model, rows[r], slot, steps) for model in (draft, exported))
        assert torch.equal(decoded, reloaded)
        for i in range(steps):
            for logits_KW in (unrolled_KNW[:, n], decoded):
                torch.testing.assert_close(logits_KW[i].double(), expected[r][slot, i], rtol=1e-4, atol=1e-4)
        compared += steps
    assert compared > 20
