"""What the runner puts around papermill: signals, a wall-clock limit, the kernel's environment, the right
Python.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .processes import DRIVEN_VARIABLE
from .root import package_parent

KERNEL = "python3"
_INTERPRETER_NAMES = (
    "python",
    f"python{sys.version_info[0]}",
    f"python{sys.version_info[0]}.{sys.version_info[1]}",
)


class KernelspecError(RuntimeError):
    """The kernel named python3 would start another Python than this one."""


class WallClockLimit(KeyboardInterrupt):
    """A stage ran past its wall-clock limit. A KeyboardInterrupt, so that nothing on the way swallows it."""


def check_kernelspec() -> list[str]:
    """The argv of the kernelspec python3; KernelspecError unless it starts this very Python."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    way_out = f"install it with: {Path(sys.executable).name} -m ipykernel install --sys-prefix"
    try:
        argv = KernelSpecManager().get_kernel_spec(KERNEL).argv
    except NoSuchKernel:
        raise KernelspecError(f"there is no kernelspec {KERNEL!r}; {way_out}") from None
    if argv[0] not in _INTERPRETER_NAMES and os.path.abspath(argv[0]) != os.path.abspath(sys.executable):
        raise KernelspecError(
            f"the kernelspec {KERNEL!r} starts {argv[0]}, not this Python ({sys.executable}); {way_out}"
        )
    return argv  # jupyter_client replaces a bare `python` by sys.executable


@contextmanager
def signals_as_interrupts(wall_seconds: float | None) -> Iterator[None]:
    """SIGTERM, SIGHUP and Ctrl-C raise KeyboardInterrupt once, the wall clock raises WallClockLimit once.

    After the first one all are ignored until the block ends, so that cleaning up is not cut short. Must be
    entered in the main thread (only there can Python handle signals).
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("a stage must be run from the main thread: signals can be handled only there")
    handled = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    limit_passed = threading.Event()

    def handle(number: int, _frame: Any) -> None:
        for each in handled:
            signal.signal(each, signal.SIG_IGN)
        if limit_passed.is_set():
            raise WallClockLimit(f"wall-clock limit of {wall_seconds:g} s")
        raise KeyboardInterrupt(signal.Signals(number).name)

    def pass_limit() -> None:
        limit_passed.set()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)

    clock = threading.Timer(wall_seconds or 0, pass_limit)
    clock.daemon = True
    before = {number: signal.signal(number, handle) for number in handled}
    if wall_seconds:
        clock.start()
    try:
        yield
    finally:
        clock.cancel()
        if clock.ident is not None:
            clock.join()  # its signal must not come after the handlers are put back
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def kernel_environment(mark: str) -> Iterator[None]:
    """The environment a kernel inherits: the run's mark, this package importable, figures kept in the
    notebook.

    MPLBACKEND is taken away: `agg` would remove figures from the executed notebook.
    """
    before = dict(os.environ)
    paths = [str(package_parent()), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ[DRIVEN_VARIABLE] = mark
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
    os.environ.pop("MPLBACKEND", None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def quiet_papermill() -> Iterator[None]:
    """papermill's warnings kept back: its parser calls well-typed parameters unknown, and the record has
    the rest.
    """
    logger = logging.getLogger("papermill")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def close_event_loop() -> None:
    """Cancel what an interrupted papermill left waiting in this thread's event loop, and close the loop.

    Its tasks end with errors that nobody awaits any more; they are not worth a word. The next notebook gets a
    new loop.
    """
    import asyncio

    from jupyter_core.utils import ensure_event_loop

    loop = ensure_event_loop()
    if loop.is_running():
        return
    loop.set_exception_handler(lambda _loop, _context: None)
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.close()
