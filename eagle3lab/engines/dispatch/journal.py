"""What is settled, on disk: one appended line for a finished row, one for a row that was set aside.

Lines are handed to the operating system as they are written, so a killed process loses none. They are forced to the
disk every `SYNC_ROWS` rows or `SYNC_SECONDS`, whichever comes first, and at the end: a power cut loses at most those
rows, and they are answered again.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eagle3lab.engines.base import Completion
from eagle3lab.workbench.files import iter_jsonl, read_json, write_bytes_atomic, write_json_atomic

SYNC_ROWS, SYNC_SECONDS = 512, 5.0
COMPLETIONS, SET_ASIDE, SETTINGS = "completions.jsonl", "set_aside.jsonl", "settings.json"


class JournalError(ValueError):
    """A journal that cannot be written or continued."""


class Journal:
    """The folder of a dispatch; a context manager that holds it open, for one process at a time.

    completions.jsonl   {"id", "set", "prompt_ids", "output_ids", "finish_reason", "seconds", "server"} a finished row
    set_aside.jsonl     {"id", "set", "kind", "reason", "tries", "server"} a row given up; the last line of an id
                        counts, and none when the row was finished later
    settings.json       what answers depend on; a journal is continued only with the same

    done       id -> (tokens, finish reason) of the rows that were finished when the journal was opened
    set_aside  id -> kind of those set aside by then and not finished since

    A partial last line (its writer was cut off) is dropped on opening. Raises JournalError for other settings, a row
    that is there twice, a broken line before the last, and a journal that another process writes.
    """

    def __init__(self, folder: str | Path, settings: Mapping[str, Any]):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.completions = self.folder / COMPLETIONS
        self._completed = _Appended(self.completions)
        self._aside = _Appended(self.folder / SET_ASIDE)
        try:
            self._settle_settings(dict(settings))
            self.done = self._read_done()
            rows = _whole_rows(self._aside.path)
            self.set_aside = {row["id"]: row["kind"] for row in rows if row["id"] not in self.done}
        except BaseException:
            self.close()
            raise
        self._unsynced, self._synced = 0, time.monotonic()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *failure) -> None:
        self.close()

    def add(self, set_name: str, completion: Completion, server: str) -> None:
        """Append a finished row. OSError (disk full) leaves no part of the line behind."""
        line = {
            "id": completion.id, "set": set_name, "prompt_ids": completion.prompt_ids,
            "output_ids": completion.output_ids, "finish_reason": completion.finish_reason,
            "seconds": round(completion.seconds, 3), "server": server,
        }  # fmt: skip
        self._completed.append(line)
        self._unsynced += 1

    def put_aside(self, row_id: str, set_name: str, kind: str, reason: str, tries: int, server: str) -> None:
        """Append a row that is given up, with the reason."""
        self._aside.append(
            {"id": row_id, "set": set_name, "kind": kind, "reason": reason, "tries": tries, "server": server}
        )
        self._unsynced += 1

    def due(self) -> bool:
        """Whether it is time to `sync`."""
        late = time.monotonic() - self._synced >= SYNC_SECONDS
        return self._unsynced >= SYNC_ROWS or (late and self._unsynced > 0)

    def sync(self) -> None:
        """Force to the disk what was appended before the call. May run beside `add`, in another thread."""
        self._unsynced, self._synced = 0, time.monotonic()
        self._completed.sync()
        self._aside.sync()

    def close(self) -> None:
        """Sync, and let go of the folder."""
        self._completed.close()
        self._aside.close()

    def _read_done(self) -> dict[str, tuple[int, str]]:
        done: dict[str, tuple[int, str]] = {}
        for number, row in enumerate(_whole_rows(self.completions), 1):
            if row["id"] in done:
                raise JournalError(
                    f"{self.completions}, line {number}: row {row['id']!r} is there twice; it was edited, or two files "
                    "were joined. Remove one of the two lines"
                )
            done[row["id"]] = (len(row["output_ids"]), row["finish_reason"])
        return done

    def _settle_settings(self, settings: dict[str, Any]) -> None:
        path = self.folder / SETTINGS
        settings = json.loads(json.dumps(settings))  # as it will be read back
        before = read_json(path) if path.exists() else {}
        for name in settings.keys() & before.keys():
            if settings[name] != before[name]:
                raise JournalError(
                    f"{self.folder} was begun with {name}={before[name]!r}, now it is {settings[name]!r}: answers of "
                    "both would be mixed. Use the same value, or another folder"
                )
        if settings.keys() - before.keys():
            write_json_atomic(path, before | settings)


class _Appended:
    """A file that only grows by whole lines, locked for this process."""

    def __init__(self, path: Path):
        self.path, self._failed = path, False
        if not path.exists():
            write_bytes_atomic(path, b"")  # a power cut later does not lose the file's name
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._handle)
            raise JournalError(f"{path} is being written by another process; wait for it, or end it") from error

    def append(self, row: Mapping[str, Any]) -> None:
        if self._failed:
            raise JournalError(f"{self.path} could not be written a moment ago; nothing is added to it any more")
        text = json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
        line = text.encode("utf-8", "backslashreplace")  # a lone surrogate (of a server's words) becomes JSON's escape
        written = 0
        try:
            while written < len(line):
                written += os.write(self._handle, line[written:])
        except BaseException:
            self._failed = True  # a later line must not be glued to part of this one
            os.ftruncate(self._handle, os.fstat(self._handle).st_size - written)
            raise

    def sync(self) -> None:
        if self._handle >= 0:
            os.fsync(self._handle)

    def close(self) -> None:
        if self._handle >= 0:
            os.fsync(self._handle)
            os.close(self._handle)
            self._handle = -1


def _whole_rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        yield from iter_jsonl(path, partial="repair")
    except ValueError as error:
        raise JournalError(
            f"{error}. A power cut may leave this behind: cut the file before that line; rows that stood behind it are "
            "asked for again"
        ) from error


def read_answers(folder: str | Path) -> Iterator[dict[str, Any]]:
    """The finished rows of a journal, one in memory at a time; a partial last line (a writer at work) is left out."""
    return iter_jsonl(Path(folder) / COMPLETIONS, partial="skip")


def read_set_aside(folder: str | Path) -> list[dict[str, Any]]:
    """The rows that are set aside: the last line of each that was not finished since."""
    last = {row["id"]: row for row in iter_jsonl(Path(folder) / SET_ASIDE, partial="skip")}
    if last:
        for row in read_answers(folder):
            last.pop(row["id"], None)
    return list(last.values())
