"""Many pieces of asynchronous work, a bounded number at a time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


async def bounded(
    items: Iterable[T], work: Callable[[T], Coroutine[None, None, R]], concurrency: int
) -> AsyncIterator[R]:
    """Results of `work(item)` as they end, `concurrency` at a time. `items` is read as there is room; the first error
    ends it all."""
    waiting, running = iter(items), set()
    try:
        while True:
            while len(running) < concurrency and (item := next(waiting, None)) is not None:
                running.add(asyncio.create_task(work(item)))
            if not running:
                return
            ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(ended, key=lambda task: task.exception() is not None):  # results, then the error
                yield task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
