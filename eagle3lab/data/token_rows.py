"""Rows of token ids as Arrow holds them, for files and batches of them.

A row is a dict; its `input_ids` may be a list or a numpy array of int32, and what is read here gives arrays. Lists cost
some 36 bytes an id, arrays 4: a corpus of 88,088 rows of 2,000 tokens is 6 GB one way and 0.7 GB the other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np


class CorpusError(ValueError):
    """Prompts and answers that do not belong together, or a file that is not what it should be."""


def corpus_schema() -> Any:
    """Columns of the corpus: id, set, split, origin, input_ids, loss_spans, finish_reason."""
    import pyarrow as pa

    text, ids = pa.string(), pa.list_(pa.int32())
    columns = [("id", text), ("set", text), ("split", text), ("origin", text), ("input_ids", ids)]
    return pa.schema([*columns, ("loss_spans", pa.list_(ids)), ("finish_reason", text)])


def int32_of(values: Any) -> np.ndarray:
    """An Arrow int32 array without nulls as a view (`to_numpy` would import pandas)."""
    if not len(values):
        return np.zeros(0, dtype=np.int32)
    start = values.offset
    return np.frombuffer(values.buffers()[1], dtype=np.int32)[start : start + len(values)]


def rows_of(batch: Any) -> Iterator[dict[str, Any]]:
    """Corpus rows of an Arrow record batch; `input_ids` are views of its values."""
    column = batch.column("input_ids")
    values, offsets = int32_of(column.values), int32_of(column.offsets)
    others = {name: batch.column(name).to_pylist() for name in batch.schema.names if name != "input_ids"}
    for number in range(batch.num_rows):
        row = {name: cells[number] for name, cells in others.items()}
        yield row | {"input_ids": values[offsets[number] : offsets[number + 1]]}


def batch_of(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Corpus rows as an Arrow record batch."""
    import pyarrow as pa

    schema = corpus_schema()
    ids = [np.asarray(row["input_ids"], dtype=np.int32) for row in rows]
    offsets = np.cumsum([0, *map(len, ids)], dtype=np.int32)
    values = pa.array(np.concatenate(ids)) if ids else pa.array([], pa.int32())
    columns = {"input_ids": pa.ListArray.from_arrays(pa.array(offsets), values)}
    for field in schema:
        if field.name not in columns:
            columns[field.name] = pa.array([row[field.name] for row in rows], type=field.type)
    return pa.record_batch([columns[name] for name in schema.names], schema=schema)


def row_digest(row: Mapping[str, Any]) -> bytes:
    """Digest of what a row trains: id, tokens and spans."""
    digest = hashlib.sha256(json.dumps([row["id"], row["loss_spans"]]).encode())
    digest.update(content_bytes(row))
    return digest.digest()


def content_bytes(row: Mapping[str, Any]) -> bytes:
    """The row's tokens as little-endian int32."""
    return np.asarray(row["input_ids"], dtype="<i4").tobytes()


def joined(first: Sequence[int], second: Sequence[int]) -> Sequence[int]:
    """Two runs of ids one after the other: a list of lists, an array as soon as one of them is an array."""
    if isinstance(first, list) and isinstance(second, list):
        return [*first, *second]
    return np.concatenate([first, second], dtype=np.int32, casting="same_kind")


def same_ids(first: Sequence[int], second: Sequence[int]) -> bool:
    """Whether two runs of ids, lists or arrays, are equal."""
    if len(first) != len(second):
        return False
    return np.asarray(first, dtype=np.int32).tobytes() == np.asarray(second, dtype=np.int32).tobytes()
