"""Counts of a dispatch as it goes: rows, tokens, finish reasons, errors, and how fast it is.

Without streaming a server does not tell how many tokens an unfinished answer has. All requests on their way are taken
to be equally fast at any moment, each the faster the fewer they are (down to 1 / `STREAM_GAIN` of the most there
were). The clock that runs at this pace is called progress; tokens / progress of the requests that ended lately gives
the scale.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from eagle3lab.engines.dispatch.lengths import LengthCounts, bin_edges
from eagle3lab.engines.dispatch.timeleft import SetState, Speed, TimeLeft, time_left
from eagle3lab.engines.dispatch.work import Work

FORGET = 1 / 500  # weight of the newest request in the scale of progress
FEWEST_ENDED = 5  # requests that must have ended before there is an estimate
SAMPLES = 240  # of the total, over the longest window
LONGEST_WINDOW_S, SHORTEST_WINDOW_S = 1800.0, 30.0
STREAM_GAIN = 8.0  # a request alone is taken to run so many times faster than among the others, if not measured


class SetTally:
    """One set's part: `rows` in all, `done`, `aside` (set aside), what is on its way as row id -> progress then."""

    def __init__(self, work: Work, rows: int, edges: list[int]):
        self.name, self.partition, self.rows = work.set, work.partition, rows
        self.done = self.aside = 0
        self.finish: Counter[str] = Counter()
        self.lengths = LengthCounts(edges)
        self.on_way: dict[str, float] = {}

    @property
    def waiting(self) -> int:
        """Rows not settled, those on their way included."""
        return self.rows - self.done - self.aside

    def count(self, tokens: int, finish_reason: str) -> None:
        """One more finished row."""
        self.done += 1
        self.finish[finish_reason] += 1
        self.lengths.add(tokens, finish_reason == "length")


class Tally:
    """All sets. Times are seconds of one clock that the caller reads; `began` is when this dispatch did."""

    def __init__(self, works: Sequence[Work], rows: Mapping[str, int], began: float):
        edges = bin_edges(work.partition.max_tokens for work in works)
        self.sets = {work.set: SetTally(work, rows[work.set], edges) for work in works}
        self.errors: Counter[str] = Counter()
        self.began, self.ended, self.tokens = began, 0, 0
        self._on_way, self._widest = 0, 1
        self._progress, self._then = 0.0, began
        self._recent_tokens = self._recent_progress = 0.0
        self._samples: deque[tuple[float, float]] = deque([(began, 0.0)])

    def restore(self, done: Mapping[str, tuple[int, str]], aside: Mapping[str, str], set_of: Mapping[str, str]) -> None:
        """Count what an earlier dispatch settled; rows that are in no set now are left out."""
        for row_id, (tokens, finish_reason) in done.items():
            if row_id in set_of:
                self.sets[set_of[row_id]].count(tokens, finish_reason)
        for row_id, kind in aside.items():
            if row_id in set_of:
                self.sets[set_of[row_id]].aside += 1
                self.errors[kind] += 1

    @property
    def waiting(self) -> int:
        """Rows of all sets that are not settled, those on their way included."""
        return sum(one.waiting for one in self.sets.values())

    def start(self, set_name: str, row_id: str, now: float) -> None:
        """A request was sent."""
        self._advance(now)
        self.sets[set_name].on_way[row_id] = self._progress
        self._on_way += 1
        self._widest = max(self._widest, self._on_way)

    def finish(self, set_name: str, row_id: str, tokens: int, finish_reason: str, now: float) -> None:
        """A request brought its answer."""
        self._advance(now)
        one = self.sets[set_name]
        progress = self._progress - one.on_way[row_id]
        self._end(one, row_id)
        one.count(tokens, finish_reason)
        self.ended += 1
        self.tokens += tokens
        self._recent_tokens += tokens - FORGET * self._recent_tokens
        self._recent_progress += progress - FORGET * self._recent_progress

    def release(self, set_name: str, row_id: str, now: float) -> None:
        """A request ended without an answer; its row waits again."""
        self._advance(now)
        self._end(self.sets[set_name], row_id)

    def give_up(self, set_name: str, kind: str) -> None:
        """A row, which has no request, was set aside."""
        self.sets[set_name].aside += 1
        self.errors[kind] += 1

    def tokens_so_far(self, one: SetTally, now: float) -> list[float]:
        """What the unfinished answers of a set are taken to have by now."""
        self._advance(now)
        scale = self._scale()
        return [scale * (self._progress - start) for start in one.on_way.values()]

    def sample(self, now: float) -> None:
        """Note how far the work is; call it every second or so."""
        under_way = sum(sum(self.tokens_so_far(one, now)) for one in self.sets.values())
        gap = min(now - self.began, LONGEST_WINDOW_S) / SAMPLES
        if len(self._samples) > 1 and self._samples[-1][0] - self._samples[-2][0] < gap:
            self._samples.pop()
        self._samples.append((now, self.tokens + under_way))
        window = min(LONGEST_WINDOW_S, max(SHORTEST_WINDOW_S, (now - self.began) / 2))
        while len(self._samples) > 2 and self._samples[1][0] <= now - window:
            self._samples.popleft()

    def tokens_per_second(self) -> float:
        """Of everything together, unfinished answers included, over the last half of the time (at most 30 min)."""
        (first, before), (last, after) = self._samples[0], self._samples[-1]
        return max(after - before, 0.0) / (last - first) if last > first else 0.0

    def speed(self, stream: float | None = None) -> Speed:
        """The measured speed, and its error from how much pieces of the window differ. `stream`: tokens a second of
        a request that is alone, where it was measured."""
        pieces = list(self._samples)[:: max(1, len(self._samples) // 8)]
        rates = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(pieces) if b[0] > a[0]]
        mean = float(np.mean(rates)) if rates else 0.0
        error = float(np.std(rates)) / math.sqrt(len(rates)) / mean if len(rates) > 1 and mean > 0 else 0.2
        stream = stream or STREAM_GAIN * self._scale() / self._widest
        return Speed(self.tokens_per_second(), min(error, 0.5), self._widest, stream)

    def time_left(self, now: float, stream: float | None = None) -> TimeLeft | None:
        """The estimate at `now`; None before `FEWEST_ENDED` requests ended."""
        speed = self.speed(stream)
        if self.ended < FEWEST_ENDED or not speed.total > 0:
            return None
        states = [
            SetState(one.lengths, one.waiting - len(one.on_way), self.tokens_so_far(one, now), one.partition.max_tokens)
            for one in self.sets.values()
        ]
        return time_left(states, speed)

    def _scale(self) -> float:
        """Tokens for a unit of progress: those of all requests together in a second, while they share evenly."""
        return self._recent_tokens / self._recent_progress if self._recent_progress > 0 else 0.0

    def _advance(self, now: float) -> None:
        if self._on_way:
            self._progress += (now - self._then) * min(1 / self._on_way, STREAM_GAIN / self._widest)
        self._then = now

    def _end(self, one: SetTally, row_id: str) -> None:
        del one.on_way[row_id]
        self._on_way -= 1
