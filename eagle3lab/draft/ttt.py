"""Training-time test (TTT): the drafter unrolled over its own outputs, and its loss over the draft vocabulary.

Shapes: K TTT steps, N anchors, P teacher positions, H hidden, W draft vocabulary, C slots of one chunk.

Loss of one slot with teacher p and draft q over the draft vocabulary (p renormalised over it):
    soft cross-entropy  -sum_v p_v log q_v          (forward KL up to a constant)
    LK                  1 - a or -log a             (a = sum_v min(p_v, q_v), the acceptance probability under sampling)
mixed as (1 - lk_weight) * cross-entropy + lk_weight * LK.
"""

import torch

from eagle3lab.draft.attention import Layout, joint_attention
from eagle3lab.draft.batch import TTTBatch, rope_position
from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.teacher import StateTeacher, TopKTeacher

CHUNK = 256  # teacher positions whose logits exist at one time


def unroll(draft, batch: TTTBatch) -> torch.Tensor:
    """Outputs y of every TTT step at every anchor, [K, N, H]. Step i+1 is fed the y of step i."""
    layout = Layout.of(batch)
    f0_SH = draft.fuse(batch.aux_SAH)
    q, k0, v0 = draft.qkv(f0_SH, batch.next_ids_S, batch.position_S, queries=batch.anchor_N)
    attended = joint_attention(q, k0, v0, [], [], layout)
    y_NH = draft.after_attention(f0_SH[batch.anchor_N], attended)
    outputs, keys, values = [y_NH], [], []
    position_N = batch.position_S[batch.anchor_N]
    for step in range(1, batch.weight_KN.shape[0]):
        f_NH = outputs[-1]
        q, k, v = draft.qkv(f_NH, batch.input_ids_KN[step], rope_position(position_N, step))
        keys.append(k)
        values.append(v)
        attended = joint_attention(q, k0, v0, keys, values, layout)
        outputs.append(draft.after_attention(f_NH, attended))
    return torch.stack(outputs)


def label_ids(batch: TTTBatch, draft_id_V: torch.Tensor) -> torch.Tensor:
    """Draft ids of the predicted tokens [K, N]; -1 where the token is not in the draft vocabulary."""
    return draft_id_V[batch.label_ids_KN]


def loss_weights(batch: TTTBatch, draft_id_V, step_weights_K, denominator_K, drop_out_of_vocabulary: bool):
    """Weight of each slot's loss [K, N]: step weight / denominator, 0 where masked (or out of vocabulary)."""
    weight_KN = batch.weight_KN * (step_weights_K / denominator_K)[:, None]
    if drop_out_of_vocabulary:
        weight_KN = weight_KN * (label_ids(batch, draft_id_V) >= 0)
    return weight_KN


class VocabularyLoss(torch.autograd.Function):
    """sum over slots of weight * loss(x @ head^T, teacher), with logits never materialised for more than a chunk.

    Forward computes the gradients too, so nothing of size slots x W is kept. Chunks run over teacher positions: the
    teacher's softmax is computed once and used by all K steps that predict the same token.

    Inputs: x_KNH normalised outputs, head_WH draft head, teacher (see teacher.py) of P positions, teacher_KN index into
    P, weight_KN, label_KN draft ids of the true tokens (-1: none).
    Returns (loss, correct_KN bool: the draft's argmax is the true token). Both are for the record and cost passes over
    the logits; without `measure` they are 0 and False, while the gradients are always there.
    """

    @staticmethod
    def forward(ctx, x_KNH, head_WH, teacher, teacher_KN, weight_KN, label_KN, lk_weight, lk_form, measure):
        K, N, H = x_KNH.shape
        x_MH, weight_M = x_KNH.reshape(-1, H), weight_KN.flatten()
        teacher_M, label_M = teacher_KN.flatten(), label_KN.flatten()
        dx_MH = torch.zeros_like(x_MH)
        dhead_WH = torch.zeros_like(head_WH, dtype=torch.float32)
        correct_M = torch.zeros(K * N, dtype=torch.bool, device=x_MH.device)
        loss = torch.zeros((), dtype=torch.float32, device=x_MH.device)
        for start in range(0, len(teacher), CHUNK):
            slots = ((teacher_M >= start) & (teacher_M < start + CHUNK) & (weight_M > 0)).nonzero().squeeze(1)
            if slots.numel() == 0:
                continue
            p_CW = teacher.probabilities(start, start + CHUNK)[teacher_M[slots] - start]
            x_CH, w_C1 = x_MH[slots], weight_M[slots, None]
            z_CW = x_CH @ head_WH.T
            if measure:
                correct_M[slots] = z_CW.max(-1).indices == label_M[slots]  # max is faster than argmax on a CPU
            log_q_CW = z_CW.log_softmax(-1)
            q_CW = log_q_CW.exp()
            if measure:
                loss += (w_C1[:, 0] * _slot_losses(p_CW, log_q_CW, q_CW, lk_weight, lk_form)).sum()
            if lk_weight:
                below_CW = (q_CW < p_CW).to(q_CW.dtype)
                mass_C1 = (q_CW * below_CW).sum(-1, keepdim=True)
                lk_C1 = lk_weight / _acceptance(p_CW, q_CW)[:, None].to(q_CW.dtype) if lk_form == "log" else lk_weight
                dz_CW = (1 - lk_weight) * (q_CW - p_CW) + lk_C1 * q_CW * (mass_C1 - below_CW)
            else:
                dz_CW = q_CW.sub_(p_CW)
            dz_CW = dz_CW.mul_(w_C1.to(dz_CW.dtype))
            dx_MH[slots] = dz_CW @ head_WH
            dhead_WH += dz_CW.T @ x_CH
        ctx.save_for_backward(dx_MH.view(K, N, H), dhead_WH.to(head_WH.dtype))
        ctx.mark_non_differentiable(correct_M)
        return loss, correct_M.view(K, N)

    @staticmethod
    def backward(ctx, grad_loss, _):
        dx_KNH, dhead_WH = ctx.saved_tensors
        return dx_KNH * grad_loss, dhead_WH * grad_loss, None, None, None, None, None, None, None


def _acceptance(p_CW, q_CW):
    """a of each slot, float32 [C]; never zero."""
    return torch.minimum(p_CW, q_CW).sum(-1).float().clamp(min=1e-30)


def _slot_losses(p_CW, log_q_CW, q_CW, lk_weight, lk_form):
    """Loss of each slot, float32 [C]."""
    cross_C = -torch.linalg.vecdot(p_CW, log_q_CW).float()
    if not lk_weight:
        return cross_C
    accept_C = _acceptance(p_CW, q_CW)
    lk_C = -accept_C.log() if lk_form == "log" else 1 - accept_C
    return (1 - lk_weight) * cross_C + lk_weight * lk_C


def ttt_loss(draft, batch: TTTBatch, teacher_head_WH, draft_id_V, recipe: Recipe, denominator_K, measure: bool = True):
    """Loss of a batch (scalar float32) and which trained predictions were right (bool [K, N]); see VocabularyLoss.

    teacher_head_WH: the target's output rows of the draft vocabulary. draft_id_V: draft id of each target id, or -1.
    denominator_K: what the sum of each step's slot losses is divided by, float32.
    """
    y_KNH = unroll(draft, batch)
    if batch.top is None:
        teacher = StateTeacher(batch.last_PH.to(y_KNH.dtype), teacher_head_WH)
    else:
        teacher = TopKTeacher(batch.top, draft_id_V, teacher_head_WH.shape[0], y_KNH.dtype)
    step_weights_K = recipe.weights_K().to(y_KNH.device)
    weight_KN = loss_weights(batch, draft_id_V, step_weights_K, denominator_K, recipe.drop_oov)
    return VocabularyLoss.apply(
        draft.head_input(y_KNH),
        draft.lm_head.weight,
        teacher,
        batch.teacher_KN,
        weight_KN,
        label_ids(batch, draft_id_V),
        recipe.lk_weight,
        recipe.lk_form,
        measure,
    )
