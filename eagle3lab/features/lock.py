"""One writer process a part. The lock is the kernel's: it ends with the process, however that ends."""

import fcntl
import os
from pathlib import Path
from typing import TextIO

# closing any handle of a file gives its lock up, so there is one handle a file; a forked child holds nothing
_HELD: dict[tuple[int, Path], TextIO] = {}


def take(path: Path) -> bool:
    """Locks `path` for this process (which may hold it already); False when another process holds it."""
    key = (os.getpid(), path.resolve())
    if key not in _HELD:
        file = open(path, "w")
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return False
        _HELD[key] = file
    return True


def release(path: Path) -> None:
    """Gives the lock up. The file stays: removing it could part two writers that wait for the same name."""
    file = _HELD.pop((os.getpid(), path.resolve()), None)
    if file is not None:
        file.close()
