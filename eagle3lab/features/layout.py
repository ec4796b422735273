"""The files of a feature store and what makes them valid. Writers and readers go through here.

    store.json                   what readers go by: fingerprint, codec, shards; there while the store is finished
    part-<part>.json             the same for the shards of one writer; `complete` once it was closed
    index-<part>.jsonl           per row: id, split, set, shard, offset, n, last_offset, n_last, loss_spans, crc32
    shard-<part>-00000.safetensors  the tensors of codec.py; rows end to end

Beside the folder, <its name>-quarantine/ holds damaged shards that were moved aside.

A shard counts when its part's JSON lists it and the index holds all its rows. That JSON is replaced last, so whatever a
killed writer left besides is not part of the store.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from eagle3lab.features.index import Index
from eagle3lab.workbench.files import atomic_path, read_json

FORMAT = 2
STORE = "store.json"
PLAN = "live.json"  # in the place of a store: rows that are captured when they are read, see live.py
SIZES = ("rows", "tokens", "teacher_slots", "bytes")
IDENTITY = ("format", "codec", "vocab_size", "aux_layers", "hidden_size")  # and every field of the fingerprint


class FeatureStoreError(ValueError):
    """A feature store cannot be used as it is; the message names the file and the way out."""


class DiskFullError(FeatureStoreError):
    """There is no room for what has to be written."""


def check_part_name(part: str) -> None:
    """Raises ValueError for a name that cannot stand in file names."""
    if not re.fullmatch(r"[A-Za-z0-9_]+", part):
        raise ValueError(f"part={part!r}: letters, digits and underscores only")


def manifest_path(folder: Path, part: str) -> Path:
    return folder / f"part-{part}.json"


def index_path(folder: Path, part: str) -> Path:
    return folder / f"index-{part}.jsonl"


def lock_path(folder: Path, part: str) -> Path:
    return folder / f".part-{part}.lock"


def quarantine_folder(folder: Path) -> Path:
    """Beside the store: what is wrong is no part of it, and may be deleted."""
    folder = folder.absolute()
    return folder.with_name(f"{folder.name}-quarantine")


def shard_name(part: str, number: int) -> str:
    return f"shard-{part}-{number:05d}.safetensors"


def shard_number(name: str) -> int:
    return int(name.removesuffix(".safetensors").rsplit("-", 1)[1])


def read_parts(folder: Path) -> dict[str, dict]:
    """Part name -> its JSON, in the order of the names. Raises FeatureStoreError for another format."""
    parts = {path.stem.removeprefix("part-"): path for path in sorted(folder.glob("part-*.json"))}
    return {part: read_manifest(path) for part, path in parts.items()}


def read_manifest(path: Path) -> dict:
    """store.json or a part's JSON. Raises FeatureStoreError for a format this version does not read."""
    manifest = read_json(path)
    if manifest.get("format") != FORMAT:
        raise FeatureStoreError(
            f"{path} has format {manifest.get('format', 1)}, this version reads {FORMAT}; remove the folder and "
            "extract again"
        )
    return manifest


def read_index(folder: Path, part: str, shards: Iterable[dict]) -> tuple[Index, list[str]]:
    """The index of the listed shards of one part, in stored order, and the names of shards that lack rows in it.

    A partial last line is passed over: its writer is at work, or was killed before it could list the shard.
    """
    listed = {entry["name"]: entry["rows"] for entry in shards}
    index, found = Index(), Counter()
    for row in _lines(index_path(folder, part)):
        if row["shard"] in listed:
            found[row["shard"]] += index.add(row)
    lacking = [name for name, count in listed.items() if found[name] != count]
    if lacking:
        index = Index(row for row in index.rows() if row["shard"] not in lacking)
    return index, lacking


def write_index(folder: Path, part: str, rows: Iterable[dict]) -> None:
    """Replaces the index of a part."""
    with atomic_path(index_path(folder, part)) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.writelines(index_line(row) for row in rows)


def index_line(row: dict) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def _lines(path: Path) -> Iterator[dict]:
    if not path.exists():
        return
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield json.loads(line)
            except ValueError as error:
                raise FeatureStoreError(
                    f"{path}, line {number}: not JSON ({error}); remove the folder and extract again"
                ) from error


def shard_is_whole(folder: Path, entry: dict) -> bool:
    """Is the file there with the bytes it was written with?"""
    path = folder / entry["name"]
    return path.exists() and path.stat().st_size == entry["bytes"]


def sizes(shards: Iterable[dict]) -> dict[str, int]:
    """Sums of the sizes of shards."""
    shards = list(shards)
    return {name: sum(entry[name] for entry in shards) for name in SIZES}


def as_stored(fingerprint: dict) -> dict:
    """A fingerprint as it reads back from JSON: tuples become lists."""
    return json.loads(json.dumps(fingerprint, allow_nan=False))


def identity(manifest: dict) -> dict:
    """All that has to agree between writers of one store."""
    return {**manifest["fingerprint"], **{name: manifest[name] for name in IDENTITY}}


def check_fingerprint(folder: Path, found: dict, expected: dict) -> None:
    """Raises FeatureStoreError with one line per field in which the two fingerprints differ."""
    nothing, expected = "(nothing)", as_stored(expected)
    pairs = {name: (found.get(name, nothing), expected.get(name, nothing)) for name in {*found, *expected}}
    fields = [f"  {name}: the store has {a!r}, expected {b!r}" for name, (a, b) in sorted(pairs.items()) if a != b]
    if fields:
        raise FeatureStoreError(
            f"{folder} was made from something else:\n" + "\n".join(fields) + "\nuse another folder, or remove this one"
        )
