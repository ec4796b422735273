"""An SGLang server as a context manager.

`with SGLangServer(spec, log="server.log") as server:` gives `server.url`, `server.info()`, `server.alive()`.
"""

from __future__ import annotations

import signal
from pathlib import Path

from eagle3lab.engines.servers.launched import LaunchedServer
from eagle3lab.engines.sglang.arguments import join_environments, launch_arguments, launch_environment
from eagle3lab.engines.sglang.attach import ServerInfo, server_info
from eagle3lab.engines.sglang.guards import before_launch
from eagle3lab.engines.sglang.release import check_arguments, installed_release
from eagle3lab.engines.sglang.spec import ServerSpec

PYTHON = Path(__file__).resolve().parents[3] / ".venv-sglang" / "bin" / "python"


class SGLangServer(LaunchedServer):
    """A server of this specification; parameters as `LaunchedServer`.

    `start` also raises ArgumentsRefused (the installed release does not take the arguments), ServerPythonError,
    CpuKernelsMissing.
    """

    name, own_python = "sglang", PYTHON
    spec: ServerSpec

    @property
    def end_signal(self) -> signal.Signals:
        """On a CPU Ctrl-C's: after SIGTERM the server looks every five seconds whether requests are still on their way.
        On GPUs it then also gives back what it holds there, so that is waited for."""
        return signal.SIGINT if self.spec.device == "cpu" else signal.SIGTERM

    def info(self) -> ServerInfo:
        """What the server says of itself. Raises ServerGone, ServerFault or BadAnswer."""
        return server_info(self.url)

    def _check(self) -> None:
        self._refuse_or_warn(before_launch(self.spec, installed_release(self.python).version))

    def _command(self) -> tuple[list[str], dict[str, str]]:
        arguments = launch_arguments(self.spec, installed_release(self.python).version, self.port)
        environment = self._environment()
        check_arguments(self.python, arguments, environment)
        return ["-m", "sglang.launch_server", *arguments], environment

    def _environment(self) -> dict[str, str]:
        capture: dict[str, str] = {}
        if self.spec.capture_folder:
            from eagle3lab.engines.sglang.capture import plugin_environment  # torch, only where it is needed

            capture = plugin_environment(self.spec.capture_folder)
        return join_environments(self._inherited(), capture, launch_environment(self.spec))
