"""The SGLang engine: the same questions as the embedded one, answered by servers over HTTP."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from eagle3lab.engines.base import Completion, Features, Request
from eagle3lab.engines.servers.engine import CAPTURE_ROWS, UNKNOWN_CONTEXT, ServedEngine, without_verifications
from eagle3lab.engines.servers.errors import ServerGone
from eagle3lab.engines.servers.model_files import is_local, read_target
from eagle3lab.engines.sglang.attach import ServerInfo
from eagle3lab.engines.sglang.blocking import generate_all, generate_in_order
from eagle3lab.engines.sglang.capture import capture_states
from eagle3lab.engines.sglang.pool import ForeignServer, OwnServers, Running, Speculation
from eagle3lab.engines.sglang.server import PYTHON
from eagle3lab.engines.sglang.spec import ServerSpec
from eagle3lab.engines.sglang.wire import Answer


class SGLangEngine(ServedEngine):
    """Answers from SGLang servers: of a ServerSpec, started when they are needed, or the one that runs at a URL.

    aux_layers   of a URL, the default is what it was started for.
    target       folder of the target, when the server's own path of it is none here.
    capture_folder   of a URL: the capture folder it was started with.
    python, logs, max_servers   as `OwnServers`; the others as `ServedEngine`.

    `servers` says which of them answers what (pool.py).
    """

    def __init__(
        self,
        server: ServerSpec | str,
        end_ids: Collection[int] | None = None,
        aux_layers: Iterable[int] | None = None,
        target: str | Path | None = None,
        capture_folder: str | Path | None = None,
        retries: int = 5,
        timeout_s: float = 600.0,
        python: str | Path = PYTHON,
        logs: str | Path | None = None,
        max_servers: int = 1,
    ):
        layers = None if aux_layers is None else list(aux_layers)
        if isinstance(server, ServerSpec):
            servers = OwnServers(server, layers, python, logs, max_servers)
        else:
            servers = ForeignServer(server, capture_folder)
        folder = target or (server.target if isinstance(server, ServerSpec) else servers.target)
        if not is_local(str(folder)):
            raise ValueError(f"target {str(folder)!r} is no folder here: give target, a copy of the server's target")
        chosen = servers.aux_layers if layers is None else layers
        super().__init__(servers, read_target(folder), end_ids, chosen, retries, timeout_s)

    def generate(
        self, requests: Iterable[Request], batch_size: int = 64, streamed: bool = False
    ) -> Iterator[Completion]:
        """Yields completions as they end; `batch_size` requests are on their way at the same time.

        `seconds` and `first_seconds` (of `streamed` answers) hold the wait in the server's queue. Raises ValueError /
        ContextError naming the row, before anything runs; errors of `Client.generate`. Sampled requests are
        reproducible only on a server with --enable-deterministic-inference; elsewhere a warning says so.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}, at least 1 is needed")
        requests = self._checked(requests, self.facts.context)
        if requests:
            server = self.servers.plain()
            info = self._check_room(server, requests)
            if any(r.temperature > 0 for r in requests) and not info.arguments.get("enable_deterministic_inference"):
                text = f"{server.url} does not keep to seeds: sampled answers will differ from run to run"
                warnings.warn(f"{text}; start it with --enable-deterministic-inference", stacklevel=2)
            yield from map(without_verifications, self._ask(server, requests, batch_size, ordered=streamed))

    def speculate(
        self,
        draft: str | Path,
        requests: Iterable[Request],
        num_steps: int = 3,
        topk: int = 1,
        num_draft_tokens: int | None = None,
        batch_size: int = 1,
        ordered: bool = True,
    ) -> Iterator[Answer]:
        """Yields answers decoded with the drafter of folder `draft`; the output is that of `generate`: the same when
        greedy, distributed alike when sampled (on GPUs only: a CPU server verifies greedily whatever the temperature).

        topk above 1 with num_draft_tokens is a tree. `accepted` is None where `ordered` is False, and where the server
        merges verifications on the way, alone too (`stats.accepts_in_order`); `stats` are always the server's own
        counts. Raises ValueError for num_steps < 1 and for a sampled request on a CPU, LaunchRefused for a drafter that
        does not fit, else as `generate`.
        """
        if num_steps < 1 or batch_size < 1:
            raise ValueError(f"num_steps={num_steps} and batch_size={batch_size}: at least 1 is needed")
        requests = self._checked(requests, self.facts.context)
        if requests:
            server = self.servers.speculating(Speculation(str(draft), num_steps, topk, num_draft_tokens))
            info = self._check_room(server, requests)
            warm = next((request for request in requests if request.temperature > 0), None)
            if warm is not None and info.device == "cpu":
                raise ValueError(
                    f"row {warm.id!r}: temperature={warm.temperature}, but a server on a CPU verifies drafts greedily "
                    "whatever the temperature: ask at 0, or serve on a GPU"
                )
            yield from self._ask(server, requests, batch_size, ordered)

    def capture(self, rows: Iterable[tuple[str, list[int]]], batch_tokens: int = 4096) -> Iterator[Features]:
        """Yields the states of (id, input_ids) rows, in the target's dtype, in any order. The server makes its own
        batches: `batch_tokens` is not used. Raises ValueError / ContextError naming the row; see `capture_states`."""
        rows = iter(rows)
        if (first := next(rows, None)) is not None:
            server, folder = self.servers.capturing()
            positions = max_positions(server.info(), self.facts.context)
            checked = self._checked_rows(first, rows, positions)
            try:
                yield from capture_states(server.url, folder, checked, CAPTURE_ROWS, self._options["timeout_s"])
            except ServerGone as gone:
                raise self.servers.told(server, gone) from gone

    def _check_room(self, server: Running, requests: list[Request]) -> ServerInfo:
        """The server may have been started with less context than its target has."""
        info = server.info()
        self._checked(requests, max_positions(info, self.facts.context))
        return info

    def _ask(self, server: Running, requests, concurrency: int, ordered: bool) -> Iterator[Answer]:
        options = {"end_ids": self.end_ids, "concurrency": concurrency, **self._options}
        try:
            yield from (generate_in_order if ordered else generate_all)(server.url, requests, **options)
        except ServerGone as gone:
            raise self.servers.told(server, gone) from gone


def max_positions(info: ServerInfo, target_context: int | None) -> int:
    """How many tokens prompt and answer may hold together on this server (SGLang 0.5: two fewer than its context, or
    what its cache holds). A server silently cuts an answer that would need more."""
    longest_prompt = info.arguments.get("max_req_input_len")
    if longest_prompt is not None:
        return longest_prompt + 4  # the server keeps 5 for the answer, and one position free
    return (info.context_length or target_context or UNKNOWN_CONTEXT) - 2
