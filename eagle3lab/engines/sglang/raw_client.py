"""Requests whose answer is wanted as the server gave it: those that capture states."""

from __future__ import annotations

import httpx

from eagle3lab.engines.base import Request
from eagle3lab.engines.sglang import wire
from eagle3lab.engines.sglang.client import Client, _TryAgain
from eagle3lab.engines.sglang.errors import ServerGone

NEW_TOKENS = 1  # the least that gives an ordinary answer: the prompt goes through, one token is drawn from it


class RawClient(Client):
    """A `Client` for whole rows: nothing is tried again, because a server that came back has lost what it captured."""

    def __init__(self, url: str, concurrency: int, timeout_s: float):
        super().__init__(url, concurrency=concurrency, retries=0, timeout_s=timeout_s)

    async def prefill(self, row_id: str, input_ids: list[int], **fields) -> dict:
        """The server's answer to the row as a prompt; `fields` are added to the request (rid, return_hidden_states).

        Raises RequestRefused, ServerFault, ServerGone, BadAnswer; all name the row.
        """
        request = Request(row_id, input_ids, NEW_TOKENS)
        async with self._free:
            try:
                answer = await self._plain(request, {**wire.body(request, (), True, False), **fields})
                self._raise_abort(request, wire.finish_of(answer, row_id))
                return answer
            except _TryAgain as failed:
                raise failed.error from failed.__cause__
            except httpx.TransportError as error:
                what = f"row {row_id!r}: {self.url}: {type(error).__name__} {error}".rstrip()
                raise ServerGone(what, self.url, row_id) from error
