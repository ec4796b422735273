"""What the drafter would say along known answers: its best tokens with their probabilities, slot by slot.

Shapes: T tokens of a row, K draft steps, E best tokens of a step, N slots with a chain, W draft vocabulary.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from eagle3lab.analysis.slices import Attempts
from eagle3lab.draft.batch import make_batch
from eagle3lab.draft.ttt import unroll


@dataclass(frozen=True)
class Proposals:
    """Best tokens (target ids, best first) and their probabilities under the drafter, [T, K, E]; -1 and 0 where a slot
    has no chain. Teacher-forced: right along the chain as long as the drafts before were right, as in decoding."""

    id: str
    ids_TKE: np.ndarray
    p_TKE: np.ndarray


@torch.no_grad()
def answer_proposals(draft, rows: Iterable, num_steps: int, best: int = 3) -> Iterator[Proposals]:
    """Proposals of every row, in order. ValueError for a row whose answer has fewer than two tokens."""
    for row in rows:
        batch = make_batch([row], num_steps).to(draft.target_ids_W.device)
        T, E = row.input_ids_T.shape[0], min(best, draft.config.draft_vocab_size)
        ids_TKE = np.full((T, num_steps, E), -1, dtype=np.int64)
        p_TKE = np.zeros((T, num_steps, E), dtype=np.float32)
        slot_N = batch.position_S[batch.anchor_N].cpu().numpy()
        for step, y_NH in enumerate(unroll(draft, batch)):
            top = draft.logits(y_NH).float().softmax(-1).topk(E)
            predicts_N = batch.weight_KN[step].cpu().numpy() > 0
            ids_NE = draft.target_ids_W[top.indices].cpu().numpy()
            ids_TKE[slot_N[predicts_N], step] = ids_NE[predicts_N]
            p_TKE[slot_N[predicts_N], step] = top.values.cpu().numpy()[predicts_N]
        yield Proposals(row.id, ids_TKE, p_TKE)


@dataclass(frozen=True)
class CalibrationBin:
    """Drafts whose probability lay in [low, high): their mean probability, and how many of them were accepted."""

    low: float
    high: float
    drafts: int
    accepted: int
    probability: float

    @property
    def acceptance(self) -> float:
        return self.accepted / self.drafts


def draft_probability(a: Attempts, proposals: Iterable[Proposals]) -> np.ndarray:
    """Probability of the proposed token under the drafter, of every attempt, [N]. KeyError for an unknown answer."""
    by_id = {p.id: p for p in proposals}
    slot_N = a.source.slot_C[a.cycle_N]
    p_N = np.zeros(len(a))
    for index, answer in enumerate(a.source.answers):
        here_N = a.answer_N == index
        p_N[here_N] = by_id[answer.id].p_TKE[slot_N[here_N], a.step_N[here_N], 0]
    return p_N


def calibration(p_N, hit_N, bins: int = 10) -> list[CalibrationBin]:
    """Bins of equal width over 0..1 that hold a draft."""
    p_N, hit_N = np.asarray(p_N, dtype=float), np.asarray(hit_N, dtype=bool)
    bin_N = np.minimum((p_N * bins).astype(int), bins - 1)
    found = []
    for b in np.unique(bin_N):
        in_N = bin_N == b
        accepted, mean = int(hit_N[in_N].sum()), float(p_N[in_N].mean())
        found.append(CalibrationBin(b / bins, (b + 1) / bins, int(in_N.sum()), accepted, mean))
    return found


def calibration_error(bins: Iterable[CalibrationBin]) -> float:
    """Mean distance of probability and acceptance, weighted by drafts."""
    bins = list(bins)
    return sum(b.drafts * abs(b.probability - b.acceptance) for b in bins) / sum(b.drafts for b in bins)
