"""Token ids to a server and answers back, patient with lost connections: the part that no engine's words change."""

import asyncio
import json
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import aclosing, contextmanager
from typing import TypeVar

import httpx

from eagle3lab.engines.base import Request, SpecCompletion
from eagle3lab.engines.servers.bounded import bounded
from eagle3lab.engines.servers.errors import (
    BadAnswer,
    ContextRefused,
    RequestRefused,
    ServerError,
    ServerFault,
    ServerGone,
)
from eagle3lab.engines.servers.threads import iterate_in_thread

CONNECT_S = 10.0
LONGEST_PAUSE_S = 30.0
TOO_MANY_REQUESTS = 429  # a router's word for "later", the only 4xx that is worth another attempt
T = TypeVar("T")


class TryAgain(Exception):
    """An attempt that failed for a reason that may pass; carries the error to raise when no attempt is left."""

    def __init__(self, error: ServerError):
        self.error = error


class PatientClient(ABC):
    """A connection to one server, used within `async with`; `generate` is the engine's own.

    url          "http://127.0.0.1:30000". Proxies of the environment are not used.
    end_ids      tokens that end an answer; none: answers run to max_tokens.
    concurrency  requests on their way at the same time, over all callers of this client.
    retries      further attempts after a lost connection, a time-out or a 5xx; pauses double from `pause_s`, with
                 jitter. Requests are answered the same way however often they are asked.
    timeout_s    longest wait for an answer (streamed: for its next part), the server's own queue included.
    ordered      stream the answers, so that `accepted` tells every verification in order.
    """

    context_words: tuple[str, ...] = ()  # by which the server's own words tell a row that does not fit

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

    async def __aenter__(self):
        self._certificates = httpx.create_ssl_context()  # read once: it takes longer than a request
        self._connections: list[httpx.AsyncClient] = []
        self._idle: list[httpx.AsyncClient] = []
        return self

    async def __aexit__(self, *failure) -> None:
        for connection in self._connections:
            await connection.aclose()

    async def generate(self, request: Request) -> SpecCompletion:
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
                except TryAgain as failed:
                    last = failed.error
            raise type(last)(f"{last} ({self.retries + 1} attempts)", self.url, request.id)

    def generate_many(self, requests: Iterable[Request]) -> AsyncIterator[SpecCompletion]:
        """Answers as they end, in any order. `requests` is read as there is room; the first error ends it all."""
        return bounded(requests, self.generate, self.concurrency)

    @abstractmethod
    async def _attempt(self, request: Request) -> SpecCompletion:
        """One exchange; TryAgain when it failed for a reason that may pass."""

    async def _once(self, work: Callable[[], Coroutine[None, None, T]]) -> T:
        """Work that is tried once, its errors as `generate`'s."""
        async with self._free:
            try:
                return await work()
            except TryAgain as failed:
                raise failed.error from failed.__cause__

    async def _post(self, request: Request, path: str, body: dict) -> dict:
        with self._connection(request) as http:
            response = await http.post(path, json=body)
        self._raise_status(request, response.status_code, response.text)
        return self._parse(request, response.content)

    async def _events(self, http, request: Request, path: str, body: dict) -> AsyncIterator[dict]:
        """The events of a streamed answer."""
        async with http.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                await response.aread()
                self._raise_status(request, response.status_code, response.text)
            async for line in response.aiter_lines():
                if line.startswith("data:") and line != "data: [DONE]":
                    event = self._parse(request, line.removeprefix("data:"))
                    self._raise_streamed_error(request, event)
                    yield event

    @contextmanager
    def _connection(self, request: Request) -> Iterator[httpx.AsyncClient]:
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
            raise TryAgain(ServerGone(what, self.url, request.id)) from error
        finally:
            self._idle.append(http)

    def _broken_off(self, request: Request) -> TryAgain:
        return TryAgain(ServerGone(f"row {request.id!r}: {self.url}: the stream broke off", self.url, request.id))

    def _parse(self, request: Request, text: str | bytes) -> dict:
        try:
            return json.loads(text)
        except ValueError as error:
            what = f"row {request.id!r}: {self.url} answered something that is no JSON: {str(text[:200])}"
            raise BadAnswer(what, self.url, request.id) from error

    def _raise_status(self, request: Request, status: int, text: str) -> None:
        if status >= 500 or status == TOO_MANY_REQUESTS:
            what = f"row {request.id!r}: {self.url} failed ({status}): {text.strip()[:1000]}"
            raise TryAgain(ServerFault(what, self.url, request.id))
        if status >= 400:
            kind = ContextRefused if any(words in text for words in self.context_words) else RequestRefused
            what = f"row {request.id!r}: {self.url} refuses it ({status}): {text.strip()[:1000]}"
            raise kind(what, self.url, request.id)
        if status != 200:
            raise BadAnswer(f"row {request.id!r}: {self.url} answered with status {status}", self.url, request.id)

    def _raise_streamed_error(self, request: Request, event: dict) -> None:
        """Within a stream a refusal is an event of its own."""
        error = event.get("error") if isinstance(event, dict) else None
        if error is not None:
            code = error.get("code") if isinstance(error, dict) else None
            self._raise_status(request, code if isinstance(code, int) else 400, json.dumps(error))


def answers_as_they_end(make: Callable[[], PatientClient], requests: Iterable[Request]) -> Iterator[SpecCompletion]:
    """`make().generate_many` for ordinary code, in any order.

    Reads `requests` in another thread. A loop that is left early, by an exception or by the interrupt key, cancels
    what is on its way. Errors as `generate`.
    """

    async def answers():
        async with make() as client, aclosing(client.generate_many(requests)) as given:
            async for answer in given:
                yield answer

    return iterate_in_thread(answers)
