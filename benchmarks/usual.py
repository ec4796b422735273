"""The usual implementation of training-time test, as a baseline: what this project's training is measured against.

Padded batches, a full attention mask, every slot at every step, logits of all of them at once, autocast over float32
weights, AdamW. The same network and the same loss as eagle3lab.draft (tests/benchmarks/test_usual.py), without what
makes that one fast.

Shapes: B rows, T longest row, K TTT steps, A aux layers, H hidden, V target vocabulary, W draft vocabulary, Q query
heads, N key/value heads, D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence

from eagle3lab.draft.batch import slot_mask
from eagle3lab.draft.recipe import Recipe


@dataclass
class PaddedBatch:
    """Rows padded with zeros to the longest one; `real_BT` tells tokens from padding."""

    ids_BT: torch.Tensor
    aux_BTAH: torch.Tensor
    last_BTH: torch.Tensor  # the target's post-norm state, zeros where the row keeps none
    real_BT: torch.Tensor
    trained_KBT: torch.Tensor

    @classmethod
    def of(cls, rows: Sequence, steps: int, mask_kind: str) -> "PaddedBatch":
        """Rows of the feature store (`input_ids_T`, `loss_mask_T`, `aux_TAH`, `last_slots`, `last_MH`)."""
        last, trained = [], []
        for row in rows:
            T = len(row.input_ids_T)
            known_T = torch.zeros(T, dtype=torch.bool)
            known_T[row.last_slots] = True
            last.append(row.last_MH.new_zeros(T, row.last_MH.shape[-1]).index_copy(0, row.last_slots, row.last_MH))
            taught = [known_T.roll(-1 - step) for step in range(steps)]  # teacher of slot t at step i: t + 1 + i
            masks = [slot_mask(row.loss_mask_T, step, mask_kind) for step in range(steps)]
            trained.append(torch.stack([mask & known for mask, known in zip(masks, taught, strict=True)], dim=1))
        real = [torch.ones(len(row.input_ids_T), dtype=torch.bool) for row in rows]
        ids, aux = [row.input_ids_T for row in rows], [row.aux_TAH for row in rows]
        padded = [pad_sequence(parts, batch_first=True) for parts in (ids, aux, last, real, trained)]
        return cls(*padded[:-1], padded[-1].permute(2, 0, 1))


def later(x_BT, by: int):
    """Each slot's entry `by` slots later, zeros at the end."""
    return torch.cat([x_BT[:, by:], torch.zeros_like(x_BT[:, :by])], dim=1)


def attend(q_BTQD, keys, values, mask_BTT):
    """Causal attention over the slots of step 0, and of each slot over its own later steps. [B, T, Q, D]"""
    scale, groups = q_BTQD.shape[-1] ** -0.5, q_BTQD.shape[2] // keys[0].shape[2]
    keys = [k.repeat_interleave(groups, dim=2) for k in keys]
    values = [v.repeat_interleave(groups, dim=2) for v in values]
    scores = torch.einsum("btqd,bsqd->bqts", q_BTQD, keys[0]) * scale
    scores = scores.masked_fill(~mask_BTT[:, None], torch.finfo(scores.dtype).min)
    own = [(torch.linalg.vecdot(q_BTQD, k) * scale).transpose(1, 2)[..., None] for k in keys[1:]]
    share = torch.cat([scores, *own], dim=-1).softmax(-1, dtype=torch.float32).to(q_BTQD.dtype)
    T = mask_BTT.shape[1]
    out = torch.einsum("bqts,bsqd->btqd", share[..., :T], values[0])
    for i, v in enumerate(values[1:]):
        out = out + share[..., T + i].transpose(1, 2)[..., None] * v
    return out


def usual_loss(draft, batch: PaddedBatch, target_head_VH, draft_id_V, recipe: Recipe) -> torch.Tensor:
    """Soft cross-entropy over the draft vocabulary, summed over steps, mean over all slots, padding included."""
    B, T = batch.ids_BT.shape
    teacher_BTV = batch.last_BTH.float() @ target_head_VH.float().T
    p_BTW = teacher_BTV[..., draft.target_ids_W].softmax(-1)
    causal_TT = torch.ones(T, T, dtype=torch.bool).tril()
    mask_BTT = causal_TT & batch.real_BT[:, None]
    f_BTH, keys, values = draft.fuse(batch.aux_BTAH), [], []
    position_BT = torch.arange(T).expand(B, T)
    loss = torch.zeros(())
    for step, weight in enumerate(recipe.weights_K()):
        q, k, v = draft.qkv(f_BTH, later(batch.ids_BT, 1 + step), position_BT + step)
        keys.append(k)
        values.append(v)
        f_BTH = draft.after_attention(f_BTH, attend(q, keys, values, mask_BTT))
        log_q_BTW = draft.logits(f_BTH).float().log_softmax(-1)
        trained_BT = batch.trained_KBT[step]
        if recipe.drop_oov:
            trained_BT = trained_BT & (draft_id_V[later(batch.ids_BT, 2 + step)] >= 0)
        cross_BT = -(later(p_BTW, 1 + step) * log_q_BTW).sum(-1)
        loss = loss + weight * (cross_BT * trained_BT).sum() / (B * T)
    return loss


class UsualTraining:
    """One optimizer step after the other on padded batches: float32 weights, products by autocast where the
    recipe has bfloat16."""

    def __init__(self, draft, target_head_VH, draft_id_V, recipe: Recipe):
        self.draft, self.recipe = draft, recipe
        self._target = target_head_VH, draft_id_V
        self._optimizer = torch.optim.AdamW(draft.parameters(), lr=1e-4, betas=(0.9, 0.95))

    def step(self, batch: PaddedBatch) -> float:
        """One optimizer step; gives back the loss."""
        self._optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.recipe.compute_dtype == "bfloat16"):
            loss = usual_loss(self.draft, batch, *self._target, self.recipe)
        loss.backward()
        clip_grad_norm_(self.draft.parameters(), self.recipe.clip_norm)
        self._optimizer.step()
        return loss.item()
