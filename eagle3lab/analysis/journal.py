"""The file of a benchmark, JSON lines: what it is of, then what was measured. One that was cut off goes on from there.
And why a setting was not measured, in one line.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle3lab.workbench.files import append_jsonl, read_jsonl

LONGEST_REASON = 300  # characters


def begun(path: str | Path, setting: str, requests: Sequence, **more: Any) -> list[Any]:
    """What the file holds already, line by line; it is begun when there is none, and a partial last line is cut off.

    setting  words for everything else a number depends on (model, drafter, machine, dtype). more: what else decides it.
    ValueError for a file that was begun with other words, requests or values: two benchmarks are never mixed.
    """
    setup = {"setting": setting, "requests": _digest(requests), **more}
    first, *lines = read_jsonl(path, repair=True) or [None]
    if first is None:
        append_jsonl(path, setup)
        return []
    if first != setup:
        other = [name for name in setup if first.get(name) != setup[name]]
        raise ValueError(f"{path} was begun with other {', '.join(other)}: take another file, or remove it")
    return lines


def reason(error: Exception) -> str:
    """Kind and words of an error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:LONGEST_REASON]


def _digest(requests: Sequence) -> str:
    rows = [[r.id, list(r.input_ids), r.max_tokens] for r in requests]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()
