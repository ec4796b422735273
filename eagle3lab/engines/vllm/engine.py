"""The vLLM engine: the same questions as the embedded one, answered by servers that are started when needed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterable, Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path

from eagle3lab.engines.base import Completion, Features, Request
from eagle3lab.engines.servers.engine import CAPTURE_ROWS, ServedEngine, config_end_ids, without_verifications
from eagle3lab.engines.servers.errors import ServerGone
from eagle3lab.engines.servers.kept import KeptServers
from eagle3lab.engines.servers.model_files import is_local, read_target
from eagle3lab.engines.vllm.client import answer_all
from eagle3lab.engines.vllm.server import PYTHON, VllmServer
from eagle3lab.engines.vllm.spec import VllmSpec
from eagle3lab.engines.vllm.wire import VllmAnswer


class VllmEngine(ServedEngine):
    """Answers from vLLM servers of one specification. A server is started at its first use: one that answers, one for
    every chain, one that captures. python, logs, max_servers: as `VllmServer` and `KeptServers`; the others as
    `ServedEngine`.
    """

    def __init__(
        self,
        spec: VllmSpec,
        end_ids: Collection[int] | None = None,
        aux_layers: Iterable[int] | None = None,
        retries: int = 5,
        timeout_s: float = 600.0,
        python: str | Path = PYTHON,
        logs: str | Path | None = None,
        max_servers: int = 1,
    ):
        if not is_local(spec.target):
            raise ValueError(f"target {spec.target!r} is no folder here: resolve it first")
        layers = None if aux_layers is None else tuple(aux_layers)
        facts = read_target(spec.target)
        servers = KeptServers(lambda spec, log: VllmServer(spec, python, log), logs, max_servers)
        super().__init__(servers, facts, end_ids, layers or spec.aux_layers, retries, timeout_s)
        self.spec = replace(spec, draft=None, capture_folder=None, aux_layers=None)
        self._capture_folder = spec.capture_folder

    def with_end_ids(self, end_ids: Collection[int] | None) -> VllmEngine:
        """This engine, its servers shared, with other end tokens (None: the target's own)."""
        other = copy(self)
        other.end_ids = config_end_ids(self.facts.folder) if end_ids is None else frozenset(end_ids)
        return other

    def plain(self) -> VllmServer:
        """The server without a drafter."""
        return self.servers.run(self.spec)

    def speculating(self, draft: str | Path, num_steps: int) -> VllmServer:
        """The server with this drafter. Raises LaunchRefused for one that does not fit the target."""
        return self.servers.run(replace(self.spec, draft=os.path.abspath(draft), num_steps=num_steps))

    def capturing(self) -> VllmServer:
        """The server that captures."""
        folder = self._capture_folder or self.servers.scratch()
        return self.servers.run(replace(self.spec, capture_folder=folder, aux_layers=tuple(self.aux_layers)))

    def generate(
        self, requests: Iterable[Request], batch_size: int = 64, streamed: bool = False
    ) -> Iterator[Completion]:
        """Yields completions as they end; `batch_size` requests are on their way at the same time.

        `seconds` and `first_seconds` (of `streamed` answers) hold the wait in the server's queue. Raises ValueError /
        ContextError naming the row, before anything runs; errors of `PatientClient.generate`. Sampled answers of
        a server on a CPU are not reproducible; a warning says so.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}, at least 1 is needed")
        requests = self._checked(requests, self._context)
        if requests:
            yield from map(without_verifications, self._ask(self.plain(), requests, batch_size, streamed))

    def speculate(
        self,
        draft: str | Path,
        requests: Iterable[Request],
        num_steps: int = 3,
        topk: int = 1,
        num_draft_tokens: int | None = None,
        batch_size: int = 1,
        ordered: bool = True,
    ) -> Iterator[VllmAnswer]:
        """Yields answers decoded with the drafter of folder `draft` in chains of num_steps; the output is that of
        `generate`: the same when greedy, distributed alike when sampled (on GPUs only: on a CPU, vLLM 0.32.0 was seen
        to draw other answers).

        `ordered` answers are streamed, so that they tell `first_seconds`; `accepted` is told either way. Raises
        ValueError for num_steps < 1, for a tree and for a sampled request on a CPU, LaunchRefused for a drafter that
        does not fit, else as `generate`.
        """
        if num_steps < 1 or batch_size < 1:
            raise ValueError(f"num_steps={num_steps} and batch_size={batch_size}: at least 1 is needed")
        if topk != 1 or num_draft_tokens not in (None, num_steps + 1):
            asked = f"topk={topk}, num_draft_tokens={num_draft_tokens}"
            raise ValueError(f"{asked}: vLLM drafts chains (topk=1); serve trees with SGLang")
        requests = self._checked(requests, self._context)
        warm = next((request for request in requests if request.temperature > 0), None)
        if warm is not None and self.spec.device == "cpu":
            raise ValueError(
                f"row {warm.id!r}: temperature={warm.temperature}, but vLLM on a CPU draws other answers with "
                "speculation than without: ask at 0, or serve on a GPU"
            )
        if requests:
            yield from self._ask(self.speculating(draft, num_steps), requests, batch_size, ordered)

    def capture(self, rows: Iterable[tuple[str, list[int]]], batch_tokens: int = 4096) -> Iterator[Features]:
        """Yields the states of (id, input_ids) rows, in the target's dtype, in any order. The server makes its own
        batches: `batch_tokens` is not used. Raises ValueError / ContextError naming the row, ValueError for a target
        that does not end with a plain RMSNorm; see `capture_states`."""
        from eagle3lab.engines.vllm.capture import FinalNorm, capture_states  # torch, only where it is needed

        rows = iter(rows)
        if (first := next(rows, None)) is not None:
            norm, layers = FinalNorm(self.spec.target), self.aux_layers
            server = self.capturing()
            checked = self._checked_rows(first, rows, server.context() - 1)  # one position is the answer's
            order = [sorted(layers).index(layer) for layer in layers]
            try:
                yield from capture_states(server.url, norm, checked, order, CAPTURE_ROWS, self._options["timeout_s"])
            except ServerGone as gone:
                raise self.servers.told(server, gone) from gone

    @property
    def _context(self) -> int | None:
        return self.spec.context_length or self.facts.context

    def _ask(self, server: VllmServer, requests, concurrency: int, ordered: bool) -> Iterator[VllmAnswer]:
        seeded = self.spec.device != "cpu"
        if not seeded and any(request.temperature > 0 for request in requests):
            text = "a vLLM server on a CPU is sent no seeds, which it may die of"
            warnings.warn(f"{text}: sampled answers will differ from run to run", stacklevel=3)
        options = {"end_ids": self.end_ids, "concurrency": concurrency, "ordered": ordered, "seeded": seeded}
        try:
            yield from answer_all(server.url, requests, **options, **self._options)
        except ServerGone as gone:
            raise self.servers.told(server, gone) from gone
