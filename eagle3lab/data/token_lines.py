"""JSON lines of token ids, read without a Python object for each id.

The lists of ids are cut out of each line and read as numbers; the JSON reader gets the rest. Reading the whole as JSON
would take longer than everything else a merge does. A large file is read by processes of their own, each every second
block of it: `python -m eagle3lab.data.token_lines FILE 'COLUMN ...' 'COLUMN_OF_IDS ...' PART PARTS`. They send
blocks of rows through a pipe: the bytes of the next two parts (two uint64), the rows as JSON with the number of ids in
place of each list of ids, and all ids one after the other (int32).
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from eagle3lab.data.token_rows import CorpusError

APART_BYTES = 64 << 20  # from this size on processes of their own read a file: they take a moment to start
READERS = 2
BLOCK_BYTES = 2 << 20
_LARGEST_ID = 2**31 - 1
_SIZES = struct.Struct("<QQ")

Rows = list[dict[str, Any]]


def read_token_lines(path: str | Path, columns: Collection[str], ids: Collection[str]) -> Iterator[dict[str, Any]]:
    """Rows of a JSON-lines file, streaming: the named columns, and those of `ids` as int32 arrays. What a line lacks,
    or has as null, is left out of its row.

    CorpusError names file and line when a line is cut off, is not JSON, or holds an id that is no whole number.
    """
    read = _blocks if os.path.getsize(path) < APART_BYTES else _apart
    for rows in read(path, columns, ids):
        yield from rows


def _apart(path: str | Path, columns: Collection[str], ids: Collection[str]) -> Iterator[Rows]:
    root = Path(__file__).parents[2]  # where the package lies, for a process that starts elsewhere
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "eagle3lab.data.token_lines", str(path), " ".join(columns), " ".join(ids)]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    parts = [str(part) for part in range(READERS)]
    readers = [subprocess.Popen([*command, part, str(READERS)], env=environment, **pipes) for part in parts]
    try:
        for reader in cycle(readers):
            if (rows := _received(reader.stdout, ids)) is None:
                break  # no block is left, or something is wrong with this one
            yield rows
        told = reader.stderr.read().decode("utf-8", "replace").strip() or f"{path}: a process that read it was ended"
        if reader.wait():
            raise CorpusError(told.splitlines()[-1])
    finally:
        for reader in readers:
            reader.kill()
            reader.communicate()


def _received(pipe: BinaryIO, ids: Collection[str]) -> Rows | None:
    """One block of rows, their arrays views of what came through the pipe; None when it ended."""
    if len(sizes := pipe.read(_SIZES.size)) < _SIZES.size:
        return None
    text, values = (pipe.read(size) for size in _SIZES.unpack(sizes))
    if len(text) + len(values) < sum(_SIZES.unpack(sizes)):
        return None
    rows, values, at = json.loads(text), np.frombuffer(values, dtype=np.int32), 0
    for row in rows:
        for name in ids:
            if name in row:
                row[name], at = values[at : at + row[name]], at + row[name]
    return rows


def main(path: str, columns: str, ids: str, part: str, parts: str) -> int:
    """A process that reads its part of a file: blocks of rows to stdout; what is wrong with a line to stderr, exit code
    1."""
    try:
        for rows in _blocks(path, columns.split(), ids.split(), int(part), int(parts)):
            arrays = [row[name] for row in rows for name in ids.split() if name in row]
            counted = [row | {name: len(row[name]) for name in ids.split() if name in row} for row in rows]
            text, values = json.dumps(counted).encode(), np.concatenate([*arrays, np.zeros(0, np.int32)]).tobytes()
            sys.stdout.buffer.write(_SIZES.pack(len(text), len(values)) + text)
            sys.stdout.buffer.write(values)
        sys.stdout.buffer.flush()
    except CorpusError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _blocks(
    path: str | Path, columns: Collection[str], ids: Collection[str], part: int = 0, parts: int = 1
) -> Iterator[Rows]:
    """The rows of every `parts`-th block of a file, from number `part` on. A block has the lines that begin in its
    `BLOCK_BYTES`; it may have none."""
    keys = {name: f'"{name}":'.encode() for name in ids}
    with open(path, "rb") as file:
        for start in range(part * BLOCK_BYTES, os.path.getsize(path), parts * BLOCK_BYTES):
            file.seek(max(start - 1, 0))
            if start:
                file.readline()  # of a line that begins in the block before
            begin = file.tell()
            block = file.read(max(start + BLOCK_BYTES - begin, 0))
            if block and not block.endswith(b"\n"):
                block += file.readline()
            rows, at = [], 0
            while at < len(block):
                end = block.find(b"\n", at) + 1 or len(block)
                try:
                    row = _read_line(block, at, end, keys)
                except (ValueError, TypeError, AttributeError, RecursionError) as error:
                    raise CorpusError(_told(path, begin + at, block[at:end], error)) from error
                rows.append({name: row[name] for name in (*columns, *ids) if row.get(name) is not None})
                at = end
            yield rows


def _told(path: str | Path, at: int, line: bytes, error: Exception) -> str:
    with open(path, "rb") as file:
        number = 1 + sum(file.read(min(BLOCK_BYTES, at - place)).count(b"\n") for place in range(0, at, BLOCK_BYTES))
    if not line.endswith(b"\n"):
        return f"{path}, line {number}: partial last line; read_jsonl(path, repair=True) drops it"
    return f"{path}, line {number}: not a row of token ids ({error})"


def _read_line(block: bytes, start: int, end: int, keys: Mapping[str, bytes]) -> dict[str, Any]:
    """The row of block[start:end], a whole line. A list is read apart where it can only be the column meant; else it is
    read as JSON."""
    if block[end - 1] != ord("\n"):
        raise ValueError("the line is cut off")
    cut = []
    for name, key in keys.items():
        at = block.find(key, start, end)
        opened = block.find(b"[", at, end) if at >= 0 else -1
        if opened >= 0 and not block[at + len(key) : opened].strip():
            cut.append((opened, block.find(b"]", opened, end) + 1, name))
    pieces, place = [], start
    for opened, closed, _ in sorted(cut):
        pieces.append(block[place:opened])
        place = closed
    rest = b"null".join([*pieces, block[place:end]])
    if any(rest.count(keys[name]) > 1 for *_, name in cut):
        return _whole(block[start:end], keys)  # the name comes twice: one of them may be inside another value
    row = json.loads(rest)
    if any(row.get(name, ...) is not None for *_, name in cut) or any(row.get(name) is not None for name in keys):
        return _whole(block[start:end], keys)  # the list stood inside another value, or apart from its name
    return row | {name: parse_ids(block[opened + 1 : closed - 1]) for opened, closed, name in cut}


def _whole(line: bytes, names: Collection[str]) -> dict[str, Any]:
    row = json.loads(line)
    for name in names:
        if row.get(name) is not None:
            if not isinstance(row[name], list):
                raise ValueError(f"{name} is no list")
            row[name] = parse_ids(json.dumps(row[name])[1:-1].encode())
    return row


def parse_ids(text: bytes) -> np.ndarray:
    """The inside of a JSON list of whole numbers as an int32 array; ValueError for anything else."""
    text = text.strip()
    if not text:
        return np.zeros(0, dtype=np.int32)
    if text.endswith(b","):
        raise ValueError("a comma with no id behind it")
    values = np.fromstring(text, dtype=np.int64, sep=",")
    if values.view(np.uint64).max() > _LARGEST_ID:  # negative ones are large as unsigned numbers
        raise ValueError(f"{values.min()} or {values.max()} is no token id")
    return values.astype(np.int32)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
