"""Servers that were started when they were needed, and are kept for the next question of their kind."""

from __future__ import annotations

import os
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path

from eagle3lab.engines.servers.errors import ServerGone
from eagle3lab.engines.servers.launched import LaunchedServer


class KeptServers:
    """At most `max_servers` at a time; the one that was used longest ago is ended for a new one, so do not begin with a
    second kind while answers of the first are still on their way. make(spec, log): a server that is not started.
    logs: folder of their logs."""

    def __init__(self, make: Callable[..., LaunchedServer], logs: str | Path | None, max_servers: int):
        if max_servers < 1:
            raise ValueError(f"max_servers={max_servers}, at least 1 is needed")
        self._make, self._logs, self._max_servers = make, logs, max_servers
        self._running: OrderedDict[Hashable, LaunchedServer] = OrderedDict()
        self._scratch: tempfile.TemporaryDirectory | None = None
        self._started = 0

    def run(self, spec: Hashable) -> LaunchedServer:
        """The running server of this specification; started when there is none, begun anew when it has died."""
        server = self._running.pop(spec, None)
        if server is not None and not server.alive():
            server.stop()  # what is left of its processes
            server = None
        if server is None:
            while len(self._running) >= self._max_servers:
                self._running.popitem(last=False)[1].stop()
            self._started += 1
            log = Path(self._logs) / f"server-{os.getpid()}-{self._started}.log" if self._logs else None
            server = self._make(spec, log).start()
        self._running[spec] = server
        return server

    def scratch(self) -> str:
        """A folder for what servers capture, removed by `close`."""
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="eagle3lab-capture-")
        return self._scratch.name

    def told(self, server, gone: ServerGone) -> ServerGone:
        """The error with the end of the server's log, when it was one of these and is dead: the next call starts a new
        one."""
        if server not in self._running.values() or server.alive():
            return gone
        text = f"{gone}\nthe server has ended (log {server.log}); ask again for what is missing, a new one is started"
        return ServerGone(text, gone.url, gone.row_id)

    def close(self) -> None:
        """Ends all servers."""
        while self._running:
            self._running.popitem()[1].stop()
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None
