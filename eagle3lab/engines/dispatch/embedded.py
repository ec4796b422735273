"""The same journal and views for the engine in this process: sorted, batched, no server."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from eagle3lab.engines.base import ContextError, NonFiniteError, check_request
from eagle3lab.engines.dispatch.journal import Journal
from eagle3lab.engines.dispatch.run import journal_settings
from eagle3lab.engines.dispatch.tally import Tally
from eagle3lab.engines.dispatch.view import View, ViewClock, view_of
from eagle3lab.engines.dispatch.work import Row, Sampling, Waiting, Work, survey
from eagle3lab.engines.embedded import EmbeddedEngine

WINDOW = 2048  # rows sorted and handed over together: bounds the memory of a large set
PROMPT_COST = 0.75  # of a prompt token, in answer tokens (measured, dev/LOG.md): the short prompts come first
SERVER = "embedded"


def dispatch_embedded(
    works: Sequence[Work],
    engine: EmbeddedEngine,
    folder: str | Path,
    target: str,
    batch_size: int = 64,
    sampling: Sampling | None = None,
    retry_set_aside: bool = False,
) -> Iterator[View]:
    """As `run.dispatch`, set after set, `batch_size` rows at a time whatever the partitions' concurrency.

    A row that does not fit into the context, or whose logits are not finite, is set aside with the reason.
    """
    sampling = sampling or Sampling()
    with Journal(folder, journal_settings(works, target, sampling)) as journal:
        run = _Run(works, engine, journal, batch_size, sampling, retry_set_aside)
        for work in works:
            yield from run.set(work)
        yield run.view()


class _Run:
    def __init__(self, works, engine, journal, batch_size, sampling, retry_set_aside):
        self._engine, self._journal, self._batch_size, self._sampling = engine, journal, batch_size, sampling
        set_of, counts = survey(works)
        aside = {} if retry_set_aside else journal.set_aside
        self._settled = journal.done.keys() | aside.keys()
        prompt_work = {
            work.set: sum(_prompt_work(ids) for row_id, ids in work.prompts if row_id not in self._settled)
            for work in works
        }
        self._tally = Tally(works, counts, time.monotonic(), prompt_work)
        self._tally.restore(journal.done, aside, set_of)
        self._view_clock = ViewClock(time.monotonic)
        self._shown = time.monotonic()

    def view(self) -> View:
        left = self._view_clock.time_left(self._tally)
        self._shown = time.monotonic()
        return view_of(self._tally, self._shown, left)

    def set(self, work: Work) -> Iterator[View]:
        waiting = Waiting([work], self._settled)
        rows = iter(lambda: waiting.take(0.0), None)
        while window := list(islice(rows, WINDOW)):
            groups = deque([[row for row in window if self._fits(row)]])
            while groups:
                left = {row.id: row for row in groups.popleft()}
                try:
                    yield from self._answer(left)
                except NonFiniteError as error:
                    rows_left = list(left.values())
                    if len(rows_left) == 1:
                        self._set_aside(rows_left[0], "failed", str(error))
                    else:  # one of them is broken: the others are answered in ever smaller groups
                        half = len(rows_left) // 2
                        groups.extendleft([rows_left[half:], rows_left[:half]])

    def _fits(self, row: Row) -> bool:
        try:
            check_request(self._sampling.request(row), self._engine.target.vocab_size, self._engine.target.max_context)
        except ContextError as error:
            self._set_aside(row, "context", str(error))
            return False
        return True

    def _answer(self, left: dict[str, Row]) -> Iterator[View]:
        """Answers the rows and takes them out of `left`. The engine begins with the shortest prompts, and with every
        answer the next one begins."""
        rows = sorted(left.values(), key=lambda row: len(row.input_ids))
        requests = [self._sampling.request(row) for row in rows]
        to_begin, running = iter(rows), {}
        try:
            for row in islice(to_begin, self._batch_size):
                self._begin(row, running)
            for completion in self._engine.generate(requests, self._batch_size):
                row = left.pop(completion.id)
                self._journal.add(row.set, completion, SERVER)
                length, reason = len(completion.output_ids), completion.finish_reason
                self._tally.finish(row.set, row.id, length, reason, time.monotonic())
                del running[row.id]
                if (row := next(to_begin, None)) is not None:
                    self._begin(row, running)
                if self._journal.due():
                    self._journal.sync()
                if time.monotonic() - self._shown >= self._view_clock.gap():
                    yield self.view()
        finally:
            for row in running.values():
                self._tally.release(row.set, row.id, time.monotonic())

    def _begin(self, row: Row, running: dict[str, Row]) -> None:
        self._tally.start(row.set, row.id, time.monotonic(), _prompt_work(row.input_ids))
        running[row.id] = row

    def _set_aside(self, row: Row, kind: str, reason: str) -> None:
        self._journal.put_aside(row.id, row.set, kind, reason, 1, SERVER)
        self._tally.give_up(row.set, kind, _prompt_work(row.input_ids))


def _prompt_work(input_ids: list[int]) -> float:
    return PROMPT_COST * len(input_ids)
