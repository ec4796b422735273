"""The files of a feature store and what makes them valid. Writers and readers go through here.

    store.json                   what readers go by: fingerprint, codec, shards; there while the store is finished
    part-<part>.json             the same for the shards of one writer; `complete` once it was closed
    index-<part>.jsonl           per row: id, split, set, shard, offset, n, last_offset, n_last, loss_spans, crc32
    shard-<part>-00000.safetensors  the tensors of codec.py; rows end to end

The JSON of a part has, of every shard, its sizes and the CRC-32 of its header and of its lines in the index; these
lines have the CRC-32 of each row's tensors: no byte of a shard or an index goes unchecked.

Beside the folder, <its name>-quarantine/ holds damaged shards that were moved aside.

A shard counts when its part's JSON lists it and the index holds all its rows. That JSON is replaced last, so whatever a
killed writer left besides is not part of the store.
"""

import errno
import json
import re
import shutil
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from eagle3lab.features.index import NUMBERS, WORDS, Index
from eagle3lab.workbench.files import atomic_path, read_json

FORMAT = 2
STORE = "store.json"
PLAN = "live.json"  # in the place of a store: rows that are captured when they are read, see live.py
LINE = ("id", *WORDS, *NUMBERS, "loss_spans")  # of the index, in this order
SIZES = ("rows", "tokens", "teacher_slots", "bytes")
IDENTITY = ("format", "codec", "vocab_size", "aux_layers", "hidden_size")  # and every field of the fingerprint


FULL = (errno.ENOSPC, errno.EDQUOT)  # what a full disk is called


class FeatureStoreError(ValueError):
    """A feature store cannot be used as it is; the message names the file and the way out."""


class DiskFullError(FeatureStoreError):
    """There is no room for what has to be written."""


def says_full(error: BaseException) -> bool:
    """Does an error mean that the disk is full. safetensors has the system's number in its text alone."""
    if isinstance(error, OSError):
        return error.errno in FULL
    return isinstance(error, SafetensorError) and any(f"(os error {number})" in str(error) for number in FULL)


@contextmanager
def told_when_full(folder: Path) -> Iterator[None]:
    """Raises DiskFullError in the place of what the file system says when the disk is full."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if not says_full(error):
            raise
        free = shutil.disk_usage(folder if folder.exists() else folder.parent).free
        raise DiskFullError(
            f"the disk of {folder} is full ({free / 1e6:.1f} MB free). What was stored before is whole; make room and "
            "run it again, it goes on from here"
        ) from error


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
    """The index of the listed shards of one part, in stored order, and the names of shards whose lines are not all
    there as they were written: their rows are not in it.

    A partial last line is passed over: its writer is at work, or was killed before it could list the shard.
    """
    listed = {entry["name"]: (entry["rows"], entry.get("index_crc32")) for entry in shards}
    index, found, crc32 = Index(), Counter(), Counter()
    for line, row in _lines(index_path(folder, part)):
        if row["shard"] in listed:
            found[row["shard"]] += index.add(row)
            crc32[row["shard"]] = zlib.crc32(line, crc32[row["shard"]])
    lacking = [name for name, (count, crc) in listed.items() if found[name] != count or crc not in (None, crc32[name])]
    if lacking:
        index = Index(row for row in index.rows() if row["shard"] not in lacking)
    return index, lacking


def write_index(folder: Path, part: str, rows: Iterable[dict]) -> None:
    """Replaces the index of a part."""
    with atomic_path(index_path(folder, part)) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.writelines(index_line(row) for row in rows)


def index_line(row: dict) -> str:
    """The same text for the same row, whoever writes it: the index of a part may be written anew."""
    return json.dumps({name: row[name] for name in LINE}, ensure_ascii=False) + "\n"


def _lines(path: Path) -> Iterator[tuple[bytes, dict]]:
    """The lines of an index and what they say. One that is damaged is passed over: its shard lacks a row then."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line)
                row = {name: row[name] for name in LINE}
            except (ValueError, KeyError, TypeError):
                continue
            if _is_line(row):
                yield line, row


def _is_line(row: dict) -> bool:
    spans, numbers = row["loss_spans"], [row[name] for name in NUMBERS]
    if type(spans) is not list:
        return False
    for span in spans:
        if type(span) is not list or len(span) != 2:
            return False
        numbers += span
    words = {type(row[name]) for name in WORDS}
    if words != {str} or type(row["id"]) is not str or {*map(type, numbers)} != {int}:
        return False
    return min(numbers) >= 0 and max(numbers) < 1 << 62


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
