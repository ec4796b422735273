"""Who answers: the little that the dispatcher needs of a server, and a server reached over HTTP."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import httpx

from eagle3lab.engines.base import Completion, Request
from eagle3lab.engines.sglang.client import Client

HEALTH_S = 10.0
NO_LIMIT_S = 7 * 24 * 3600.0  # the dispatcher ends what takes longer than its partition allows


class Backend(Protocol):
    """A server, used within `async with`. `generate` raises the errors of `engines.servers.errors`: RequestRefused
    (the row will never run), ServerGone (no connection, or lost), anything else counts as a failed try. `alive`
    tells whether the server can be reached; it never raises."""

    name: str

    async def __aenter__(self) -> Backend: ...

    async def __aexit__(self, *failure) -> None: ...

    async def generate(self, request: Request) -> Completion: ...

    async def alive(self) -> bool: ...


class ServerBackend:
    """An SGLang server or router at `url`. Its client does not try again by itself: that is the dispatcher's part.

    `end_ids` as `Client`; `concurrency` is the most requests at a time (the largest of the partitions).
    """

    def __init__(self, url: str, end_ids: Collection[int], concurrency: int, api_key: str | None = None):
        self.name = url
        self._options = {"end_ids": end_ids, "concurrency": concurrency, "api_key": api_key}

    async def __aenter__(self) -> ServerBackend:
        self._client = await Client(self.name, retries=0, timeout_s=NO_LIMIT_S, **self._options).__aenter__()
        return self

    async def __aexit__(self, *failure) -> None:
        await self._client.__aexit__(*failure)

    async def generate(self, request: Request) -> Completion:
        return await self._client.generate(request)

    async def alive(self) -> bool:
        """Whether GET /health answers 200. A connection of its own: the client's may all be taken."""
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=HEALTH_S) as http:
                return (await http.get(f"{self._client.url}/health")).status_code == 200
        except (httpx.HTTPError, httpx.InvalidURL):
            return False
