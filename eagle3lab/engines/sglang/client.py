"""Token ids to a server and token ids back: asynchronous, so many at a time, patient with lost connections."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import contextmanager

import httpx

from eagle3lab.engines.base import Request
from eagle3lab.engines.sglang import wire
from eagle3lab.engines.sglang.bounded import bounded
from eagle3lab.engines.sglang.errors import BadAnswer, ServerError, ServerFault, ServerGone
from eagle3lab.engines.sglang.stats import CountsDisagree

CONNECT_S = 10.0
LONGEST_PAUSE_S = 30.0
LEAST_TOKENS = 1  # the shortest answer there is: the prompt goes through, one token is drawn from it
TOO_MANY_REQUESTS = 429  # a router's word for "later", the only 4xx that is worth another attempt


class _TryAgain(Exception):
    """An attempt that failed for a reason that may pass; carries the error to raise when no attempt is left."""

    def __init__(self, error: ServerError):
        self.error = error


class Client:
    """A connection to one server, used within `async with`.

    url          "http://127.0.0.1:30000". Proxies of the environment are not used.
    end_ids      tokens that end an answer; none: answers run to max_tokens.
    concurrency  requests on their way at the same time, over all callers of this client.
    retries      further attempts after a lost connection, a time-out or a 5xx; pauses double from `pause_s`, with
                 jitter. Requests are answered the same way however often they are asked.
    timeout_s    longest wait for an answer (streamed: for its next part), the server's own queue included.
    ordered      stream the answers, so that `Answer.accepted` tells every verification in order.
    """

    def __init__(
        self,
        url: str,
        end_ids: Collection[int] = (),
        concurrency: int = 32,
        retries: int = 5,
        timeout_s: float = 600.0,
        ordered: bool = False,
        pause_s: float = 0.5,
        api_key: str | None = None,
    ):
        if concurrency < 1 or retries < 0 or timeout_s <= 0:
            raise ValueError(f"{concurrency=} must be at least 1, {retries=} at least 0, {timeout_s=} above 0")
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url={url!r} is not the address of a server (http://127.0.0.1:30000)")
        self.url, self.end_ids, self.concurrency = url.rstrip("/"), frozenset(end_ids), concurrency
        self.retries, self.timeout_s, self.ordered, self.pause_s = retries, timeout_s, ordered, pause_s
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._free = asyncio.Semaphore(concurrency)
        self._jitter = random.Random()

    async def __aenter__(self) -> "Client":
        self._certificates = httpx.create_ssl_context()  # read once: it takes longer than a request
        self._connections: list[httpx.AsyncClient] = []
        self._idle: list[httpx.AsyncClient] = []
        return self

    async def __aexit__(self, *failure) -> None:
        for connection in self._connections:
            await connection.aclose()

    async def generate(self, request: Request) -> wire.Answer:
        """One answer. `seconds` is the time from sending the request (the attempt that succeeded) to its end.

        Raises RequestRefused (ContextRefused) for a request the server will not run, ServerGone, ServerFault when
        all attempts failed, BadAnswer, NonFiniteError; all name the row. Cancelling it cancels the request.
        """
        async with self._free:
            for attempt in range(self.retries + 1):
                if attempt:
                    pause = min(self.pause_s * 2 ** (attempt - 1), LONGEST_PAUSE_S)
                    await asyncio.sleep(pause * self._jitter.uniform(0.5, 1.0))
                try:
                    return await self._attempt(request)
                except _TryAgain as failed:
                    last = failed.error
            raise type(last)(f"{last} ({self.retries + 1} attempts)", self.url, request.id)

    def generate_many(self, requests: Iterable[Request]) -> AsyncIterator[wire.Answer]:
        """Answers as they end, in any order. `requests` is read as there is room; the first error ends it all."""
        return bounded(requests, self.generate, self.concurrency)

    async def prefill(self, row_id: str, input_ids: list[int], **fields) -> dict:
        """The server's own answer to a row as a prompt; `fields` are added to the request (rid, return_hidden_states).

        Tried once: a server that came back has lost what it captured. Raises RequestRefused, ServerFault, ServerGone,
        BadAnswer; all name the row.
        """
        request = Request(row_id, input_ids, LEAST_TOKENS)
        async with self._free:
            try:
                answer = await self._plain(request, {**wire.body(request, (), True, False), **fields})
                self._raise_abort(request, wire.finish_of(answer, row_id))
                return answer
            except _TryAgain as failed:
                raise failed.error from failed.__cause__

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
            raw, tokens_after, first_seconds = await self._plain(request, body), None, None
        finish = wire.finish_of(raw, request.id)
        self._raise_abort(request, finish)
        if not ignore_ends and wire.stopped_by_own_end(request, raw, finish, self.end_ids):
            return None
        seconds = time.perf_counter() - started
        try:
            return wire.read_answer(request, raw, finish, self.end_ids, seconds, tokens_after, first_seconds)
        except CountsDisagree as error:
            raise BadAnswer(f"row {request.id!r}: {self.url}: {error}", self.url, request.id) from error

    async def _plain(self, request: Request, body: dict) -> dict:
        with self._connection(request) as http:
            response = await http.post("/generate", json=body)
        self._raise_status(request, response.status_code, response.text)
        return self._parse(request, response.content)

    async def _streamed(self, request: Request, body: dict) -> tuple[dict, list[int], float | None]:
        """The last event, with the whole answer's tokens; how many tokens there were after every event; and when the
        first came."""
        with self._connection(request) as http:
            return await self._read_stream(http, request, body)

    async def _read_stream(self, http, request: Request, body: dict) -> tuple[dict, list[int], float | None]:
        tokens_after, ids, last, first = [], [], None, None
        async with http.stream("POST", "/generate", json=body) as response:
            if response.status_code != 200:
                await response.aread()
                self._raise_status(request, response.status_code, response.text)
            async for line in response.aiter_lines():
                if not line.startswith("data:") or line == "data: [DONE]":
                    continue
                last = self._parse(request, line.removeprefix("data:"))
                self._raise_streamed_error(request, last)
                wire.finish_of(last, request.id)
                if (tokens := wire.tokens_so_far(last)) is not None:
                    first = first or time.perf_counter()
                    tokens_after.append(tokens)
                    part = last.get("output_ids") or []  # the whole so far, or only what is new
                    ids = part if len(part) >= tokens else ids + part
        if last is None or wire.finish_of(last, request.id) is None:
            what = f"row {request.id!r}: {self.url}: the stream broke off"
            raise _TryAgain(ServerGone(what, self.url, request.id))
        return {**last, "output_ids": ids}, tokens_after, first

    @contextmanager
    def _connection(self, request: Request):
        """A connection nobody uses now. One pool of all would look through all of them for every request."""
        if not self._idle:
            http = httpx.AsyncClient(
                base_url=self.url,
                headers=self._headers,
                verify=self._certificates,
                trust_env=False,
                timeout=httpx.Timeout(self.timeout_s, connect=CONNECT_S),
                limits=httpx.Limits(max_connections=1),
            )
            self._connections.append(http)
            self._idle.append(http)
        http = self._idle.pop()
        try:
            yield http
        except httpx.TransportError as error:
            what = f"row {request.id!r}: {self.url}: {type(error).__name__} {error}".rstrip()
            raise _TryAgain(ServerGone(what, self.url, request.id)) from error
        finally:
            self._idle.append(http)

    def _parse(self, request: Request, text: str | bytes) -> dict:
        try:
            return json.loads(text)
        except ValueError as error:
            what = f"row {request.id!r}: {self.url} answered something that is no JSON: {str(text[:200])}"
            raise BadAnswer(what, self.url, request.id) from error

    def _raise_status(self, request: Request, status: int, text: str) -> None:
        if status >= 500 or status == TOO_MANY_REQUESTS:
            what = f"row {request.id!r}: {self.url} failed ({status}): {text.strip()[:1000]}"
            raise _TryAgain(ServerFault(what, self.url, request.id))
        if status >= 400:
            raise wire.refusal(request, status, text, self.url)
        if status != 200:
            raise BadAnswer(f"row {request.id!r}: {self.url} answered with status {status}", self.url, request.id)

    def _raise_streamed_error(self, request: Request, event: dict) -> None:
        """Within a stream a refusal is an event of its own."""
        error = event.get("error") if isinstance(event, dict) else None
        if error is not None:
            code = error.get("code") if isinstance(error, dict) else None
            self._raise_status(request, code if isinstance(code, int) else 400, json.dumps(error))

    def _raise_abort(self, request: Request, finish: wire.Finish | None) -> None:
        """An aborted request: refused when the server says so (4xx), else another attempt."""
        if finish is None:
            raise BadAnswer(f"row {request.id!r}: {self.url} answered without a finish_reason", self.url, request.id)
        if finish.type == "abort":
            status = finish.status if isinstance(finish.status, int) and finish.status >= 400 else 500
            self._raise_status(request, status, finish.message)
