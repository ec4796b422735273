"""A client's answers from ordinary code."""

from collections.abc import Iterable, Iterator, Sequence

from eagle3lab.engines.base import Request
from eagle3lab.engines.servers.client import answers_as_they_end
from eagle3lab.engines.sglang.client import Client
from eagle3lab.engines.sglang.wire import Answer

ATTEMPTS = 4  # at an answer that tells its verifications in order


def generate_all(url: str, requests: Iterable[Request], **options) -> Iterator[Answer]:
    """`answers_as_they_end` of `Client(url, **options)`."""
    return answers_as_they_end(lambda: Client(url, **options), requests)


def generate_in_order(url: str, requests: Sequence[Request], concurrency: int, **options) -> Iterator[Answer]:
    """The same, streamed, so that `accepted` tells every verification in order.

    A busy server merges verifications in its stream: such answers are asked for again, alone, up to ATTEMPTS times in
    all; one that never tells comes with `accepted` None.
    """
    left = list(requests)
    for attempt in range(ATTEMPTS):
        merged = {}
        at_once = 1 if attempt else concurrency
        for answer in generate_all(url, left, concurrency=at_once, ordered=True, **options) if left else ():
            if answer.accepted is None:
                merged[answer.id] = answer
            else:
                yield answer
        left = [request for request in left if request.id in merged]
    yield from merged.values()
