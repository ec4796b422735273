"""Tolerant streaming readers of JSON arrays and JSON lines.

Memory is bounded by the largest record, not by the file. What is whole is yielded; what is not is told in
`.lost`: a file cut off in the middle of a record costs that record, not the rest.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO

_CHUNK_BYTES = 1 << 20
_LARGEST_OBJECT = 1 << 28
_NOT_SPACE = re.compile(r"[^ \t\r\n]")
# A decoding error this near the end of what is read so far may come from the cut, e.g. inside `\\u12` or
# `fals`.
_CUT_MARGIN = 16
_CUT_OFF = ": it was cut off; all before that is read, the rest needs the whole file"


class RecordsError(ValueError):
    """The file is not what it claims to be: not an array, not UTF-8, or malformed before its end."""


@dataclass(frozen=True)
class Lost:
    """One record that could not be read. `record` counts from 0, `byte` is where it starts in the file; `line` counts
    from 1, as editors do, where a record is a line."""

    record: int
    byte: int
    dropped_bytes: int
    reason: str
    line: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class JsonArray:
    """Iterator over the elements of a top-level JSON array in a binary stream, one record in memory at a
    time.

    A file that ends inside a record loses that record: `.lost` then has one entry. A record that is malformed
    before the end of the file raises RecordsError, because nothing after it could be trusted.
    """

    stream: BinaryIO
    name: str = "stream"
    max_record_bytes: int = 1 << 28
    lost: list[Lost] = field(default_factory=list)

    def __iter__(self) -> Iterator[Any]:
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._buffer, self._at, self._byte, self._ended = "", 0, 0, False
        decoder = json.JSONDecoder(strict=False)
        number = 0
        if self._next_char() != "[":
            raise RecordsError(f"{self.name} is not a JSON array (it starts with {self._buffer[:20]!r})")
        self._take(self._at + 1)
        while True:
            char = self._next_char()
            if char == ",":
                self._take(self._at + 1)
                char = self._next_char()
            if char == "]":
                return
            if not char:
                self._lose(number, f"the file ends before the closing bracket{_CUT_OFF}")
                return
            end = None
            while end is None:
                ended = self._ended
                try:
                    row, end = self._whole_value(decoder)
                except json.JSONDecodeError as error:
                    cut = error.msg.startswith("Unterminated") or error.pos >= len(self._buffer) - _CUT_MARGIN
                    if not cut:
                        raise RecordsError(
                            f"{self.name}: record {number} (byte {self._byte}) is malformed: {error.msg} at "
                            f"character {error.pos - self._at} of the record; mend or remove that record"
                        ) from error
                    if ended:
                        self._lose(number, f"the file ends inside the record ({error.msg}){_CUT_OFF}")
                        return
                    self._more()
                except (ValueError, RecursionError) as error:  # a number of 5,000 digits, lists in lists in lists
                    raise RecordsError(
                        f"{self.name}: record {number} (byte {self._byte}) cannot be read: {error}; remove that record"
                    ) from error
            yield row
            self._take(end)
            number += 1

    def _whole_value(self, decoder: json.JSONDecoder) -> tuple[Any, int]:
        """The value at the cursor and its end; JSONDecodeError unless it is whole and a delimiter follows."""
        row, end = decoder.raw_decode(self._buffer, self._at)
        following = _NOT_SPACE.search(self._buffer, end)
        if following and following.group() in ",]":
            return row, end
        # At the end of the file only a number (`12` of `123`) cannot show that it is whole.
        if not following and self._ended and self._buffer[self._at] not in "-0123456789":
            return row, end
        raise json.JSONDecodeError(
            "Expecting ',' delimiter", self._buffer, following.start() if following else len(self._buffer)
        )

    def _more(self) -> bool:
        """Read on: at least a chunk, and as much as is pending, so that a large record is decoded few
        times."""
        pending = len(self._buffer) - self._at
        if pending > self.max_record_bytes:
            raise RecordsError(f"{self.name}: the record at byte {self._byte} is larger than max_record_bytes")
        data = b"" if self._ended else self.stream.read(max(_CHUNK_BYTES, pending))
        self._ended = not data
        try:
            # No final=True: a multi-byte character cut by the end of the file is part of the lost record.
            self._buffer, self._at = self._buffer[self._at :] + self._decode(data), 0
        except UnicodeDecodeError as error:
            raise RecordsError(f"{self.name} is not UTF-8 near byte {self._byte}: {error.reason}") from error
        return bool(data)

    def _next_char(self) -> str:
        """The next character that is no space, with the cursor on it; empty at the end of the file."""
        while not (found := _NOT_SPACE.search(self._buffer, self._at)):
            self._take(len(self._buffer))
            if not self._more():
                return ""
        self._take(found.start())
        return found.group()

    def _take(self, end: int) -> None:
        self._byte += len(self._buffer[self._at : end].encode("utf-8"))
        self._at = end

    def _lose(self, number: int, reason: str) -> None:
        dropped = len(self._buffer[self._at :].encode("utf-8"))
        self.lost.append(Lost(number, self._byte, dropped, reason))


@dataclass
class JsonLines:
    """Iterator over the rows of a JSON-lines binary stream; a broken line goes to `.lost` and reading goes
    on. `line` is the one read last, from 1."""

    stream: BinaryIO
    name: str = "stream"
    lost: list[Lost] = field(default_factory=list)
    line: int = 0

    def __iter__(self) -> Iterator[Any]:
        byte = number = 0
        for at, line in enumerate(self.stream, 1):
            self.line = at
            if line.strip():
                try:
                    row = json.loads(line, strict=False)
                except (ValueError, RecursionError) as error:
                    self.lost.append(Lost(number, byte, len(line), f"not JSON: {error}", at))
                else:
                    yield row
                number += 1
            byte += len(line)


@dataclass
class OneRecord:
    """A file that is one JSON object over several lines: a single row, as agent trajectories are kept."""

    row: dict[str, Any]
    lost: list[Lost] = field(default_factory=list)

    def __iter__(self) -> Iterator[Any]:
        yield self.row


def records_of(stream: BinaryIO, name: str) -> JsonArray | JsonLines | OneRecord:
    """The right reader for a seekable binary stream: `[` opens an array; `{` with no whole object on its line may
    open one object that is the file; anything else is JSON lines."""
    first = stream.read(64).lstrip(b"\xef\xbb\xbf").lstrip()[:1]
    stream.seek(0)
    if first == b"[":
        return JsonArray(stream, name)
    if first == b"{" and not _is_json(stream.readline()):
        stream.seek(0)
        whole = stream.read(_LARGEST_OBJECT + 1)
        if len(whole) <= _LARGEST_OBJECT and _is_json(whole):
            return OneRecord(json.loads(whole, strict=False))
    stream.seek(0)
    return JsonLines(stream, name)


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data, strict=False)
    except (ValueError, RecursionError):
        return False
    return True
