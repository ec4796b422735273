"""Which engine runs a target: chosen once, the same words for the embedded engine, SGLang's servers and vLLM's."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, get_args

from eagle3lab.draft.aux_layers import check_aux_layers, default_aux_layers
from eagle3lab.engines.dispatch.backend import ServerBackend
from eagle3lab.engines.dispatch.embedded import dispatch_embedded
from eagle3lab.engines.dispatch.policy import GaveUp, Policy
from eagle3lab.engines.dispatch.run import dispatch
from eagle3lab.engines.dispatch.view import View
from eagle3lab.engines.dispatch.work import Sampling, Work
from eagle3lab.engines.embedded import EmbeddedEngine
from eagle3lab.engines.servers.model_files import read_target
from eagle3lab.engines.sglang.engine import SGLangEngine
from eagle3lab.engines.sglang.server import PYTHON, SGLangServer
from eagle3lab.engines.sglang.spec import ServerSpec
from eagle3lab.engines.sglang.two import TwoServers
from eagle3lab.engines.vllm.engine import VllmEngine
from eagle3lab.engines.vllm.spec import VllmSpec

__all__ = ["EngineChoice", "Policy", "Sampling"]
Engines = Literal["embedded", "sglang", "vllm"]
Spec = TypeVar("Spec", ServerSpec, VllmSpec)
MOST_RESTARTS = 5  # of a server that was started here and died


@dataclass(frozen=True)
class EngineChoice:
    """How a target is run.

    engine   "embedded" (transformers, in this process), "sglang", or "vllm".
    target   the target's local folder. dtype: of its weights and states. end_ids: tokens that end an answer.
    servers  URLs of SGLang servers that run already; empty: one is started here when it is needed, and ended.
    python, device, options, logs   of a server that is started: its interpreter, "cuda" or "cpu", further flags of
             the engine's server, and the folder of its logs. cuda_graphs: it replays captured graphs (GPUs only).
    trust_remote_code   whoever runs the target may run code that lies in its folder.
    """

    engine: Engines
    target: str | Path
    dtype: str
    end_ids: frozenset[int]
    servers: Sequence[str] = ()
    python: str | Path = PYTHON
    device: str = "cuda"
    options: Sequence[str] = ()
    logs: str | Path | None = None
    trust_remote_code: bool = False
    cuda_graphs: bool = True

    def __post_init__(self) -> None:
        if self.engine not in get_args(Engines):
            raise ValueError(f"engine={self.engine!r} is none of {', '.join(get_args(Engines))}")
        if self.engine != "sglang" and self.servers:
            raise ValueError(
                f"servers={list(self.servers)} are for engine 'sglang'; the {self.engine} engine uses none"
            )

    @property
    def spec(self) -> ServerSpec:
        """The SGLang server that is started here."""
        return self._started_here(ServerSpec)

    @property
    def vllm_spec(self) -> VllmSpec:
        """The vLLM server that is started here."""
        return self._started_here(VllmSpec)

    def _started_here(self, kind: type[Spec]) -> Spec:
        return kind(
            str(self.target), dtype=self.dtype, device=self.device, extra=tuple(self.options),
            trust_remote_code=self.trust_remote_code, cuda_graphs=self.cuda_graphs,
        )  # fmt: skip

    def layers(self, aux_layers: Iterable[int] | None) -> list[int]:
        """The hs indices to capture: those given, checked, or the default of this target (CollidingLayersError)."""
        count = read_target(self.target).num_layers
        return default_aux_layers(count) if aux_layers is None else check_aux_layers(aux_layers, count)

    def open(
        self, aux_layers: Iterable[int] | None = None, most_servers: int = 1
    ) -> EmbeddedEngine | SGLangEngine | TwoServers | VllmEngine:
        """The engine, to be used within `with` or closed. `most_servers`: kept running at the same time. Of two
        `servers` the first answers plainly, the second speculates."""
        if self.engine == "embedded":
            return self._embedded(aux_layers)
        options = {"python": self.python, "logs": self.logs, "max_servers": most_servers}
        if self.engine == "vllm":
            return VllmEngine(self.vllm_spec, self.end_ids, aux_layers, **options)
        if len(self.servers) > 2:
            raise ValueError(f"one engine needs one or two servers, not {len(self.servers)}: {', '.join(self.servers)}")
        engines = [
            SGLangEngine(server, self.end_ids, aux_layers, self.target, **options)
            for server in self.servers or [self.spec]
        ]
        return TwoServers(*engines) if len(engines) == 2 else engines[0]

    def answer(
        self,
        works: Sequence[Work],
        journal: str | Path,
        batch_size: int,
        sampling: Sampling,
        policy: Policy,
        retry_set_aside: bool = False,
    ) -> Iterator[View]:
        """Answers all rows that the journal's folder does not hold yet; see `dispatch` and `dispatch_embedded`.

        `batch_size` is the embedded engine's; servers take the partitions' concurrency. `retry_set_aside`: rows that
        an earlier start set aside are asked again. A server that was started here and dies is started again, at most
        `MOST_RESTARTS` times; then GaveUp is raised, with everything kept. ValueError for vllm, which does not answer
        in bulk here.
        """
        if self.engine == "vllm":
            raise ValueError("engine='vllm' measures and captures; let embedded or sglang answer the prompts")
        target = str(self.target)
        if self.engine == "embedded":
            engine = self._embedded()
            yield from dispatch_embedded(works, engine, journal, target, batch_size, sampling, retry_set_aside)
            return
        with ExitStack() as stack:
            server = None if self.servers else stack.enter_context(self._server())
            most = max(work.partition.concurrency for work in works)
            backends = [ServerBackend(url, self.end_ids, most) for url in self.servers or [server.url]]
            restarts = 0
            for view in dispatch(works, backends, journal, target, policy, sampling, retry_set_aside):
                yield view
                if server is not None and not server.alive():
                    restarts += 1
                    if restarts > MOST_RESTARTS:
                        raise GaveUp(f"the server died {restarts} times, see {server.log}; finished answers are kept")
                    warnings.warn(f"the server died, see {server.log}; it is started again", stacklevel=2)
                    server.restart()

    def _embedded(self, aux_layers: Iterable[int] | None = None) -> EmbeddedEngine:
        own = {"end_ids": self.end_ids, "trust_remote_code": self.trust_remote_code}
        return EmbeddedEngine(self.target, self.dtype, aux_layers, **own)

    def _server(self) -> SGLangServer:
        log = None if self.logs is None else Path(self.logs) / "server.log"
        return SGLangServer(self.spec, self.python, log)
