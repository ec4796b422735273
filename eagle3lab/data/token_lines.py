"""JSON lines of token ids, read without a Python object for each id.

The lists of ids are cut out of each line and read together as numbers; the JSON reader gets the rest. That is several
times faster than reading the whole as JSON, which would take longer than everything else a merge does.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from eagle3lab.data.token_rows import CorpusError, int32_of

_BLOCK_BYTES = 8 << 20


def read_token_lines(path: str | Path, ids: Collection[str]) -> Iterator[dict[str, Any]]:
    """Rows of a JSON-lines file, streaming; the columns named in `ids` become int32 arrays, at the top of a row only.

    CorpusError names file and line when a line is cut off or not JSON, or the lines near which an id is no number.
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
    rows, texts, places = [], [], []
    for number, line in enumerate(lines, first):
        if not line.endswith(b"\n"):
            raise CorpusError(f"{path}, line {number}: partial last line; read_jsonl(path, repair=True) drops it")
        try:
            row, cut = _read_line(line, ids)
            for name in ids:
                if isinstance(row.get(name), list):
                    row[name] = np.array(row[name], dtype=np.int32)
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise CorpusError(f"{path}, line {number}: not a row of token ids ({error})") from error
        rows.append(row)
        texts += [text for _, text in cut]
        places += [(row, name) for name, _ in cut]
    try:
        found = parse_id_lists(texts)
    except (ValueError, OverflowError) as error:
        raise CorpusError(f"{path}, lines {first} to {first + len(lines) - 1}: {error}") from error
    for (row, name), values in zip(places, found, strict=True):
        row[name] = values
    return rows


def _read_line(line: bytes, ids: Collection[str]) -> tuple[dict[str, Any], list[tuple[str, bytes]]]:
    """(the row with null for each list cut out, [(column, the list's text)]).

    A line where that might not be the column meant (the name comes twice, or inside another value) is read whole.
    """
    rest, cut = line, []
    for name in ids:
        key = f'"{name}":'.encode()
        at = rest.find(key)
        opened = rest.find(b"[", at)
        if at < 0 or opened < 0 or rest[at + len(key) : opened].strip():
            continue
        closed = rest.find(b"]", opened)
        if rest.find(key, closed) >= 0:
            return json.loads(line), []
        cut.append((name, rest[opened + 1 : closed]))
        rest = rest[:opened] + b"null" + rest[closed + 1 :]
    row = json.loads(rest)
    if any(row.get(name, ...) is not None for name, _ in cut):
        return json.loads(line), []
    return row, cut


def parse_id_lists(texts: Sequence[bytes]) -> list[np.ndarray]:
    """The insides of JSON lists of whole numbers as int32 arrays; ValueError for anything else."""
    import pyarrow as pa

    texts = [text.strip() for text in texts]
    joined = b", ".join(text for text in texts if text)
    if not joined:
        return [np.zeros(0, dtype=np.int32) for _ in texts]
    characters = np.frombuffer(joined, dtype=np.uint8)
    commas = np.flatnonzero(characters == ord(","))
    digits = joined.translate(None, b", ")
    spaced = commas[-1:].tolist() != [len(joined) - 1] and (characters[commas + 1] == ord(" ")).all()
    if not spaced or len(joined) - len(digits) != 2 * len(commas):
        return [_as_json(text) for text in texts]  # not written as Python's json module writes it
    # Arrow reads numbers from a column of texts: the digits without what is between them, and where each starts.
    offsets = np.empty(len(commas) + 2, dtype=np.int32)
    offsets[0], offsets[-1] = 0, len(digits)
    offsets[1:-1] = commas - 2 * np.arange(len(commas))
    strings = pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(digits))
    values = int32_of(strings.cast(pa.int32()))  # pa.ArrowInvalid is a ValueError
    # The lists end where their texts did in the joined one: after so many commas, hence so many numbers.
    lengths = np.array([len(text) + 2 if text else 0 for text in texts])
    ends = np.searchsorted(commas, np.cumsum(lengths) - 2, side="right")
    ends[lengths.cumsum() == lengths.sum()] = len(values)
    bounds = [0, *ends.tolist()]
    return [values[start:end] for start, end in zip(bounds, bounds[1:], strict=False)]


def _as_json(text: bytes) -> np.ndarray:
    values = json.loads(b"[" + text + b"]")
    if any(type(value) is not int for value in values):
        raise ValueError("an id is no whole number")
    return np.array(values, dtype=np.int32)
