"""Acceptance by kind of token: every draft that counted, sorted by a label of the token it had to name.

Shapes: N drafts that counted ("attempts"), C verifications, T tokens of a row.

An attempt is a draft whose predecessors were all accepted and that could still count: per verification its accepted
drafts, and the wrong one that ended it. Its label is that of the true token, so every attempt is in exactly one slice,
and the drafts lost at the wrong ones add up over the slices to what the drafter lost (all but "end of answer").
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eagle3lab.analysis.accept import accept_length, ratio_interval
from eagle3lab.analysis.attribution import Verifications
from eagle3lab.draft.batch import predicted_token

FEW_ANSWERS, FEW_ATTEMPTS = 5, 50  # below either, a slice is marked as small


@dataclass(frozen=True)
class Attempts:
    """Columns, one entry an attempt.

    answer_N index of the answer, token_N position of the token in its row, step_N draft position (0-based), hit_N was
    it accepted, lost_N drafts lost with it (0 where accepted), cycle_N its verification.
    """

    source: Verifications
    answer_N: np.ndarray
    token_N: np.ndarray
    step_N: np.ndarray
    hit_N: np.ndarray
    lost_N: np.ndarray
    cycle_N: np.ndarray

    def __len__(self) -> int:
        return len(self.answer_N)

    def labels(self, labels: Sequence) -> np.ndarray:
        """Label of every attempt's token. `labels` has an entry an answer: one label, or one a token (T of them)."""
        per_answer = [self._of_answer(index, entry) for index, entry in enumerate(labels)]
        label_N = np.empty(len(self), dtype=object)
        for index, label_T in enumerate(per_answer):
            here_N = self.answer_N == index
            label_N[here_N] = label_T[self.token_N[here_N]]
        return label_N

    def _of_answer(self, index: int, entry) -> np.ndarray:
        answer = self.source.answers[index]
        T = len(answer.input_ids_T)
        label_T = np.full(T, entry, dtype=object) if isinstance(entry, str) else np.asarray(entry, dtype=object)
        if label_T.shape != (T,):
            raise ValueError(f"{answer.id}: {label_T.shape} labels for {T} tokens")
        return label_T


def attempts(v: Verifications) -> Attempts:
    """All attempts of the verifications, in order."""
    count_C = v.accepted_C + v.stopped_C
    cycle_N = np.repeat(np.arange(len(v)), count_C)
    first_N = np.repeat(np.cumsum(count_C) - count_C, count_C)
    step_N = np.arange(len(cycle_N)) - first_N
    hit_N = step_N < v.accepted_C[cycle_N]
    lost_N = np.where(hit_N, 0, (v.room_C - v.accepted_C)[cycle_N])
    token_N = predicted_token(v.slot_C[cycle_N], step_N)
    return Attempts(v, v.answer_C[cycle_N], token_N, step_N, hit_N, lost_N, cycle_N)


@dataclass(frozen=True)
class Slice:
    """The attempts of one label.

    acceptance: share accepted, with its bootstrap interval over answers. lost: drafts lost here, per verification of
    the whole. begun, accept_length: verifications whose first draft is of this slice, and what they committed.
    small: fewer than FEW_ANSWERS answers or FEW_ATTEMPTS attempts: a direction rather than a number.
    """

    label: str
    answers: int
    attempts: int
    accepted: int
    acceptance: float
    interval: tuple[float, float] | None
    lost: float
    begun: int
    accept_length: float | None
    small: bool


def slice_by(a: Attempts, labels: Sequence, order: Sequence[str] = (), seed: int = 0) -> list[Slice]:
    """The slices that have attempts: labels of `order` first, in this order, then the others by how many they are.

    labels: as in `Attempts.labels`.
    """
    label_N = a.labels(labels)
    found, count = np.unique(label_N.astype(str), return_counts=True)
    by_size = [str(found[i]) for i in np.argsort(-count, kind="stable")]
    names = [name for name in order if name in by_size] + [name for name in by_size if name not in order]
    return [_slice(a, name, label_N == name, seed) for name in names]


def _slice(a: Attempts, name: str, in_N: np.ndarray, seed: int) -> Slice:
    P, v = len(a.source.answers), a.source
    attempts_P = np.bincount(a.answer_N[in_N], minlength=P)
    accepted_P = np.bincount(a.answer_N[in_N], a.hit_N[in_N], minlength=P)
    begun_C = a.cycle_N[in_N & (a.step_N == 0)]
    answers, total, accepted = int((attempts_P > 0).sum()), int(attempts_P.sum()), int(accepted_P.sum())
    committed = int(v.accepted_C[begun_C].sum()) + len(begun_C)
    return Slice(
        name,
        answers,
        total,
        accepted,
        accepted / total,
        ratio_interval(accepted_P, attempts_P, seed=seed),
        float(a.lost_N[in_N].sum()) / len(v),
        len(begun_C),
        accept_length(committed, len(begun_C)) if len(begun_C) else None,
        answers < FEW_ANSWERS or total < FEW_ATTEMPTS,
    )


@dataclass(frozen=True)
class Grid:
    """Attempts by label (rows R) and draft position (columns K): counts and accepted, int [R, K]."""

    labels: tuple[str, ...]
    attempts_RK: np.ndarray
    accepted_RK: np.ndarray


def grid(a: Attempts, labels: Sequence, order: Sequence[str]) -> Grid:
    """Counts of the labels of `order`, by draft position."""
    label_N, K = a.labels(labels), a.source.num_steps
    attempts_RK = np.zeros((len(order), K), dtype=np.int64)
    accepted_RK = np.zeros_like(attempts_RK)
    for row, name in enumerate(order):
        in_N = label_N == name
        attempts_RK[row] = np.bincount(a.step_N[in_N], minlength=K)
        accepted_RK[row] = np.bincount(a.step_N[in_N & a.hit_N], minlength=K)
    return Grid(tuple(order), attempts_RK, accepted_RK)
