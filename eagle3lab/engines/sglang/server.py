"""An SGLang server as a context manager: checked, launched, ready, and gone without a trace at the end.

`with SGLangServer(spec, log="server.log") as server:` gives `server.url`, `server.info()`, `server.alive()`.
"""

from __future__ import annotations

import atexit
import os
import tempfile
import warnings
from pathlib import Path

from eagle3lab.engines.sglang.arguments import HOST, join_environments, launch_arguments, launch_environment
from eagle3lab.engines.sglang.attach import ServerInfo, server_info
from eagle3lab.engines.sglang.findings import Finding, LaunchRefused, faults
from eagle3lab.engines.sglang.guards import before_launch
from eagle3lab.engines.sglang.process import PATIENCE_S, ServerProcess, ServerStartError, free_port, port_is_free
from eagle3lab.engines.sglang.release import check_arguments, installed_release
from eagle3lab.engines.sglang.spec import ServerSpec

PYTHON = Path(__file__).resolve().parents[3] / ".venv-sglang" / "bin" / "python"
DEADLINE_S = 600.0
# of the lab's own environment: they would make the server's Python import the lab's packages, or draw for a notebook
_NOT_INHERITED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "MPLBACKEND")


class SGLangServer:
    """A server of this specification on a free port of 127.0.0.1. Nothing is started before `with` or `start()`.

    python: interpreter of the environment that has SGLang. log: file to append to, None: in the temporary folder.
    deadline_s: seconds until it must be ready. port: None for a free one, which is kept over `restart`.
    unguarded: launch in spite of faults that the guards find, to show what happens then.
    """

    def __init__(
        self,
        spec: ServerSpec,
        python: str | Path = PYTHON,
        log: str | Path | None = None,
        deadline_s: float = DEADLINE_S,
        port: int | None = None,
        unguarded: bool = False,
    ):
        self.spec, self.python, self.deadline_s, self.unguarded = spec, os.path.abspath(python), deadline_s, unguarded
        self.port = port or free_port()
        self.log = Path(log) if log else Path(tempfile.gettempdir()) / f"sglang-{os.getpid()}-{self.port}.log"
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
        """Does the server's first process run. SGLang ends it when one of its other processes dies."""
        return self._process is not None and self._process.alive()

    def info(self) -> ServerInfo:
        """What the server says of itself. Raises ServerGone, ServerFault or BadAnswer."""
        return server_info(self.url)

    def start(self) -> SGLangServer:
        """Checks, launches and waits until it is ready; on any exception nothing is left running.

        Raises LaunchRefused (the guards found faults), ArgumentsRefused (the installed release does not take the
        arguments), ServerPythonError, CpuKernelsMissing, ServerStartError (the port is taken, it died, or was not ready
        in time).
        """
        if self.alive():
            return self
        version = installed_release(self.python).version
        self._guard(version)
        if not port_is_free(self.port, HOST):  # its present owner would be taken for this server
            raise ServerStartError(f"port {self.port} of {HOST} is taken: give another, or none for a free one")
        arguments = launch_arguments(self.spec, version, self.port)
        environment = self._environment()
        check_arguments(self.python, arguments, environment)
        process = ServerProcess([self.python, "-m", "sglang.launch_server", *arguments], environment, self.log)
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
            self._process.stop(patience_s)
            self._process = None
            atexit.unregister(self.stop)

    def restart(self) -> SGLangServer:
        """A new server of the same specification on the same port, whether the old one lives or not."""
        self.stop()
        return self.start()

    def __enter__(self) -> SGLangServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _guard(self, version: str) -> None:
        self.findings = before_launch(self.spec, version)
        if (found := faults(self.findings)) and not self.unguarded:
            raise LaunchRefused(found)
        for finding in self.findings:
            warnings.warn(str(finding), stacklevel=4)

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        # what the server compiles at its start needs the tools of its own environment
        inherited["PATH"] = os.pathsep.join([os.path.dirname(self.python), inherited.get("PATH", os.defpath)])
        capture: dict[str, str] = {}
        if self.spec.capture_folder:
            from eagle3lab.engines.sglang.capture import plugin_environment  # torch, only where it is needed

            capture = plugin_environment(self.spec.capture_folder)
        return join_environments(inherited, capture, launch_environment(self.spec))
