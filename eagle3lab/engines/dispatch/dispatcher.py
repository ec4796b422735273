"""Sends every row that is not settled to whoever has room, and settles it in the journal: done, or set aside.

One task a request and one that starts them; state changes only between the awaits of one event loop, so there are no
locks. A row is in exactly one place: waiting, on its way, suspect, or settled.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, suppress

from eagle3lab.engines.base import Completion, ContextError
from eagle3lab.engines.dispatch.backend import Backend
from eagle3lab.engines.dispatch.journal import Journal
from eagle3lab.engines.dispatch.policy import GaveUp, Policy
from eagle3lab.engines.dispatch.servers import Pool, Server
from eagle3lab.engines.dispatch.tally import Tally
from eagle3lab.engines.dispatch.view import View, ViewClock, view_of
from eagle3lab.engines.dispatch.work import Row, Sampling, Waiting, Work, survey
from eagle3lab.engines.servers.errors import RequestRefused, ServerGone

LONGEST_SLEEP_S = 1.0  # between two looks at pauses, deadlines and the disk
ALONE_TRIES = 2


class Dispatcher:
    """One dispatch over a journal that was just opened; `views` runs it. Raises WorkError as `survey`."""

    def __init__(
        self,
        works: Sequence[Work],
        backends: Sequence[Backend],
        journal: Journal,
        policy: Policy,
        sampling: Sampling,
        retry_set_aside: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._journal, self._policy, self._sampling, self._clock = journal, policy, sampling, clock
        set_of, counts = survey(works)
        aside = {} if retry_set_aside else journal.set_aside
        self._tally = Tally(works, counts, clock())
        self._tally.restore(journal.done, aside, set_of)
        self._waiting = Waiting(works, journal.done.keys() | aside.keys(), policy.pilot)
        self._pool = Pool(backends, [work.partition for work in works], policy, clock)
        self._pool.changed = self._stir
        self._suspects: deque[Row] = deque()
        self._requests: set[asyncio.Task] = set()
        self._alone = False
        self._again = 0
        self._last_reason = "nothing was answered"
        self._broken: BaseException | None = None
        self._sync: asyncio.Task | None = None
        self._wake = asyncio.Event()
        self._view_clock = ViewClock(clock)

    async def views(self) -> AsyncIterator[View]:
        """Runs the dispatch; yields a view now and then, and one at the end.

        Raises GaveUp as the policy says, OSError when the journal cannot be written. Closing the iterator cancels
        what is on its way; those rows wait for the next dispatch.
        """
        async with AsyncExitStack() as stack:
            for server in self._pool.servers:
                await stack.enter_async_context(server.backend)
            work = asyncio.create_task(self._work())
            try:
                while not work.done():
                    await asyncio.wait([work], timeout=self._view_clock.gap())
                    if not work.done():
                        yield self._view()
                work.result()
                yield self._view()
            finally:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)

    def _view(self) -> View:
        left = self._view_clock.time_left(self._tally, self._policy.stream_tok_s)
        return view_of(self._tally, self._clock(), left, self._again, self._pool.views())

    async def _work(self) -> None:
        try:
            while not self._finished():
                self._wake.clear()
                self._start_rows()
                self._check_patience()
                self._keep_synced()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), self._sleep())
        finally:
            for task in self._requests:
                task.cancel()
            await asyncio.gather(*self._requests, *([self._sync] if self._sync else []), return_exceptions=True)
            await self._pool.close()
            self._journal.sync()

    def _finished(self) -> bool:
        if self._broken:
            raise self._broken
        return not (self._requests or self._suspects) and self._none_waits()

    def _none_waits(self) -> bool:
        return self._waiting.peek(self._clock()) is None and self._waiting.next_due() is None

    def _sleep(self) -> float:
        """Until the next pause of a row or server is over. One that is over already waits for room, which wakes us."""
        now = self._clock()
        dues = (self._waiting.next_due(), self._pool.next_trial())
        return min([LONGEST_SLEEP_S, *(due - now for due in dues if due is not None and due > now)])

    def _start_rows(self) -> None:
        if self._alone:
            return
        while (row := self._waiting.peek(self._clock())) is not None:
            if (server := self._pool.for_row(row)) is None:
                return
            self._send(server, self._waiting.take(self._clock()))
        if self._suspects and not self._requests and self._none_waits():
            if (server := self._pool.for_row(self._suspects[0])) is not None:
                self._alone = True
                self._send(server, self._suspects.popleft())

    def _check_patience(self) -> None:
        gone, refused = self._pool.gone_for(), self._pool.all_refuse() and not self._requests
        if gone > self._policy.deadline_s or refused:
            why = "every request is refused" if refused else f"no server for {gone:.0f} s"
            raise GaveUp(
                f"{why}, the last: {self._last_reason}. {self._tally.waiting:,} rows wait; what is finished is in "
                f"{self._journal.folder}. Mend the cause and start again; retry_set_aside asks for refused rows, too"
            )

    def _send(self, server: Server, row: Row) -> None:
        self._pool.take(server, row)
        self._tally.start(row.set, row.id, self._clock())
        task = asyncio.create_task(self._request(server, row))
        self._requests.add(task)
        task.add_done_callback(lambda ended: self._ended(ended, server, row))

    def _ended(self, task: asyncio.Task, server: Server, row: Row) -> None:
        self._requests.discard(task)
        self._pool.leave(server, row)
        self._alone = False
        if not task.cancelled() and task.exception():
            self._broken = self._broken or task.exception()
        self._stir()

    async def _request(self, server: Server, row: Row) -> None:
        try:
            async with asyncio.timeout(row.partition.timeout_s):
                completion = await server.backend.generate(self._sampling.request(row))
            _check(completion, row)
        except Exception as error:  # whatever it is, it must not end the dispatch
            self._tally.release(row.set, row.id, self._clock())
            await self._without_answer(server, row, error)
        else:
            self._pool.good(server)
            self._journal.add(row.set, completion, server.backend.name)
            length, reason = len(completion.output_ids), completion.finish_reason
            self._tally.finish(row.set, row.id, length, reason, self._clock())

    async def _without_answer(self, server: Server, row: Row, error: Exception) -> None:
        """Whose fault it was, and where the row goes: back to waiting, among the suspects, or aside."""
        reason = self._last_reason = _words(error, row)
        refused = isinstance(error, RequestRefused)
        if isinstance(error, ContextError):
            self._set_aside(server, row, "context", reason)
        elif not refused and not await self._pool.is_there(server):
            self._lost(server, row, reason)
        elif not self._pool.is_bad(server, refused):
            self._put_back(server, row, self._policy.longest_probe_s)  # others go first
        elif isinstance(error, ServerGone):
            self._lost(server, row, reason)
        elif refused and (row.refused or len(self._pool.servers) == 1):
            self._set_aside(server, row, "refused", reason)
        elif refused:
            row.refused += 1
            self._put_back(server, row, 0.0)
        elif row.failures == self._policy.retries:
            row.failures += 1
            self._set_aside(server, row, "timeout" if isinstance(error, TimeoutError) else "failed", reason)
        else:
            row.failures += 1
            self._put_back(server, row, self._policy.pause_s * 4 ** (row.failures - 1))

    def _lost(self, server: Server, row: Row, reason: str) -> None:
        row.lost += 1
        row.lost_alone += self._alone
        if row.lost_alone >= ALONE_TRIES:
            self._set_aside(server, row, "lost", f"its server went down, twice with this row alone: {reason}")
        elif row.lost >= self._policy.lost:
            self._suspects.append(row)
        else:
            self._put_back(server, row, 0.0)

    def _put_back(self, server: Server, row: Row, pause: float) -> None:
        row.avoid = server
        self._again += 1
        self._waiting.put_back(row, self._clock() + pause)

    def _set_aside(self, server: Server, row: Row, kind: str, reason: str) -> None:
        tries = max(1, row.failures + row.lost + row.refused)
        self._journal.put_aside(row.id, row.set, kind, reason, tries, server.backend.name)
        self._tally.give_up(row.set, kind)

    def _keep_synced(self) -> None:
        if self._sync and self._sync.done():
            self._sync.result()
            self._sync = None
        if self._sync is None and self._journal.due():
            self._sync = asyncio.create_task(asyncio.to_thread(self._journal.sync))

    def _stir(self) -> None:
        self._wake.set()


def _words(error: Exception, row: Row) -> str:
    if isinstance(error, TimeoutError):
        return f"row {row.id!r}: no answer within {row.partition.timeout_s:g} s"
    return f"{type(error).__name__}: {error}"


def _check(completion: Completion, row: Row) -> None:
    """An answer to another row, or one longer than asked for, is no answer."""
    if completion.id != row.id or len(completion.output_ids) > row.partition.max_tokens:
        raise ValueError(
            f"row {row.id!r} got an answer to {completion.id!r} of {len(completion.output_ids)} tokens, at most "
            f"{row.partition.max_tokens} were asked for"
        )
