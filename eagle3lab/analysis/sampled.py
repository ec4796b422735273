"""Acceptance under sampling, foretold from the two distributions: no sample is drawn.

A drafted token v, drawn from the drafter's q, is accepted with probability min(1, p_v / q_v) under the target's p; over
all tokens that is sum_v min(p_v, q_v). p is the target's over its whole vocabulary: what lies on tokens without a draft
id is lost.

Shapes: K draft steps, N slots with a chain, P teacher positions, V target vocabulary, W draft vocabulary, C a chunk.
"""

from collections.abc import Iterable

import torch

from eagle3lab.draft.batch import make_batch
from eagle3lab.draft.ttt import unroll

CHUNK = 256  # teacher positions whose logits exist at one time


def overlap(p_CW: torch.Tensor, q_CW: torch.Tensor) -> torch.Tensor:
    """sum_v min(p_v, q_v) of each row, [C]."""
    return torch.minimum(p_CW, q_CW).sum(-1)


@torch.no_grad()
def expected_acceptance(draft, rows: Iterable, head_VH: torch.Tensor, num_steps: int) -> tuple[float | None, ...]:
    """Mean overlap at temperature 1 by draft position 1..K, over every slot of the answers that predicts, whatever was
    accepted before. None where no slot does.

    rows: AnswerRow (`last_MH` are the target's post-norm states); head_VH: the target's output head.
    """
    total_K, count_K = [0.0] * num_steps, [0] * num_steps
    for row in rows:
        batch = make_batch([row], num_steps).to(draft.target_ids_W.device)
        y_KNH = unroll(draft, batch)
        for start in range(0, len(batch.last_PH), CHUNK):
            last_CH = batch.last_PH[start : start + CHUNK].to(head_VH)
            p_CW = (last_CH @ head_VH.T).float().softmax(-1)[:, draft.target_ids_W]
            for step in range(num_steps):
                teacher_N = batch.teacher_KN[step]
                here_N = (batch.weight_KN[step] > 0) & (teacher_N >= start) & (teacher_N < start + CHUNK)
                q_NW = draft.logits(y_KNH[step, here_N]).float().softmax(-1)
                total_K[step] += float(overlap(p_CW[teacher_N[here_N] - start], q_NW).sum())
                count_K[step] += int(here_N.sum())
    return tuple(total / count if count else None for total, count in zip(total_K, count_K, strict=True))
