"""Streams of corpus rows: repeats left out, sets in a chosen mixture, shuffled on disk.

Each is an iterator over rows that can be put around another one, and counts what it leaves out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from eagle3lab.data.text import row_stem, share
from eagle3lab.data.token_rows import batch_of, content_bytes, corpus_schema, rows_of

_FLUSH_ROWS = 64


@dataclass
class WithoutRepeats:
    """Rows without those that repeat an earlier one: the same normalised prompt text in another set, or the same
    tokens. After the iteration `counts["input"] == counts["rows"] + sum(skipped.values())`.

    The text is known by the row's id (see `row_stem`); ids of other origin are compared by their tokens alone.
    """

    rows: Iterable[Mapping[str, Any]]
    counts: Counter = field(default_factory=Counter)
    skipped: Counter = field(default_factory=Counter)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        first_stem: dict[str, str] = {}
        contents: set[bytes] = set()
        for row in self.rows:
            self.counts["input"] += 1
            stem, key = row_stem(row["id"])
            content = sha256(content_bytes(row)).digest()
            if key is not None and first_stem.setdefault(key, stem) != stem:
                self.skipped["same_text"] += 1
            elif content in contents:
                self.skipped["same_tokens"] += 1
            else:
                contents.add(content)
                self.counts["rows"] += 1
                yield row


@dataclass
class Shuffled:
    """Rows in a random order that depends on their ids and `seed` alone, with memory for one bucket of them.

    The rows are first spread over `buckets` files in `folder` (a temporary folder in it), then read back bucket by
    bucket. `weights` (set -> weight) sets the shares of the sets among the training rows: as many rows as the
    scarcest set allows, none repeated; sets keep the rows that come first in a seeded order, so a smaller weight's
    rows are among a larger one's. Held-out rows are kept. `skipped` counts rows left out by the weights.
    """

    rows: Iterable[Mapping[str, Any]]
    seed: int
    folder: str | Path
    weights: Mapping[str, float] | None = None
    buckets: int = 32
    counts: Counter = field(default_factory=Counter)
    skipped: Counter = field(default_factory=Counter)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        import pyarrow as pa

        self._places: dict[str, float] = {}
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=self.folder, prefix=".shuffle-") as scratch:
            files = [Path(scratch) / f"{n}.arrow" for n in range(self.buckets)]
            last = self._spread(files)
            for file in files:
                with pa.OSFile(str(file), "rb") as source, pa.ipc.open_stream(source) as reader:
                    rows = [row for batch in reader for row in rows_of(batch)]
                file.unlink()
                for row in sorted(rows, key=lambda row: (self._places[row["id"]], row["id"])):
                    if last is not None and row["split"] == "train" and self._rank(row["id"]) > last[row["set"]]:
                        self.skipped["weight"] += 1
                        continue
                    self.counts["rows"] += 1
                    yield row

    def _spread(self, files: list[Path]) -> dict[str, float] | None:
        """Write every row to its bucket; returns the highest rank that each set keeps, None without weights."""
        import pyarrow as pa

        schema, ranks = corpus_schema(), dict[str, list[float]]()
        writers = [pa.ipc.new_stream(str(file), schema) for file in files]
        waiting: list[list] = [[] for _ in files]
        try:
            for row in self.rows:
                self.counts["input"] += 1
                place = self._places[row["id"]] = share(self.seed, f"shuffle:{row['id']}")
                bucket = int(place * len(files))
                waiting[bucket].append(row)
                if len(waiting[bucket]) == _FLUSH_ROWS:
                    writers[bucket].write_batch(batch_of(waiting[bucket]))
                    waiting[bucket] = []
                if self.weights is not None and row["split"] == "train":
                    ranks.setdefault(row["set"], []).append(self._rank(row["id"]))
            for writer, rows in zip(writers, waiting, strict=True):
                if rows:
                    writer.write_batch(batch_of(rows))
        finally:
            for writer in writers:
                writer.close()
        if self.weights is None:
            return None
        kept = quotas({name: len(values) for name, values in ranks.items()}, self.weights)
        return {name: sorted(values)[kept[name] - 1] if kept[name] else -1.0 for name, values in ranks.items()}

    def _rank(self, row_id: str) -> float:
        return share(self.seed, f"mixture:{row_id}")


def parse_weights(texts: Iterable[str]) -> dict[str, float] | None:
    """["glaive=1", "opencode=2.5"] -> {"glaive": 1.0, "opencode": 2.5}; None for none. ValueError names a bad one."""
    weights: dict[str, float] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        try:
            weight = float(value)
        except ValueError:
            equals = ""
        if not equals or name in weights:
            raise ValueError(f"mixture {text!r} is not SET=WEIGHT with a number, each set once")
        weights[name] = weight
    return weights or None


def quotas(counts: Mapping[str, int], weights: Mapping[str, float]) -> dict[str, int]:
    """Rows of each set for shares in proportion to `weights`, as many as the scarcest set allows.

    ValueError for a set without a weight, a weight for no set, or weights that are negative or all 0.
    """
    if set(counts) != set(weights):
        odd = sorted(set(counts) ^ set(weights))
        raise ValueError(f"mixture weights must name each set once; unmatched: {', '.join(odd)}")
    if not counts:
        return {}
    if any(not math.isfinite(w) or w < 0 for w in weights.values()) or not any(weights.values()):
        raise ValueError(f"mixture weights must be 0 or more and not all 0, got {dict(weights)}")
    rows_a_weight = min(counts[name] / weight for name, weight in weights.items() if weight)
    return {name: math.floor(rows_a_weight * weight + 1e-9) for name, weight in weights.items()}
