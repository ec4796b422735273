"""A training whose loss or gradient left all bounds: the batch is kept for inspection, then the training stops.

What is kept, in the folder of the checkpoints:
    diverged-step-000123/   batch.safetensors ("<row id>/<field>"), report.json (numbers, and bad values of each row)
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from eagle3lab.workbench.files import atomic_folder, write_json_atomic


class TrainingDiverged(RuntimeError):
    """The loss or the gradient is not finite, or the loss exploded. The message says where the batch is."""


def stop_diverged(folder: Path, step: int, rank: int, rows: Mapping[str, object], why: str, advice: str):
    """Saves the rows (feature rows or windows) of the optimizer step and raises TrainingDiverged."""
    path = folder / f"diverged-step-{step:06d}{f'-rank-{rank}' if rank else ''}"
    tensors = {f"{row_id}/{name}": tensor for row_id, row in rows.items() for name, tensor in _tensors(row)}
    bad = {name: int((~t.isfinite()).sum()) for name, t in tensors.items() if t.is_floating_point()}
    bad = {name: count for name, count in bad.items() if count}
    with atomic_folder(path) as part:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, part / "batch.safetensors")
        write_json_atomic(part / "report.json", {"step": step, "why": why, "rows": list(rows), "not_finite": bad})
    features = f"Not finite: {', '.join(bad)}. " if bad else "All features of the batch are finite. "
    raise TrainingDiverged(f"step {step}: {why}. {features}The batch is in {path}. {advice}")


def _tensors(row):
    """(name, tensor) of what a row holds; a top-k teacher's parts have names of their own."""
    for name, value in vars(row).items():
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, tuple):  # a named tuple of tensors
            yield from value._asdict().items()
