"""JSON lines of token ids, read without a Python object for each id.

The lists of ids are cut out of each line and read as numbers; the JSON reader gets the rest. Reading the whole as JSON
would take longer than everything else a merge does.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from eagle3lab.data.token_rows import CorpusError

_BLOCK_BYTES = 2 << 20


def read_token_lines(path: str | Path, ids: Collection[str]) -> Iterator[dict[str, Any]]:
    """Rows of a JSON-lines file, streaming; the columns named in `ids` become int32 arrays, at the top of a row only.

    CorpusError names file and line when a line is cut off, is not JSON, or holds an id that is no whole number.
    """
    first, reading = 1, None
    with open(path, "rb") as file, ThreadPoolExecutor(1) as beside:  # one block is read while the last one is used
        while lines := file.readlines(_BLOCK_BYTES):
            done, reading = reading, beside.submit(_read_block, lines, ids, path, first)
            first += len(lines)
            if done:
                yield from done.result()
        if reading:
            yield from reading.result()


def _read_block(lines: list[bytes], ids: Collection[str], path: str | Path, first: int) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(lines, first):
        if not line.endswith(b"\n"):
            raise CorpusError(f"{path}, line {number}: partial last line; read_jsonl(path, repair=True) drops it")
        try:
            rows.append(_read_line(line, ids))
        except (ValueError, TypeError, AttributeError) as error:
            raise CorpusError(f"{path}, line {number}: not a row of token ids ({error})") from error
    return rows


def _read_line(line: bytes, ids: Collection[str]) -> dict[str, Any]:
    """The row of one line. A list is read apart where it can only be the column meant; else it is read as JSON."""
    rest, cut = line, {}
    for name in ids:
        key = f'"{name}":'.encode()
        at = rest.find(key)
        opened = rest.find(b"[", at)
        if at < 0 or opened < 0 or rest[at + len(key) : opened].strip():
            continue
        closed = rest.find(b"]", opened)
        cut[name] = rest[opened + 1 : closed]
        rest = rest[:opened] + b"null" + rest[closed + 1 :]
        if rest.find(key, at + 1) >= 0:
            return _whole(line, ids)  # the name comes twice: one of them may be inside another value
    row = json.loads(rest)
    if any(row.get(name, ...) is not None for name in cut):
        return _whole(line, ids)  # the list stood inside another value
    return row | {name: parse_ids(text) for name, text in cut.items()}


def _whole(line: bytes, ids: Collection[str]) -> dict[str, Any]:
    row = json.loads(line)
    lists = {name: row[name] for name in ids if isinstance(row.get(name), list)}
    return row | {name: parse_ids(json.dumps(values)[1:-1].encode()) for name, values in lists.items()}


def parse_ids(text: bytes) -> np.ndarray:
    """The inside of a JSON list of whole numbers as an int32 array; ValueError for anything else."""
    text = text.strip()
    if not text:
        return np.zeros(0, dtype=np.int32)
    if text.endswith(b","):
        raise ValueError("a comma with no id behind it")
    values = np.fromstring(text, dtype=np.int64, sep=",")
    ids = values.astype(np.int32)
    if not (ids == values).all():
        raise ValueError(f"{values.max()} is no token id")
    return ids
