"""Rows of Parquet and CSV, of a folder of files, and of a hub data set; one batch in memory at a time.

Each reader is an iterable of rows with `.lost`, as the JSON readers in `records` are.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from eagle3lab.data.records import JsonArray, JsonLines, Lost, OneRecord, RecordsError, records_of

SUFFIXES = (".json", ".jsonl", ".traj", ".parquet", ".csv")
_BATCH_ROWS = 256
_LONGEST_FIELD = 1 << 28


@dataclass
class ParquetRows:
    """Rows of a Parquet file as dicts. A damaged file raises RecordsError naming it."""

    path: Path
    lost: list[Lost] = field(default_factory=list)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(self.path) as file:
                for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                    yield from batch.to_pylist()
        except (pa.ArrowInvalid, OSError) as error:
            raise RecordsError(f"{self.path} cannot be read as Parquet: {error}") from error


@dataclass
class CsvRows:
    """Rows of a CSV file with a header line as dicts of texts; a row of another width goes to `.lost`."""

    stream: BinaryIO
    name: str = "stream"
    lost: list[Lost] = field(default_factory=list)

    def __iter__(self) -> Iterator[dict[str, str]]:
        csv.field_size_limit(_LONGEST_FIELD)
        byte, start, header = 0, 0, None

        def lines() -> Iterator[str]:
            nonlocal byte
            for line in io.TextIOWrapper(self.stream, encoding="utf-8-sig", newline=""):
                byte += len(line.encode("utf-8"))
                yield line

        number = 0
        try:
            for cells in csv.reader(lines(), strict=True):
                if not cells:
                    pass
                elif header is None:
                    header = cells
                    if len(set(header)) != len(header):
                        raise RecordsError(f"{self.name}: columns repeat in the header: {', '.join(header)}")
                else:
                    if len(cells) == len(header):
                        yield dict(zip(header, cells, strict=True))
                    else:
                        reason = f"{len(cells)} cells, the header has {len(header)}"
                        self.lost.append(Lost(number, start, byte - start, reason))
                    number += 1
                start = byte
        except csv.Error as error:  # a quote that is never closed swallows the rest of the file
            self.lost.append(Lost(number, start, byte - start, f"not CSV: {error}"))
        except UnicodeDecodeError as error:
            raise RecordsError(f"{self.name} is not UTF-8 near byte {byte}: {error.reason}") from error


@dataclass
class FolderRows:
    """Rows of all files of a folder in the order of their names; records are counted through."""

    folder: Path
    lost: list[Lost] = field(default_factory=list)

    def __iter__(self) -> Iterator[Any]:
        number = 0
        for path in files_of(self.folder):
            with open_records(path) as rows:
                for row in rows:
                    number += 1
                    yield row
                self.lost += [replace(one, record=number, reason=f"{path.name}: {one.reason}") for one in rows.lost]
                number += len(rows.lost)


@dataclass
class HubRows:
    """Rows of a data set on the hub, streamed through the `datasets` library. RecordsError says what is missing."""

    hub: str
    config: str | None
    split: str
    files: str | None
    revision: str | None
    lost: list[Lost] = field(default_factory=list)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            from datasets import load_dataset
        except ImportError as error:
            raise RecordsError(
                f"{self.hub} is on the hub, and the `datasets` library is not installed: install the extra `hub` "
                f"(`pip install -e '.[hub]'`), or download its files and name them: NAME:ADAPTER:PATH"
            ) from error
        options = {"name": self.config, "data_files": self.files, "revision": self.revision}
        options = {name: value for name, value in options.items() if value}
        try:
            yield from load_dataset(self.hub, split=self.split, streaming=True, **options)
        except (OSError, ValueError, RuntimeError) as error:  # no network, no such set, split or configuration
            raise RecordsError(f"{self.hub}, split {self.split}: {type(error).__name__}: {error}") from error


def files_of(folder: Path) -> list[Path]:
    """The readable files of a folder, sorted by name; RecordsError when there is none."""
    found = [p for p in sorted(folder.iterdir()) if p.is_file() and Path(p.name.removesuffix(".gz")).suffix in SUFFIXES]
    if not found:
        raise RecordsError(f"{folder} holds no file ending in {', '.join(SUFFIXES)} (or those with .gz)")
    return found


@contextmanager
def open_records(path: str | Path) -> Iterator[JsonArray | JsonLines | CsvRows | ParquetRows | OneRecord]:
    """The rows of one file by its ending: Parquet, CSV, or JSON in any of its forms; .gz is unpacked on the way, and
    refused (RecordsError) where it is cut off or damaged."""
    path = Path(path)
    plain = Path(path.name.removesuffix(".gz"))
    if plain.suffix == ".parquet":
        yield ParquetRows(path)
        return
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as stream:
            yield CsvRows(stream, path.name) if plain.suffix == ".csv" else records_of(stream, path.name)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise RecordsError(
            f"{path.name} is cut off or damaged ({error}); fetch it again, or unpack what is left of it"
        ) from error
