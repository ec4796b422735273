"""Files that appear whole or not at all, and append-only JSON lines.

A file is written under a temporary name in its own folder, fsynced and renamed: a reader, or a run cut off by
a power cut, never sees half of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

_CHUNK = 1 << 20


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it is fsynced and renamed to `path`, on error removed.

    The suffix of `path` is kept, so that libraries that look at it write the right format.
    Raises FileNotFoundError when the block leaves no file at the temporary path.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}-{secrets.token_hex(4)}.tmp{path.suffix}")
    try:
        yield temporary
        _fsync(temporary)
        os.replace(temporary, path)
        _fsync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; on success it replaces `path`, on error it is removed.

    An older folder at `path` is moved aside before the rename and deleted after it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    mark = f"{os.getpid()}-{secrets.token_hex(4)}"
    temporary, old = path.with_name(f".{path.name}.{mark}.tmp"), path.with_name(f".{path.name}.{mark}.old")
    temporary.mkdir()
    try:
        yield temporary
        for item in temporary.rglob("*"):
            _fsync(item)
        if path.exists():
            os.replace(path, old)
        os.replace(temporary, path)
        _fsync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_bytes_atomic(path: str | Path, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_text_atomic(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8 to `path`, whole or not at all."""
    write_bytes_atomic(path, text.encode("utf-8"))


def write_json_atomic(path: str | Path, obj: Any) -> None:
    """Write `obj` as JSON (indent 1, key order kept) to `path`, whole or not at all; ValueError for NaN."""
    write_text_atomic(path, json.dumps(obj, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    """The JSON in `path`; ValueError names the file when it is not JSON."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON ({error}); remove it, or restore it from a copy") from error


def sha256_file(path: str | Path) -> str:
    """SHA-256 of a file's bytes, as hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def append_jsonl(path: str | Path, row: Any) -> None:
    """Append `row` as one line of JSON and flush it.

    Raises ValueError for NaN, and when the file ends in a partial line (a writer was cut off): appending to
    it would glue two rows together; read it once with `read_jsonl(path, repair=True)`.
    """
    line = json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                raise ValueError(f"{path} ends in a partial line: read it once with read_jsonl(path, repair=True)")
        file.write(line.encode("utf-8"))


def read_jsonl(path: str | Path, repair: bool = False) -> list[Any]:
    """All rows of a JSON-lines file, as `iter_jsonl` gives them; with `repair` a partial last line is dropped and
    cut from the file.
    """
    return list(iter_jsonl(path, "repair" if repair else "refuse"))


def iter_jsonl(path: str | Path, partial: Literal["refuse", "repair", "skip"] = "refuse") -> Iterator[Any]:
    """The rows of a JSON-lines file, one in memory at a time; a missing file has none.

    A last line without its line end is partial (its writer was cut off, or is at work): ValueError with file and
    line; "repair" drops it and cuts it from the file; "skip" leaves it out and the file alone. Any other bad line
    raises ValueError with file and line.
    """
    path = Path(path)
    if not path.exists():
        return
    whole_bytes = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                if partial == "refuse":
                    raise ValueError(f"{path}, line {number}: partial last line; repair=True drops it")
                if partial == "repair":
                    os.truncate(path, whole_bytes)
                return
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: not JSON ({error})") from error
            whole_bytes += len(line)
            yield row
