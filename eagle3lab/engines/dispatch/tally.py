"""Counts of a dispatch as it goes: rows, tokens, finish reasons, errors, and how fast it is.

Without streaming a server does not tell how many tokens an unfinished answer has. All requests on their way are taken
to be equally fast at any moment, each the faster the fewer they are (down to 1 / `STREAM_GAIN` of the most there
were). The clock that runs at this pace is called progress; work / progress of the requests that ended lately gives
the scale. Work is counted in answer tokens: those of an answer, and what its prompt costs before them (nothing unless
`start` says so).
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from eagle3lab.engines.dispatch.lengths import LengthCounts, bin_edges
from eagle3lab.engines.dispatch.timeleft import SetState, Speed, TimeLeft, time_left
from eagle3lab.engines.dispatch.work import Work

FORGET = 1 / 500  # weight of the newest request in the scale of progress
FEWEST_ENDED = 5  # requests that must have ended before there is an estimate
SAMPLES = 240  # of the work done, over the longest window
PIECES = 8  # of the whole time: how much their speeds differ is the error of the speed
UNSEEN, LARGEST_ERROR = 0.08, 0.5  # what comes may differ by that much from all that has been seen
LONGEST_WINDOW_S, SHORTEST_WINDOW_S = 1800.0, 30.0
STREAM_GAIN = 8.0  # a request alone is taken to run so many times faster than among the others, if not measured


@dataclass(frozen=True)
class Sample:
    """At a moment: the work of what has ended, and the progress since their start of all requests on their way."""

    when: float
    work: float
    on_way: float


class SetTally:
    """One set's part: `rows` in all, `done`, `aside` (set aside), what is on its way as row id -> (progress then, work
    of its prompt); `prompt_work` of the rows not started."""

    def __init__(self, work: Work, rows: int, edges: list[int], prompt_work: float):
        self.name, self.partition, self.rows, self.prompt_work = work.set, work.partition, rows, prompt_work
        self.done = self.aside = 0
        self.finish: Counter[str] = Counter()
        self.lengths = LengthCounts(edges)
        self.on_way: dict[str, tuple[float, float]] = {}

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
    """All sets. Times are seconds of one clock that the caller reads; `began` is when this dispatch did; `prompt_work`:
    set -> what the prompts of all its rows to start will cost."""

    def __init__(
        self,
        works: Sequence[Work],
        rows: Mapping[str, int],
        began: float,
        prompt_work: Mapping[str, float] | None = None,
    ):
        edges, prompt_work = bin_edges(work.partition.max_tokens for work in works), prompt_work or {}
        self.sets = {work.set: SetTally(work, rows[work.set], edges, prompt_work.get(work.set, 0.0)) for work in works}
        self.errors: Counter[str] = Counter()
        self.began, self.ended, self.tokens = began, 0, 0
        self._on_way, self._widest = 0, 1
        self._progress, self._then = 0.0, began
        self._recent_tokens = self._recent_work = self._recent_progress = self._work = 0.0
        self._samples = deque([Sample(began, 0.0, 0.0)])
        self._all_samples = list(self._samples)

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

    def start(self, set_name: str, row_id: str, now: float, prompt_work: float = 0.0) -> None:
        """A request was sent; its prompt costs as much as so many tokens of answers."""
        self._advance(now)
        self.sets[set_name].on_way[row_id] = self._progress, prompt_work
        self.sets[set_name].prompt_work -= prompt_work
        self._on_way += 1
        self._widest = max(self._widest, self._on_way)

    def finish(self, set_name: str, row_id: str, tokens: int, finish_reason: str, now: float) -> None:
        """A request brought its answer."""
        self._advance(now)
        one = self.sets[set_name]
        began, prompt_work = one.on_way[row_id]
        progress, work = self._progress - began, tokens + prompt_work
        self._end(one, row_id)
        one.count(tokens, finish_reason)
        self.ended += 1
        self.tokens += tokens
        self._work += work
        self._recent_tokens += tokens - FORGET * self._recent_tokens
        self._recent_work += work - FORGET * self._recent_work
        self._recent_progress += progress - FORGET * self._recent_progress

    def release(self, set_name: str, row_id: str, now: float) -> None:
        """A request ended without an answer; its row waits again."""
        self._advance(now)
        one = self.sets[set_name]
        one.prompt_work += one.on_way[row_id][1]
        self._end(one, row_id)

    def give_up(self, set_name: str, kind: str, prompt_work: float = 0.0) -> None:
        """A row, which has no request, was set aside."""
        self.sets[set_name].aside += 1
        self.sets[set_name].prompt_work -= prompt_work
        self.errors[kind] += 1

    def tokens_so_far(self, one: SetTally, now: float) -> list[float]:
        """What the unfinished answers of a set are taken to have by now."""
        self._advance(now)
        scale = self._scale()
        return [max(0.0, scale * (self._progress - began) - prompt) for began, prompt in one.on_way.values()]

    def sample(self, now: float) -> None:
        """Note how far the work is; call it every second or so."""
        self._advance(now)
        on_way = sum(self._progress - began for one in self.sets.values() for began, _ in one.on_way.values())
        newest, passed = Sample(now, self._work, on_way), now - self.began
        _append(self._samples, newest, min(passed, LONGEST_WINDOW_S) / SAMPLES)
        _append(self._all_samples, newest, passed / SAMPLES)
        window = min(LONGEST_WINDOW_S, max(SHORTEST_WINDOW_S, passed / 2))
        while len(self._samples) > 2 and self._samples[1].when <= now - window:
            self._samples.popleft()

    def tokens_per_second(self) -> float:
        """Of everything together, unfinished answers included, over the last half of the time (at most 30 min)."""
        share = self._recent_tokens / self._recent_work if self._recent_work > 0 else 1.0
        return share * self._rate(self._samples[0], self._samples[-1])

    def speed(self, stream: float | None = None) -> Speed:
        """The measured speed, in work, and its error: how much pieces of the whole time differ. Their spread, not that
        of their mean: a machine that others use, too, changes slowly, and slow changes do not average out. `stream`:
        tokens a second of a request that is alone, where it was measured."""
        moments = np.linspace(self._all_samples[0].when, self._all_samples[-1].when, PIECES + 1)
        places = np.searchsorted([one.when for one in self._all_samples], moments)
        rates = [self._rate(self._all_samples[a], self._all_samples[b]) for a, b in pairwise(places) if a < b]
        mean = float(np.mean(rates)) if rates else 0.0
        error = math.hypot(float(np.std(rates)) / mean, UNSEEN) if mean > 0 else LARGEST_ERROR
        stream = stream or STREAM_GAIN * self._scale() / self._widest
        return Speed(self._rate(self._samples[0], self._samples[-1]), min(error, LARGEST_ERROR), self._widest, stream)

    def time_left(self, now: float, stream: float | None = None) -> TimeLeft | None:
        """The estimate at `now`; None before `FEWEST_ENDED` requests ended."""
        speed = self.speed(stream)
        if self.ended < FEWEST_ENDED or not speed.total > 0:
            return None
        states = [
            SetState(
                one.lengths,
                one.waiting - len(one.on_way),
                self.tokens_so_far(one, now),
                one.partition.max_tokens,
                one.prompt_work,
            )
            for one in self.sets.values()
        ]
        return time_left(states, speed)

    def _scale(self) -> float:
        """Work for a unit of progress: that of all requests together in a second, while they share evenly."""
        return self._recent_work / self._recent_progress if self._recent_progress > 0 else 0.0

    def _rate(self, a: Sample, b: Sample) -> float:
        """Work a second between two samples, both at today's scale: the scale that was known then would count as speed
        what is only better known now."""
        work = b.work - a.work + self._scale() * (b.on_way - a.on_way)
        return max(work, 0.0) / (b.when - a.when) if b.when > a.when else 0.0

    def _advance(self, now: float) -> None:
        if self._on_way:
            self._progress += (now - self._then) * min(1 / self._on_way, STREAM_GAIN / self._widest)
        self._then = now

    def _end(self, one: SetTally, row_id: str) -> None:
        del one.on_way[row_id]
        self._on_way -= 1


def _append(samples: list[Sample] | deque[Sample], newest: Sample, gap: float) -> None:
    """Adds a sample; the last one makes room where it is nearer than `gap` to the one before it."""
    if len(samples) > 1 and samples[-1].when - samples[-2].when < gap:
        samples.pop()
    samples.append(newest)
