"""Token ids to an SGLang server and token ids back: asynchronous, many at a time."""

import time
from contextlib import aclosing

from eagle3lab.engines.base import Request
from eagle3lab.engines.servers.client import PatientClient
from eagle3lab.engines.servers.errors import BadAnswer
from eagle3lab.engines.servers.verifications import CountsDisagree
from eagle3lab.engines.sglang import wire

PATH = "/generate"
LEAST_TOKENS = 1  # the shortest answer there is: the prompt goes through, one token is drawn from it


class Client(PatientClient):
    """A connection to one SGLang server; parameters and errors as `PatientClient`."""

    context_words = wire.CONTEXT_WORDS

    async def prefill(self, row_id: str, input_ids: list[int], **fields) -> dict:
        """The server's own answer to a row as a prompt; `fields` are added to the request (rid, return_hidden_states).

        Tried once: a server that came back has lost what it captured. Raises RequestRefused, ServerFault, ServerGone,
        BadAnswer; all name the row.
        """
        request = Request(row_id, input_ids, LEAST_TOKENS)

        async def ask() -> dict:
            answer = await self._post(request, PATH, {**wire.body(request, (), True, False), **fields})
            self._raise_abort(request, wire.finish_of(answer, row_id))
            return answer

        return await self._once(ask)

    async def _attempt(self, request: Request) -> wire.Answer:
        answer = await self._ask(request, ignore_ends=not self.end_ids)
        if answer is None:  # the server has an end token that is none of ours: it must not see any
            answer = await self._ask(request, ignore_ends=True)
        return answer

    async def _ask(self, request: Request, ignore_ends: bool) -> wire.Answer | None:
        """One exchange. None: the server stopped at an end token of its own."""
        started = time.perf_counter()
        body = wire.body(request, self.end_ids, ignore_ends, self.ordered)
        if self.ordered:
            raw, tokens_after, first = await self._streamed(request, body)
            first_seconds = None if first is None else first - started
        else:
            raw, tokens_after, first_seconds = await self._post(request, PATH, body), None, None
        finish = wire.finish_of(raw, request.id)
        self._raise_abort(request, finish)
        if not ignore_ends and wire.stopped_by_own_end(request, raw, finish, self.end_ids):
            return None
        seconds = time.perf_counter() - started
        try:
            return wire.read_answer(request, raw, finish, self.end_ids, seconds, tokens_after, first_seconds)
        except CountsDisagree as error:
            raise BadAnswer(f"row {request.id!r}: {self.url}: {error}", self.url, request.id) from error

    async def _streamed(self, request: Request, body: dict) -> tuple[dict, list[int], float | None]:
        """The last event, with the whole answer's tokens; how many tokens there were after every event; and when the
        first came."""
        tokens_after, ids, last, first = [], [], None, None
        with self._connection(request) as http:
            async with aclosing(self._events(http, request, PATH, body)) as events:
                async for last in events:
                    wire.finish_of(last, request.id)
                    if (tokens := wire.tokens_so_far(last)) is not None:
                        first = first or time.perf_counter()
                        tokens_after.append(tokens)
                        part = last.get("output_ids") or []  # the whole so far, or only what is new
                        ids = part if len(part) >= tokens else ids + part
        if last is None or wire.finish_of(last, request.id) is None:
            raise self._broken_off(request)
        return {**last, "output_ids": ids}, tokens_after, first

    def _raise_abort(self, request: Request, finish: wire.Finish | None) -> None:
        """An aborted request: refused when the server says so (4xx), else another attempt."""
        if finish is None:
            raise BadAnswer(f"row {request.id!r}: {self.url} answered without a finish_reason", self.url, request.id)
        if finish.type == "abort":
            status = finish.status if isinstance(finish.status, int) and finish.status >= 400 else 500
            self._raise_status(request, status, finish.message)
