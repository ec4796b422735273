"""What an extraction will take, from a sample that is really captured and written; refused on too small a disk.

Shapes: V target vocabulary, H hidden.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from eagle3lab.features.codec import Codec
from eagle3lab.features.layout import DiskFullError
from eagle3lab.features.slots import spans_to_mask, teacher_slots
from eagle3lab.features.store import FeatureWriter


@dataclass(frozen=True)
class StoreEstimate:
    """Rows still to be captured, and what they will take: bytes on disk, hours of capture and writing."""

    rows: int
    tokens: int
    bytes: int
    hours: float
    tokens_per_second: float

    def __str__(self):
        return (
            f"{self.rows:,} rows, {self.tokens:,} tokens: {self.bytes / 1e9:.2f} GB, {self.hours:.2f} h at "
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


def estimate_extraction(
    folder: str | Path,
    rows: Sequence[dict],
    capture: Callable[[list[tuple[str, list[int]]]], Iterable],
    aux_layers: list[int],
    hidden_size: int,
    codec: str = "bf16",
    head_VH: torch.Tensor | None = None,
    sample_rows: int = 16,
) -> StoreEstimate:
    """What `rows` (dicts with id, input_ids and loss_spans) will take in a store at `folder`.

    `capture` takes (id, input_ids) pairs and yields their states. Every n-th row is captured and written to a folder
    beside the store that is removed again. Speed is the sample's; bytes follow from the codec, for the real lengths and
    spans, plus what the sample's files took beyond that. No rows: nothing to do, and a speed of 0.
    """
    folder = Path(folder)
    if not rows:
        return StoreEstimate(0, 0, 0, 0.0, 0.0)
    sample = rows[:: max(1, len(rows) // sample_rows)][:sample_rows]
    by_id = {row["id"]: row for row in sample}
    list(capture([(sample[0]["id"], sample[0]["input_ids"])]))  # the first pass pays for more than itself
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-sample-", dir=folder.parent) as beside:
        started = time.perf_counter()
        writer = FeatureWriter(beside, {}, aux_layers, hidden_size, codec=codec, head_VH=head_VH)
        for states in capture([(key, row["input_ids"]) for key, row in by_id.items()]):
            row = by_id[states.id]
            writer.add(row["id"], row["input_ids"], row["loss_spans"], states.aux_TAH, states.last_TH)
        writer.close()
        seconds = time.perf_counter() - started
        written = sum(path.stat().st_size for path in Path(beside).iterdir())
    payload, sample_tokens = _payload(sample, codec, aux_layers, hidden_size, head_VH)
    extra = (written - payload) / len(sample)  # index lines and file headers, a row
    total, tokens = _payload(rows, codec, aux_layers, hidden_size, head_VH)
    rate = sample_tokens / seconds
    return StoreEstimate(len(rows), tokens, round(total + extra * len(rows)), tokens / rate / 3600, rate)


def _payload(rows: Sequence[dict], codec: str, aux_layers, hidden_size: int, head_VH) -> tuple[float, int]:
    """Bytes of the rows' tensors, and their tokens."""
    tokens = sum(len(row["input_ids"]) for row in rows)
    masks = (spans_to_mask(row["loss_spans"], len(row["input_ids"])) for row in rows)
    slots = sum(teacher_slots(mask_T).shape[0] for mask_T in masks)
    vocab_size = 0 if head_VH is None else head_VH.shape[0]
    return tokens * Codec.of(codec).bytes_per_token(hidden_size, len(aux_layers), slots / tokens, vocab_size), tokens
