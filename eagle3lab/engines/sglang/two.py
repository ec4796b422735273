"""Two servers that run already as one engine: one that answers plainly, and one that speculates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from eagle3lab.engines.base import Completion, Request
from eagle3lab.engines.sglang.engine import SGLangEngine
from eagle3lab.engines.sglang.wire import Answer


class TwoServers:
    """What a benchmark of attached servers asks. ValueError when the first one speculates: it would be no baseline."""

    def __init__(self, plain: SGLangEngine, speculating: SGLangEngine):
        info = plain.servers.plain().info()
        if info.draft is not None:
            raise ValueError(f"{info.url} speculates with {info.draft}: the baseline needs a server without a drafter")
        self.plain, self.speculating, self.end_ids = plain, speculating, plain.end_ids

    def __enter__(self) -> TwoServers:
        return self

    def __exit__(self, *failure) -> None:
        self.close()

    @property
    def aux_layers(self) -> list[int]:
        return self.speculating.aux_layers

    def close(self) -> None:
        """Nothing: the servers are not ours."""

    def generate(
        self, requests: Iterable[Request], batch_size: int = 64, streamed: bool = False
    ) -> Iterator[Completion]:
        """See `SGLangEngine.generate`."""
        return self.plain.generate(requests, batch_size, streamed)

    def speculate(self, draft, requests: Iterable[Request], num_steps: int = 3, **shape) -> Iterator[Answer]:
        """See `SGLangEngine.speculate`; `shape` must be that of the server."""
        return self.speculating.speculate(draft, requests, num_steps, **shape)
