"""A dispatch at one moment, for the notebook, the terminal and the metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from eagle3lab.engines.dispatch.lengths import Exposure, exposure
from eagle3lab.engines.dispatch.tally import SetTally, Tally
from eagle3lab.engines.dispatch.timeleft import TimeLeft

FIRST_GAP_S, LAST_GAP_S, GAPS = 1.0, 60.0, 200  # between two views; 1/200 of the time passed in between
ESTIMATE_SHARE = 0.02  # of the time at most goes into estimating the time left


@dataclass(frozen=True)
class SetView:
    """One set: `rows == done + set_aside + waiting`; `on_way` of the waiting ones have a request running.

    `tokens` of its finished answers; `seen`: finished and unfinished answers by length (for survival curves);
    `edges`, `histogram`: finished answers by length, in bins edges[i] < length <= edges[i + 1] tokens.
    """

    set: str
    partition: str
    max_tokens: int
    rows: int
    done: int
    set_aside: int
    waiting: int
    on_way: int
    tokens: int
    finish: dict[str, int]
    edges: list[int]
    histogram: list[int]
    seen: Exposure


@dataclass(frozen=True)
class ServerView:
    """One server: whether it is up, requests on their way, rows it answered."""

    name: str
    up: bool
    on_way: int
    answered: int


@dataclass(frozen=True)
class View:
    """Everything at one moment. `rows == done + set_aside + waiting`.

    seconds: since this dispatch began; tokens: answered by all dispatches of the journal; tokens_per_second: of all
    servers, unfinished answers included; time_left: None until enough requests ended; finish: answers by finish
    reason; errors: rows set aside, by kind; retries: requests that were sent again.
    """

    seconds: float
    rows: int
    done: int
    set_aside: int
    waiting: int
    on_way: int
    tokens: int
    tokens_per_second: float
    time_left: TimeLeft | None
    finish: dict[str, int]
    errors: dict[str, int]
    retries: int
    sets: list[SetView]
    servers: list[ServerView] = field(default_factory=list)

    @property
    def settled(self) -> int:
        """Rows that need nothing more."""
        return self.done + self.set_aside

    @property
    def seconds_left(self) -> float | None:
        """The estimate, None while there is none."""
        return None if self.time_left is None else self.time_left.seconds

    def note(self) -> str:
        """What belongs beside a progress bar with its time left: `830 tok/s · 18.2 h to 25.9 h left · 3 set aside`."""
        parts = [f"{self.tokens_per_second:,.0f} tok/s"]
        if self.time_left is not None and self.waiting:
            parts.append(f"{spoken(self.time_left.low)} to {spoken(self.time_left.high)} left")
        if self.done:
            parts.append(f"{self.finish.get('length', 0) / self.done:.0%} cut")
        if self.set_aside:
            parts.append(f"{self.set_aside:,} set aside")
        down = [server.name for server in self.servers if not server.up]
        return " · ".join(parts + ([f"waiting for {', '.join(down)}"] if down else []))

    def line(self) -> str:
        """One line for a terminal: `1,200/5,000 rows · 21.4 h left · 830 tok/s · 18.2 h to 25.9 h left`."""
        left = "" if self.time_left is None else f" · {spoken(self.time_left.seconds)} left"
        return f"{self.settled:,}/{self.rows:,} rows{left} · {self.note()}"

    def metric(self) -> dict[str, Any]:
        """The view as a row of metrics.jsonl; about 200 bytes, and 150 a set."""
        left = self.time_left
        return {
            "seconds": round(self.seconds, 1), "rows": self.rows, "done": self.done, "set_aside": self.set_aside,
            "waiting": self.waiting, "on_way": self.on_way, "tokens": self.tokens,
            "tokens_per_second": round(self.tokens_per_second, 1),
            "seconds_left": None if left is None else round(left.seconds),
            "seconds_left_range": None if left is None else [round(left.low), round(left.high)],
            "finish": self.finish, "errors": self.errors, "retries": self.retries,
            "servers_up": sum(server.up for server in self.servers),
            "sets": [
                {
                    "set": one.set, "rows": one.rows, "done": one.done, "set_aside": one.set_aside,
                    "tokens": one.tokens, "finish": one.finish, "edges": one.edges, "histogram": one.histogram,
                }
                for one in self.sets
                if one.done or one.set_aside or one.on_way
            ],
        }  # fmt: skip


def view_of(
    tally: Tally, now: float, left: TimeLeft | None, retries: int = 0, servers: list[ServerView] | None = None
) -> View:
    """The view of a tally at `now`, with an estimate made before."""
    sets = [_set_view(one, tally.tokens_so_far(one, now)) for one in tally.sets.values()]
    finish: dict[str, int] = {}
    for one in sets:
        for reason, n in one.finish.items():
            finish[reason] = finish.get(reason, 0) + n
    sums = {
        name: sum(getattr(one, name) for one in sets)
        for name in ("rows", "done", "set_aside", "waiting", "on_way", "tokens")
    }
    return View(
        seconds=now - tally.began, tokens_per_second=tally.tokens_per_second(), time_left=left, finish=finish,
        errors=dict(tally.errors), retries=retries, sets=sets, servers=servers or [], **sums,
    )  # fmt: skip


class ViewClock:
    """When the next view is due, and a time left that costs little: often at first, seldom in a long run."""

    def __init__(self, clock: Callable[[], float]):
        self._clock, self._began = clock, clock()
        self._estimate: TimeLeft | None = None
        self._estimated = self._due = 0.0

    def gap(self) -> float:
        """Seconds until the next view."""
        return min(max((self._clock() - self._began) / GAPS, FIRST_GAP_S), LAST_GAP_S)

    def time_left(self, tally: Tally, stream: float | None = None) -> TimeLeft | None:
        """The time left now: a new estimate where one is due, else the last one less the time since."""
        now = self._clock()
        tally.sample(now)
        if now >= self._due or not tally.waiting:
            self._estimate, self._estimated = tally.time_left(now, stream), now
            after = self._clock()
            self._due = after + (after - now) / ESTIMATE_SHARE
        return None if self._estimate is None else self._estimate.after(now - self._estimated)


def spoken(seconds: float) -> str:
    """Seconds as a person would say them: `40 s`, `25 min`, `21.4 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _set_view(one: SetTally, tokens_so_far: list[float]) -> SetView:
    edges, histogram = one.lengths.histogram()
    return SetView(
        set=one.name, partition=one.partition.name, max_tokens=one.partition.max_tokens, rows=one.rows, done=one.done,
        set_aside=one.aside, waiting=one.waiting, on_way=len(one.on_way), tokens=one.lengths.tokens,
        finish=dict(one.finish), edges=edges, histogram=histogram,
        seen=exposure(one.lengths, tokens_so_far),
    )  # fmt: skip
