"""What there is to answer: data sets with their partition, and the rows that are not settled yet, in order."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from eagle3lab.engines.base import Request


class WorkError(ValueError):
    """Sets or rows that cannot be dispatched as they are."""


@dataclass(frozen=True)
class Partition:
    """How the rows of some sets run: at most `concurrency` of them on one server at a time, answers of at most
    `max_tokens` tokens, `timeout_s` seconds for one answer (the server's queue included). Behind the URL of a
    router stand several servers: multiply `concurrency` by their number."""

    name: str
    concurrency: int
    max_tokens: int
    timeout_s: float = 7200.0

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.max_tokens < 1 or not self.timeout_s > 0:
            raise WorkError(
                f"partition {self.name!r}: concurrency={self.concurrency} and max_tokens={self.max_tokens} must be at "
                f"least 1, timeout_s={self.timeout_s} above 0"
            )


@dataclass(frozen=True)
class Work:
    """One data set. `prompts` are (row id, token ids) pairs; they are read twice, so it must be something that can
    be read again (a list, or an object whose iterator reads a file), not a generator."""

    set: str
    partition: Partition
    prompts: Iterable[tuple[str, list[int]]]


@dataclass(frozen=True)
class Prompts:
    """The prompts of a set as a `Work` wants them: `read()` gives its rows from the beginning (mappings with `id` and
    `prompt_ids`), of which the first `limit` count."""

    read: Callable[[], Iterable[Mapping[str, Any]]]
    limit: int | None = None

    def __iter__(self) -> Iterator[tuple[str, list[int]]]:
        return ((row["id"], row["prompt_ids"]) for row in islice(self.read(), self.limit))


@dataclass(slots=True)
class Row:
    """A row on its way. `failures`, `refused`: requests that failed, or were refused, by a server that was well.
    `lost`: requests that went down with a server; `lost_alone`: those of them that ran with nothing beside them.
    `avoid`: the server of the last request."""

    id: str
    set: str
    partition: Partition
    input_ids: list[int]
    failures: int = 0
    refused: int = 0
    lost: int = 0
    lost_alone: int = 0
    avoid: object = None


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn: temperature 0 is greedy, `seed` counts for the others."""

    temperature: float = 0.0
    seed: int = 0

    def request(self, row: Row) -> Request:
        """The row as the engine takes it."""
        return Request(row.id, row.input_ids, row.partition.max_tokens, self.temperature, self.seed)


def survey(works: Sequence[Work]) -> tuple[dict[str, str], dict[str, int]]:
    """Reads all sets once: row id -> its set, and set -> its number of rows.

    Raises WorkError for prompts that can be read only once, a prompt that is no list of ids, two sets of one name, and
    a row id that comes twice (rows are told apart by it).
    """
    set_of: dict[str, str] = {}
    counts: dict[str, int] = {}
    for work in works:
        if work.set in counts:
            raise WorkError(f"two sets are called {work.set!r}")
        if iter(work.prompts) is work.prompts:
            raise WorkError(f"set {work.set!r}: its prompts can be read only once; pass a list or a re-readable object")
        for row_id, ids in work.prompts:
            if not isinstance(ids, list) or not ids:
                raise WorkError(
                    f"row {row_id!r} of set {work.set!r}: its prompt must be a list of token ids, not {ids!r}"
                )
            if row_id in set_of:
                raise WorkError(
                    f"row id {row_id!r} comes twice (sets {set_of[row_id]!r} and {work.set!r}); ids must be unique"
                )
            set_of[row_id] = work.set
        counts[work.set] = len(set_of) - sum(counts.values())
    if not set_of:
        raise WorkError("there is no row to answer: every set is empty")
    return set_of, counts


class Waiting:
    """Rows that still need a request: those put back when their pause is over, then the sets in order.

    The first `pilot` rows of every set come before everything else: they are needed anyway, and they show from the
    start how long the answers of the later sets are. Rows are read as they are taken, not kept.
    """

    def __init__(self, works: Sequence[Work], settled: Collection[str], pilot: int = 0):
        self._settled = settled
        self._fresh = self._read(works, pilot)
        self._next: Row | None = None
        self._back: list[tuple[float, int, Row]] = []
        self._number = 0

    def peek(self, now: float) -> Row | None:
        """The row that `take` would give; None while nothing is ready."""
        if self._back and self._back[0][0] <= now:
            return self._back[0][2]
        if self._next is None:
            self._next = next(self._fresh, None)
        return self._next

    def take(self, now: float) -> Row | None:
        """The next row, which is no longer here."""
        row = self.peek(now)
        if row is not None and row is self._next:
            self._next = None
        elif row is not None:
            heapq.heappop(self._back)
        return row

    def put_back(self, row: Row, due: float) -> None:
        """A row that needs another request, not before `due`."""
        self._number += 1  # rows of one due time keep their order
        heapq.heappush(self._back, (due, self._number, row))

    def next_due(self) -> float | None:
        """When the first row that was put back is ready; None when there is none."""
        return self._back[0][0] if self._back else None

    def _read(self, works: Sequence[Work], pilot: int) -> Iterator[Row]:
        for work in works:
            yield from self._rows(work, islice(work.prompts, pilot))
        for work in works:
            yield from self._rows(work, islice(work.prompts, pilot, None))

    def _rows(self, work: Work, prompts: Iterable[tuple[str, list[int]]]) -> Iterator[Row]:
        for row_id, input_ids in prompts:
            if row_id not in self._settled:
                yield Row(row_id, work.set, work.partition, input_ids)
