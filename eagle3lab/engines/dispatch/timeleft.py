"""The time left, right from the start: unfinished answers count as "longer than this", not as missing.

Tokens left = for each set, rows to start x mean length + what the answers on their way still lack; time = tokens left
/ measured tokens per second, and the end of the run, when too few answers are left to keep the servers busy, is
played through. The range comes from drawing lengths and throughput as uncertain as they are (see `survival`).

B: bins, E: edges, R: draws, N: answers on their way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eagle3lab.engines.dispatch.lengths import LengthCounts, exposure
from eagle3lab.engines.dispatch.survival import draw_hazards, fit, shrunk, survival, tokens_ahead

DRAWS = 200
RANGE = (2.5, 97.5)  # percentiles of the draws; in replays it held the truth about nine times of ten


@dataclass(frozen=True)
class SetState:
    """What is known of one set: `counts` of its finished answers, `to_start` rows not started, `tokens_so_far` of
    those on their way, `cap` = its max_tokens, `prompt_work`: what the prompts of the rows not started cost, in tokens
    of answers."""

    counts: LengthCounts
    to_start: int
    tokens_so_far: Sequence[float]
    cap: int
    prompt_work: float = 0.0


@dataclass(frozen=True)
class Speed:
    """Measured tokens (and prompts' work) per second of everything together, with its relative standard error; how many
    answers are on their way while there is enough to do; tokens per second of one that is alone."""

    total: float
    error: float
    slots: int
    stream: float


@dataclass(frozen=True)
class TimeLeft:
    """Seconds left: the median and the range of the draws; tokens left (median); mean length of each set's answers."""

    seconds: float
    low: float
    high: float
    tokens: float
    mean_lengths: tuple[float, ...]

    def after(self, seconds: float) -> TimeLeft:
        """The same estimate so many seconds later."""
        later = (max(0.0, value - seconds) for value in (self.seconds, self.low, self.high))
        return TimeLeft(*later, self.tokens, self.mean_lengths)


def time_left(sets: Sequence[SetState], speed: Speed, seed: int = 0, draws: int = DRAWS) -> TimeLeft:
    """The estimate; same input and seed, same numbers. Sets without data take their lengths from all the others.

    Raises ValueError when a speed is not positive.
    """
    if not (speed.total > 0 and speed.stream > 0 and speed.slots > 0):
        raise ValueError(f"{speed}: tokens per second and answers at a time must be positive")
    generator = np.random.default_rng(seed)
    seen = [exposure(state.counts, state.tokens_so_far) for state in sets]
    edges_E = seen[0].edges_E
    total_R = speed.total * np.maximum(1 + speed.error * generator.standard_normal(draws), 0.1)
    tokens_R, tail_RN, means = np.zeros(draws), [], []
    last = max((i for i, state in enumerate(sets) if state.to_start), default=None)
    for i, (state, data, fitted) in enumerate(zip(sets, seen, fit(seen), strict=True)):
        means.append(float(tokens_ahead(edges_E, shrunk(data, fitted.mean()), state.cap)[0]))
        if not state.to_start and not len(state.tokens_so_far):
            continue
        hazard_RB = draw_hazards(data, fitted, draws, generator)
        longer_RE = survival(hazard_RB)
        under_way_RN = _lacking(longer_RE, edges_E, state, generator)
        tokens_R += under_way_RN.sum(axis=1) + _unstarted(longer_RE, edges_E, hazard_RB, state, generator)
        if last is None:
            tail_RN.append(under_way_RN)
        elif i == last:
            tail_RN.append(_equilibrium(longer_RE, edges_E, state.cap, min(speed.slots, state.to_start), generator))
    if not tail_RN:
        return TimeLeft(0.0, 0.0, 0.0, 0.0, tuple(means))
    tail_RN = np.concatenate(tail_RN, axis=1)
    prompt_work = sum(state.prompt_work for state in sets)
    body_R = np.maximum(tokens_R + prompt_work - tail_RN.sum(axis=1), 0) / total_R
    seconds_R = body_R + [
        drain_seconds(tail_N, total, speed.stream) for tail_N, total in zip(tail_RN, total_R, strict=True)
    ]
    low, middle, high = np.percentile(seconds_R, (RANGE[0], 50.0, RANGE[1]))
    return TimeLeft(float(middle), float(low), float(high), float(np.median(tokens_R)), tuple(means))


def drain_seconds(lacking_N: np.ndarray, total: float, stream: float) -> float:
    """Time until all of N answers have the tokens they lack, when n of them together get min(total, n * stream)
    tokens per second, shared evenly."""
    steps_N = np.diff(np.sort(lacking_N), prepend=0.0)
    alive_N = np.arange(len(lacking_N), 0, -1)
    return float((steps_N * np.maximum(alive_N / total, 1 / stream)).sum())


def _lacking(longer_RE, edges_E, state: SetState, generator) -> np.ndarray:
    """Tokens that each answer on its way still lacks [R, N], drawn."""
    so_far_N = np.minimum(np.asarray(state.tokens_so_far, dtype=float), state.cap - 1)
    share_RN = generator.random((len(longer_RE), len(so_far_N)))
    length_RN = np.empty_like(share_RN)
    for r, longer_E in enumerate(longer_RE):
        reached_N = np.interp(so_far_N, edges_E, longer_E)
        length_RN[r] = np.interp(-share_RN[r] * reached_N, -longer_E, edges_E)
    return np.clip(length_RN, so_far_N, state.cap) - so_far_N


def _unstarted(longer_RE, edges_E, hazard_RB, state: SetState, generator) -> np.ndarray:
    """Tokens of all rows that were not started [R]: their mean, and the chance of so many draws."""
    if not state.to_start:
        return np.zeros(len(longer_RE))
    mean_R = tokens_ahead(edges_E, hazard_RB, state.cap)[:, 0]
    middle_B = (edges_E[1:] + edges_E[:-1]) / 2
    square_R = _areas(longer_RE, edges_E, state.cap) @ (2 * middle_B)
    spread_R = np.sqrt(np.maximum(square_R - mean_R**2, 0))
    chance_R = generator.standard_normal(len(mean_R)) * np.sqrt(state.to_start)
    return np.maximum(state.to_start * mean_R + spread_R * chance_R, state.to_start)


def _equilibrium(longer_RE, edges_E, cap: int, n: int, generator) -> np.ndarray:
    """Tokens that n answers still lack at a moment in the middle of the work [R, n]: long ones are more often under
    way, and the rest of one has the density `longer` / mean."""
    below_RE = np.concatenate([np.zeros((len(longer_RE), 1)), _areas(longer_RE, edges_E, cap).cumsum(axis=1)], axis=1)
    share_RN = generator.random((len(longer_RE), n))
    pairs = zip(share_RN, below_RE, strict=True)
    return np.stack([np.interp(share_N * below_E[-1], below_E, edges_E) for share_N, below_E in pairs])


def _areas(longer_RE, edges_E, cap: int) -> np.ndarray:
    """Tokens written in every bin [R, B] by an answer on average; none beyond the cap."""
    area_RB = (longer_RE[:, 1:] + longer_RE[:, :-1]) / 2 * np.diff(edges_E)
    return np.where(edges_E[:-1] < cap, area_RB, 0.0)
