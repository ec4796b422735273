"""Reading ahead of the training: the process holds what was read ahead, and no more of a store than that."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item, Result = TypeVar("Item"), TypeVar("Result")


def read_ahead(items: Iterable[Item], read: Callable[[Item], Result], depth: int) -> Iterator[Result]:
    """Yields `read(item)` for every item in order, with up to `depth` of them read ahead in one other thread.

    An error in `read` is raised where its result is due. Leaving the loop early ends the thread after its read.
    """
    if depth < 1:
        raise ValueError(f"depth={depth}, at least 1 is needed")
    items, waiting = iter(items), deque[Future]()
    executor = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
    try:
        waiting.extend(executor.submit(read, item) for item in islice(items, depth))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(executor.submit(read, item) for item in islice(items, 1))
            yield result
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
