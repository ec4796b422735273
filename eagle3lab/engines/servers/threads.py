"""Asynchronous work from ordinary code: in a thread with its own event loop, so that notebooks may call it too."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


def iterate_in_thread(make: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
    """Yields what the async generator `make()` yields; it runs in a thread that ends with this generator."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="eagle3lab-requests", daemon=True)
    thread.start()

    def call(coroutine):
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def step(items):
        """(True, item), or (False, None) at the end: StopAsyncIteration cannot travel through a future."""
        try:
            return True, await anext(items)
        except StopAsyncIteration:
            return False, None

    async def finish(items):
        await items.aclose()
        await loop.shutdown_asyncgens()

    items = make()
    try:
        while True:
            more, item = call(step(items))
            if not more:
                return
            yield item
    finally:
        try:
            call(_quiet(finish, items))
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


async def _quiet(finish, items):
    """Closes the generator once the step that was cancelled has let go of it."""
    while items.ag_running:
        await asyncio.sleep(0.01)
    await finish(items)
