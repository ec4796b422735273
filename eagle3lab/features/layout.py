"""The files of a feature store and what makes them valid. Both the writer and the reader go through here.

    store.json               fingerprint, codec, sizes, complete, and per shard: rows, tokens, bytes, sha256
    index.jsonl              per row: id, split, set, shard, offset, n, last_offset, n_last, loss_spans
    shard-00000.safetensors  input_ids int32 [T], aux bf16 [T, A, H], last bf16 [M, H]; rows end to end

A shard counts when store.json lists it and the index holds all its rows. store.json is replaced last, so
whatever a killed writer left besides is not part of the store.
"""

import json
from collections import Counter
from pathlib import Path

from eagle3lab.workbench.files import read_json, read_jsonl

CODEC = "bf16"
STORE, INDEX = "store.json", "index.jsonl"


class FeatureStoreError(ValueError):
    """A feature store cannot be used as it is; the message names the file and the way out."""


def shard_name(number: int) -> str:
    return f"shard-{number:05d}.safetensors"


def read_store(folder: Path) -> dict | None:
    """store.json, or None where no shard was ever completed."""
    path = folder / STORE
    return read_json(path) if path.exists() else None


def valid_rows(folder: Path, store: dict, repair: bool = False) -> list[dict]:
    """Index rows of the listed shards, in stored order.

    Raises FeatureStoreError when the index lacks rows of a listed shard (the reader), or leaves such shards
    out (`repair`, the writer).
    """
    rows = read_jsonl(folder / INDEX, repair=repair)
    listed = {entry["name"]: entry for entry in store["shards"]}
    found = Counter(row["shard"] for row in rows)
    incomplete = {name for name, entry in listed.items() if found[name] != entry["rows"]}
    if incomplete and not repair:
        raise FeatureStoreError(
            f"{folder / INDEX} does not hold all rows of {', '.join(sorted(incomplete))}; run the extraction "
            "again, it rewrites what is missing"
        )
    return [row for row in rows if row["shard"] in listed and row["shard"] not in incomplete]


def as_stored(fingerprint: dict) -> dict:
    """A fingerprint as it reads back from JSON: tuples become lists."""
    return json.loads(json.dumps(fingerprint, allow_nan=False))


def check_fingerprint(folder: Path, found: dict, expected: dict) -> None:
    """Raises FeatureStoreError with one line per field in which the two fingerprints differ."""
    nothing, expected = "(nothing)", as_stored(expected)
    pairs = {name: (found.get(name, nothing), expected.get(name, nothing)) for name in {*found, *expected}}
    fields = [
        f"  {name}: the store has {a!r}, expected {b!r}" for name, (a, b) in sorted(pairs.items()) if a != b
    ]
    if fields:
        raise FeatureStoreError(
            f"{folder} was made from something else:\n"
            + "\n".join(fields)
            + "\nuse another folder, or remove this one"
        )
