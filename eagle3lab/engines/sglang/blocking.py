"""A client's answers from ordinary code."""

from collections.abc import Iterable, Iterator
from contextlib import aclosing

from eagle3lab.engines.base import Request
from eagle3lab.engines.servers.threads import iterate_in_thread
from eagle3lab.engines.sglang.client import Client
from eagle3lab.engines.sglang.wire import Answer


def generate_all(url: str, requests: Iterable[Request], **options) -> Iterator[Answer]:
    """Answers as they end, in any order: `Client(url, **options).generate_many` for ordinary code.

    Reads `requests` in another thread. A loop that is left early, by an exception or by the interrupt key, cancels
    what is on its way. Errors as `Client.generate`.
    """

    async def answers():
        async with Client(url, **options) as client, aclosing(client.generate_many(requests)) as given:
            async for answer in given:
                yield answer

    return iterate_in_thread(answers)
