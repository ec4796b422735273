"""A server as a group of processes: started with a log, watched until it is ready, ended with all that it started.

The server gets a session of its own, so that Ctrl-C in a terminal or notebook does not reach it before its owner does,
and the mark `EAGLE3LAB_SERVER=<owner's pid>:<owner's start time>:<token>` in its environment, which its children
inherit: by it the doctor finds servers whose owner is gone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from eagle3lab.engines.servers.errors import ServerError, ServerGone
from eagle3lab.engines.servers.http import answer

SERVER_VARIABLE = "EAGLE3LAB_SERVER"
PATIENCE_S = 15.0  # between the signal that asks and SIGKILL; an idle SGLang server takes six seconds after SIGTERM
POLL_S = 0.2
_KILL_S = 20.0  # a killed process that holds a GPU takes seconds to go
_TAIL_LINES, _TAIL_CHARACTERS = 30, 6000
_PORTS = range(21000, 32000)  # below the ports that Linux gives to outgoing connections


class ServerStartError(ServerError):
    """A server that died or was not ready in time. Holds the end of its log."""


class ServerProcess:
    """One server process and its descendants; `start` after `stop` starts it anew. The log is appended to."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], log: str | Path):
        self.command, self.environment, self.log = list(command), dict(environment), Path(log)
        self._process: subprocess.Popen | None = None
        self._log_start = 0
        self._mark = f"{os.getpid()}:{psutil.Process().create_time():.2f}:{secrets.token_hex(8)}"

    @property
    def pid(self) -> int | None:
        """Of the first process, which is also the number of its group. None when never started."""
        return self._process.pid if self._process else None

    def alive(self) -> bool:
        """Does the first process run."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts the process and returns at once. Raises ServerStartError when the command cannot be run."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as log:
            self._log_start = log.tell()
            try:
                self._process = subprocess.Popen(
                    self.command, env={**self.environment, SERVER_VARIABLE: self._mark},
                    stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise ServerStartError(f"{self.command[0]} cannot be run: {error}") from error

    def wait_ready(self, url: str, deadline_s: float) -> None:
        """Waits until `url`/health answers 200. ServerStartError as soon as the process ends, or after deadline_s."""
        end = time.monotonic() + deadline_s
        last = "nothing listened"
        while True:
            if not self.alive():
                raise ServerStartError(f"the server ended {self._end()} before it was ready\n{self.tail()}", url)
            try:
                status, _ = answer(url, "/health", timeout_s=max(1.0, min(30.0, end - time.monotonic())))
                if status == 200:
                    return
                last = f"/health answered {status}"
            except ServerGone as gone:
                last = str(gone)
            if time.monotonic() > end:
                raise ServerStartError(f"the server was not ready after {deadline_s:g} s ({last})\n{self.tail()}", url)
            time.sleep(POLL_S)

    def _end(self) -> str:
        code = self._process.returncode if self._process else None
        return f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with code {code}"

    def tail(self) -> str:
        """The last lines that this start has logged, under the log's name."""
        with open(self.log, "rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, end - _TAIL_CHARACTERS))
            lines = log.read().decode("utf-8", "replace").splitlines()[-_TAIL_LINES:]
        return f"--- end of {self.log}\n" + "\n".join(lines or ["(empty)"])

    def stop(self, patience_s: float = PATIENCE_S, by: signal.Signals = signal.SIGTERM) -> None:
        """The signal `by` to the first process, which ends its own children in order; after `patience_s` SIGKILL to
        whatever is left of the group or carries the mark. Returns when nothing is left; ServerError when something
        cannot be ended.
        """
        try:
            if self.alive():
                self._process.send_signal(by)
                self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            pass
        finally:  # an interrupt while waiting must not leave it running
            self._kill_rest()

    def _kill_rest(self) -> None:
        end = time.monotonic() + _KILL_S
        while left := self.members():  # asked again: a process may start another one while it is ended
            if time.monotonic() > end:
                raise ServerError(f"processes {[p.pid for p in left]} of the server (log {self.log}) cannot be ended")
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            time.sleep(0.05)
        self.alive()  # reaps the first process

    def members(self) -> list[psutil.Process]:
        """Living processes of the server: of its group, or with its mark (a child may have left the group)."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and self._owns(process):
                    found.append(process)
            except (psutil.Error, OSError):
                continue  # ended meanwhile, or another user's
        return found

    def _owns(self, process: psutil.Process) -> bool:
        if os.getpgid(process.pid) == self.pid:
            return True
        return process.environ().get(SERVER_VARIABLE) == self._mark


def leftover_servers() -> list[psutil.Process]:
    """Living first processes of servers whose owner is gone: it was killed before it could end them."""
    found = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(SERVER_VARIABLE)
            first = os.getpgid(process.pid) == process.pid
            if mark and first and process.status() != psutil.STATUS_ZOMBIE and not _owner_lives(mark):
                found.append(process)
        except (psutil.Error, OSError):
            continue  # ended meanwhile, or another user's
    return found


def _owner_lives(mark: str) -> bool:
    pid, started, _ = mark.split(":")
    try:
        return abs(psutil.Process(int(pid)).create_time() - float(started)) < 1.0  # else the number was given anew
    except psutil.Error:
        return False


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody listens on, drawn at random, so that two that look at the same time hardly ever draw the same."""
    for _ in range(100):
        port = secrets.choice(_PORTS)
        if port_is_free(port, host):
            return port
    raise ServerError(f"no free port among 100 tried in {_PORTS.start}..{_PORTS.stop - 1}")


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Can a server listen there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
