"""A server of any engine as a context manager: checked, launched, ready, and gone without a trace at the end."""

from __future__ import annotations

import atexit
import os
import signal
import tempfile
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from eagle3lab.engines.servers.findings import Finding, LaunchRefused, faults
from eagle3lab.engines.servers.process import PATIENCE_S, ServerProcess, ServerStartError, free_port, port_is_free

HOST = "127.0.0.1"
DEADLINE_S = 600.0
# of the lab's own environment: they would make the server's Python import the lab's packages, or draw for a notebook
_NOT_INHERITED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "MPLBACKEND")


class LaunchedServer(ABC):
    """A server on a free port of 127.0.0.1. Nothing is started before `with` or `start()`.

    spec: what to serve, the engine's own. python: interpreter of an environment that has the engine (`own_python`).
    log: file to append to, None: in the temporary folder. deadline_s: seconds until it must be ready.
    port: None for a free one, which is kept over `restart`.
    unguarded: launch in spite of faults that the guards find, to show what happens then.
    """

    name: str  # of the log file
    own_python: Path  # where `make` installs the engine

    @property
    def end_signal(self) -> signal.Signals:
        """What asks the server to end."""
        return signal.SIGTERM

    def __init__(
        self,
        spec: Any,
        python: str | Path | None = None,
        log: str | Path | None = None,
        deadline_s: float = DEADLINE_S,
        port: int | None = None,
        unguarded: bool = False,
    ):
        self.spec, self.deadline_s, self.unguarded = spec, deadline_s, unguarded
        self.python = os.path.abspath(python or self.own_python)
        self.port = port or free_port()
        self.log = Path(log) if log else Path(tempfile.gettempdir()) / f"{self.name}-{os.getpid()}-{self.port}.log"
        self.findings: list[Finding] = []
        self._process: ServerProcess | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Of the server's first process, None when it is not started."""
        return self._process.pid if self._process else None

    def alive(self) -> bool:
        """Does the server's first process run. It ends when one of its other processes dies."""
        return self._process is not None and self._process.alive()

    @abstractmethod
    def _check(self) -> None:
        """The engine's guards: hands its findings to `_refuse_or_warn`."""

    @abstractmethod
    def _command(self) -> tuple[list[str], dict[str, str]]:
        """What follows the interpreter, checked, and the environment."""

    def start(self) -> Self:
        """Checks, launches and waits until it is ready; on any exception nothing is left running.

        Raises LaunchRefused (the guards found faults), ServerStartError (the port is taken, it died, or was not ready
        in time), and what the engine's own checks raise.
        """
        if self.alive():
            return self
        self._check()
        if not port_is_free(self.port, HOST):  # its present owner would be taken for this server
            raise ServerStartError(f"port {self.port} of {HOST} is taken: give another, or none for a free one")
        arguments, environment = self._command()
        process = ServerProcess([self.python, *arguments], environment, self.log)
        atexit.register(self.stop)  # a notebook kernel that ends without leaving the `with`
        self._process = process
        try:
            process.start()
            process.wait_ready(self.url, self.deadline_s)
        except BaseException:  # a KeyboardInterrupt too: nobody else knows of the processes
            self.stop()
            raise
        return self

    def stop(self, patience_s: float = PATIENCE_S) -> None:
        """Ends the server and everything it started. Safe to call twice."""
        if self._process is not None:
            self._process.stop(patience_s, self.end_signal)
            self._process = None
            atexit.unregister(self.stop)

    def restart(self) -> Self:
        """A new server of the same specification on the same port, whether the old one lives or not."""
        self.stop()
        return self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _refuse_or_warn(self, findings: Iterable[Finding]) -> None:
        self.findings = list(findings)
        if (found := faults(self.findings)) and not self.unguarded:
            raise LaunchRefused(found)
        for finding in self.findings:
            warnings.warn(str(finding), stacklevel=5)

    def _inherited(self) -> dict[str, str]:
        """This process's environment as the server gets it."""
        inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        # what the server compiles at its start needs the tools of its own environment
        inherited["PATH"] = os.pathsep.join([os.path.dirname(self.python), inherited.get("PATH", os.defpath)])
        return inherited
