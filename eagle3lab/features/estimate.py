"""What an extraction will take, from a sample of its rows that is captured first, for good.

Shapes: V target vocabulary, H hidden.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from eagle3lab.features.codec import Codec
from eagle3lab.features.layout import DiskFullError
from eagle3lab.features.slots import spans_to_mask, teacher_slots

SAMPLE_ROWS = 16


class Row(Protocol):
    """What is looked at of a row that shall be captured."""

    input_ids: Sequence[int]
    loss_spans: list[list[int]]


@dataclass(frozen=True)
class StoreEstimate:
    """Rows still to be captured, and what they will take: bytes on disk, hours of capture and writing."""

    rows: int
    tokens: int
    bytes: int
    hours: float
    tokens_per_second: float

    def __str__(self):
        if self.hours >= 1:
            duration = f"{self.hours:.1f} h"
        else:
            duration = f"{self.hours * 60:.0f} min" if self.hours > 1 / 30 else f"{self.hours * 3600:.0f} s"
        return (
            f"{self.rows:,} rows, {self.tokens:,} tokens: {self.bytes / 1e9:.3g} GB, {duration} at "
            f"{self.tokens_per_second:,.0f} tokens/s"
        )

    def require_disk(self, folder: str | Path, spare: float = 0.05) -> None:
        """Raises DiskFullError, with the numbers, unless the bytes and `spare` (a share) more are free at `folder`."""
        there = next(path for path in (Path(folder), *Path(folder).resolve().parents) if path.exists())
        free, needed = shutil.disk_usage(there).free, self.bytes * (1 + spare)
        if free < needed:
            raise DiskFullError(
                f"{folder}: {needed / 1e9:.2f} GB are needed for {self.tokens:,} tokens (with {spare:.0%} to spare), "
                f"{free / 1e9:.2f} GB are free; use another disk, a smaller codec (fp8, a top-k teacher), or fewer rows"
            )


def estimate_by_sample(
    folder: str | Path,
    rows: Sequence[Row],
    capture: Callable[[Sequence[Row]], None],
    codec: str,
    aux_layers: int,
    hidden_size: int,
    vocab_size: int = 0,
) -> StoreEstimate:
    """Captures about SAMPLE_ROWS rows spread over `rows`, and says what the others will take.

    `capture` writes rows to the store at `folder`, and they are durable when it returns. Speed is the sample's, its
    first row left out; bytes follow from the codec, for the real lengths and spans, plus what the sample's files took
    beyond that. aux_layers: their number. vocab_size: the target's, for a top-k teacher. ValueError for no rows.
    """
    if not rows:
        raise ValueError("there are no rows to estimate from")
    folder, chosen = Path(folder), range(0, len(rows), max(1, len(rows) // SAMPLE_ROWS))[:SAMPLE_ROWS]
    sample, rest = [rows[i] for i in chosen], [row for i, row in enumerate(rows) if i not in chosen]
    before = _bytes_in(folder)
    capture(sample[:1])  # the first pass pays for more than itself
    started = time.perf_counter()
    capture(sample[1:])
    seconds = time.perf_counter() - started
    sizes = codec, aux_layers, hidden_size, vocab_size
    extra = (_bytes_in(folder) - before - _payload(sample, *sizes)) / len(sample)  # index lines and headers, a row
    rate = _tokens(sample[1:]) / seconds
    tokens, size = _tokens(rest), _payload(rest, *sizes) + extra * len(rest)
    return StoreEstimate(len(rest), tokens, round(size), tokens / rate / 3600 if rate else 0.0, rate)


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) if folder.exists() else 0


def _tokens(rows: Sequence[Row]) -> int:
    return sum(len(row.input_ids) for row in rows)


def _payload(rows: Sequence[Row], codec: str, aux_layers: int, hidden_size: int, vocab_size: int) -> float:
    """Bytes of the rows' tensors."""
    tokens = _tokens(rows)
    masks = (spans_to_mask(row.loss_spans, len(row.input_ids)) for row in rows)
    slots = sum(teacher_slots(mask_T).shape[0] for mask_T in masks)
    share = slots / tokens if tokens else 0.0
    return tokens * Codec.of(codec).bytes_per_token(hidden_size, aux_layers, share, vocab_size)
