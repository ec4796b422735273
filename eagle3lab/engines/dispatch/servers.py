"""The servers of a dispatch: how much each has to do, and whether it is there and well."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import lcm

from eagle3lab.engines.dispatch.backend import Backend
from eagle3lab.engines.dispatch.policy import Policy
from eagle3lab.engines.dispatch.view import ServerView
from eagle3lab.engines.dispatch.work import Partition, Row

ALIVE_S = 15.0  # longest wait for a server to say that it is there


@dataclass(eq=False)
class Server:
    """One backend. `load`: in units of which a server has `Pool.room`. `bad`: requests it refused or failed since
    its last answer; `refuses`: the last of them was a refusal."""

    backend: Backend
    load: int = 0
    on_way: int = 0
    answered: int = 0
    up: bool = True
    bad: int = 0
    refuses: bool = False
    pause: float = 0.0
    trial_at: float = 0.0
    probe: asyncio.Task | None = None
    revival: asyncio.Task | None = None


class Pool:
    """Shares rows out to whoever has most room. `changed` is called when a server comes back.

    A row takes 1 / (its partition's concurrency) of a server, so rows of two partitions fit beside each other and a
    server never has more than its concurrency of one.
    """

    def __init__(
        self, backends: Sequence[Backend], partitions: Sequence[Partition], policy: Policy, clock: Callable[[], float]
    ):
        if not backends:
            raise ValueError("no server to send the rows to")
        self.servers = [Server(backend) for backend in backends]
        self.room = lcm(*(partition.concurrency for partition in partitions))
        self.changed: Callable[[], None] = lambda: None
        self._policy, self._clock = policy, clock
        self._gone_since: float | None = None

    def for_row(self, row: Row) -> Server | None:
        """The server with the most room for this row, if possible another than the one it failed on; None when
        none that is ready has enough."""
        ready = [server for server in self.servers if self._is_ready(server)]
        ready = [server for server in ready if server is not row.avoid] or ready
        best = min(ready, key=lambda server: server.load, default=None)
        return best if best and best.load + self._units(row) <= self.room else None

    def take(self, server: Server, row: Row) -> None:
        """The row's request is sent to the server."""
        server.load += self._units(row)
        server.on_way += 1

    def leave(self, server: Server, row: Row) -> None:
        """The request ended."""
        server.load -= self._units(row)
        server.on_way -= 1

    def good(self, server: Server) -> None:
        """The server answered: whatever was wrong with it is over."""
        server.answered += 1
        server.bad = 0
        self._gone_since = None

    def is_bad(self, server: Server, refused: bool) -> bool:
        """The server refused or failed a request; whether the row is to blame, and not a server that is sick."""
        server.bad += 1
        server.refuses = refused
        if not self._is_sick(server):
            return True
        first = server.bad == self._policy.bad_in_a_row
        server.pause = self._policy.probe_s if first else min(2 * server.pause, self._policy.longest_probe_s)
        server.trial_at = self._clock() + server.pause
        return False

    async def is_there(self, server: Server) -> bool:
        """Whether the server can be reached, after a request to it failed; asked once for all that fail together."""
        if not server.up:
            return False
        if server.probe is None:
            server.probe = asyncio.create_task(self._alive(server))
            server.probe.add_done_callback(lambda _: setattr(server, "probe", None))
        there = await asyncio.shield(server.probe)
        if not there and server.up:
            server.up = False
            server.revival = asyncio.create_task(self._revive(server))
        return there

    def gone_for(self) -> float:
        """Seconds without any server that is up and well, and without an answer since; 0 while one has work."""
        if any(server.on_way or (server.up and not self._is_sick(server)) for server in self.servers):
            return 0.0
        if self._gone_since is None:
            self._gone_since = self._clock()
        return self._clock() - self._gone_since

    def next_trial(self) -> float | None:
        """When a sick server gets its next row; None when none waits for it."""
        now = self._clock()
        waiting = (s.trial_at for s in self.servers if s.up and self._is_sick(s) and s.on_way == 0)
        return min((at for at in waiting if at > now), default=None)

    def all_refuse(self) -> bool:
        """Whether every server is sick with refusals and none ever answered."""
        return all(self._is_sick(server) and server.refuses and not server.answered for server in self.servers)

    def views(self) -> list[ServerView]:
        """What a view shows of the servers."""
        return [ServerView(s.backend.name, s.up and not self._is_sick(s), s.on_way, s.answered) for s in self.servers]

    async def close(self) -> None:
        """End what looks after servers that are gone."""
        tasks = [task for server in self.servers for task in (server.probe, server.revival) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _units(self, row: Row) -> int:
        return self.room // row.partition.concurrency

    def _is_sick(self, server: Server) -> bool:
        return server.bad >= self._policy.bad_in_a_row

    def _is_ready(self, server: Server) -> bool:
        return server.up and (not self._is_sick(server) or (server.on_way == 0 and self._clock() >= server.trial_at))

    async def _alive(self, server: Server) -> bool:
        try:
            async with asyncio.timeout(ALIVE_S):
                return await server.backend.alive()
        except TimeoutError:
            return False

    async def _revive(self, server: Server) -> None:
        pause = self._policy.probe_s
        while True:
            await asyncio.sleep(pause)
            if await self._alive(server):
                server.up = True
                self.changed()
                return
            pause = min(2 * pause, self._policy.longest_probe_s)
