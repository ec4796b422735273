"""Token ids to a vLLM server and token ids back: asynchronous, many at a time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import aclosing

from eagle3lab.engines.base import Request
from eagle3lab.engines.servers.client import PatientClient, answers_as_they_end
from eagle3lab.engines.servers.errors import BadAnswer
from eagle3lab.engines.servers.verifications import CountsDisagree
from eagle3lab.engines.vllm import wire

PATH = "/v1/completions"


class VllmClient(PatientClient):
    """A connection to one vLLM server; parameters and errors as `PatientClient`. seeded: sampled requests carry their
    seed, of which a server on a CPU dies where a prompt comes in pieces (0.32.0: "CPU Generator does not use offset").
    """

    context_words = wire.CONTEXT_WORDS

    def __init__(self, url: str, *args, seeded: bool = True, **options):
        super().__init__(url, *args, **options)
        self.seeded = seeded

    async def prefill(self, row_id: str, input_ids: list[int]) -> dict:
        """The server's own answer to a row as a prompt, one token long. Tried once: a server that came back has lost
        what it captured. Raises RequestRefused, ServerFault, ServerGone, BadAnswer; all name the row."""
        request = Request(row_id, input_ids, 1)
        return await self._once(lambda: self._post(request, PATH, wire.body(request, (), False)))

    async def _attempt(self, request: Request) -> wire.VllmAnswer:
        started = time.perf_counter()
        body = wire.body(request, self.end_ids, self.ordered, self.seeded)
        ids, reason, metrics, first = await (self._streamed if self.ordered else self._whole)(request, body)
        seconds = time.perf_counter() - started
        first_seconds = None if first is None else first - started
        try:
            return wire.read_answer(request, ids, reason, metrics, self.end_ids, seconds, first_seconds)
        except CountsDisagree as error:
            raise BadAnswer(f"row {request.id!r}: {self.url}: {error}", self.url, request.id) from error

    async def _whole(self, request: Request, body: dict) -> tuple[list[int], str | None, dict | None, None]:
        raw = await self._post(request, PATH, body)
        choice = wire.choice_of(raw, request.id)
        if choice is None:
            raise BadAnswer(f"row {request.id!r}: {self.url} answered with no choice", self.url, request.id)
        return wire.ids_of(choice, request.id), choice.get("finish_reason"), raw.get("metrics"), None

    async def _streamed(self, request: Request, body: dict) -> tuple[list[int], str | None, dict | None, float | None]:
        """All tokens, why they ended, the metrics of the last event, and when the first token came."""
        ids: list[int] = []
        reason = metrics = first = None
        whole = False
        with self._connection(request) as http:
            async with aclosing(self._events(http, request, PATH, body)) as events:
                async for event in events:
                    choice = wire.choice_of(event, request.id)
                    if choice is None:
                        whole, metrics = True, event.get("metrics")
                        continue
                    ids += wire.ids_of(choice, request.id)
                    reason = choice.get("finish_reason") or reason
                    first = first or (time.perf_counter() if ids else None)
        if not whole:
            raise self._broken_off(request)
        return ids, reason, metrics, first


def answer_all(url: str, requests: Iterable[Request], **options) -> Iterator[wire.VllmAnswer]:
    """`answers_as_they_end` of `VllmClient(url, **options)`."""
    return answers_as_they_end(lambda: VllmClient(url, **options), requests)
