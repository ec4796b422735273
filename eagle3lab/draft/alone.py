"""One training in a folder at a time: two would overwrite each other's checkpoints, stream and log."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eagle3lab.features import lock

# the kernel's lock is the process's, so that it cannot tell two trainings of one process apart
_HERE: set[tuple[int, Path]] = set()
_GUARD = threading.Lock()


@contextmanager
def alone(folder: Path, name: str) -> Iterator[None]:
    """Holds the lock file `name` of a folder, made if need be. RuntimeError when another training holds it, in another
    process or in this one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = (folder / name).resolve()
    key = (os.getpid(), path)
    with _GUARD:
        if key in _HERE:
            raise RuntimeError(f"this process trains in {folder} already: let that training end, or close its iterator")
        if not lock.take(path):
            raise RuntimeError(f"another process trains in {folder}: wait for it, or end it")
        _HERE.add(key)
    try:
        yield
    finally:
        with _GUARD:
            _HERE.discard(key)
            lock.release(path)
