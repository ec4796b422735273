"""Resumable training state: float32 weights, optimizer moments and the position in the training plan.

    step-000120/   state.safetensors (weights, moments), state.json (step, identity, progress)
    best-000100/   weights.safetensors, best.json: the weights with the best accept length on held-out rows so far

One folder per checkpoint, written whole or not at all; safetensors and JSON, no pickle, and crc32.json with the CRC-32
of both files (folders from before it have none, and are read without). The learning rate is a function of the step, and
the order of rows one of seed and epoch; no random number is drawn after the start. So the step is all that schedule,
random numbers and data position need.
"""

import re
import shutil
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from eagle3lab.draft.recipe import moments
from eagle3lab.draft.sealed import StateError, read_facts, read_tensors, write_sealed

__all__ = ["StateError", "checkpoints", "clear_leftovers", "load_best", "load_state", "save_best", "save_state"]

WEIGHTS_AND_MOMENTS, STATE = "state.safetensors", "state.json"
BEST_WEIGHTS, BEST_FACTS = "weights.safetensors", "best.json"
STEP, BEST = re.compile(r"step-(\d{6,})"), re.compile(r"best-(\d{6,})")


def checkpoints(folder: Path, kind: re.Pattern = STEP) -> list[Path]:
    """Whole checkpoint folders, oldest first."""
    found = [path for path in folder.glob("*-*") if kind.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(kind.fullmatch(path.name)[1]))


def clear_leftovers(folder: Path) -> None:
    """Removes what a killed writer left half-written."""
    for path in folder.iterdir():
        if re.fullmatch(r"\.(step|best)-\d+\..+\.(tmp|old)", path.name):
            shutil.rmtree(path)


def save_state(
    folder: Path, draft, optimizers, step: int, identity: dict, progress: dict, keep: int = 2, write: bool = True
) -> None:
    """Writes `folder/step-000123` and removes all but the newest `keep` checkpoints. `progress` is free JSON.

    Where weights are split over processes, all must call this, and one of them with `write`.
    """
    tensors = {f"weight/{name}": whole(p, write) for name, p in draft.named_parameters()}
    for name, parameter, optimizer in _named_states(draft, optimizers):
        for key, value in optimizer.state[parameter].items():
            tensors[f"optimizer/{name}/{key}"] = whole(value, write)
    if not write:
        return
    facts = {"step": step, "identity": identity, "progress": progress}
    write_sealed(folder / f"step-{step:06d}", WEIGHTS_AND_MOMENTS, tensors, STATE, facts)
    for old in checkpoints(folder)[:-keep]:
        shutil.rmtree(old)


def load_state(folder: Path, draft, optimizers, identity: dict) -> tuple[int, dict]:
    """Restores the newest checkpoint in place; returns its step and progress, (0, {}) when there is none.

    StateError, and nothing is changed, when it was made by another recipe, plan or drafter shape (names the differing
    fields with both values), or when it is damaged.
    """
    found = checkpoints(folder)
    if not found:
        return 0, {}
    newest = found[-1]
    way_out = f"remove {newest} to {f'go on from {found[-2].name}' if found[1:] else 'start over'}"
    state = read_facts(newest, STATE, {"step": int, "identity": dict, "progress": dict}, way_out)
    if lines := list(_differences(state["identity"], identity)):
        raise StateError(
            f"{newest} belongs to another training:\n  " + "\n  ".join(lines) + "\n"
            f"remove {folder} to start over, or restore the parameters to go on"
        )
    expected = {f"weight/{name}": parameter for name, parameter in draft.named_parameters()}
    for name, parameter, optimizer in _named_states(draft, optimizers):
        expected |= {f"optimizer/{name}/{key}": parameter for key in moments(optimizer)}
    tensors = read_tensors(newest, WEIGHTS_AND_MOMENTS, expected, way_out)
    with torch.no_grad():
        for name, parameter in draft.named_parameters():
            parameter.copy_(as_part(tensors[f"weight/{name}"], parameter))
    for name, parameter, optimizer in _named_states(draft, optimizers):
        optimizer.state[parameter] = {
            key: as_part(tensors[f"optimizer/{name}/{key}"], parameter) for key in moments(optimizer)
        }
    return state["step"], state["progress"]


def save_best(folder: Path, draft, step: int, accept_length: float, write: bool = True) -> None:
    """Writes `folder/best-000123`, then removes the one before: there is always one. `write`: see `save_state`."""
    weights = {name: whole(p, write) for name, p in draft.named_parameters()}
    if not write:
        return
    target = folder / f"best-{step:06d}"
    write_sealed(target, BEST_WEIGHTS, weights, BEST_FACTS, {"step": step, "accept_length": accept_length})
    for other in checkpoints(folder, BEST):
        if other != target:
            shutil.rmtree(other)


@torch.no_grad()
def load_best(folder: str | Path, draft) -> dict:
    """Puts the best weights into the drafter; returns {"step", "accept_length"}. StateError, and nothing is changed,
    when there are none, and for weights that are damaged or another drafter's."""
    found = checkpoints(Path(folder), BEST)
    if not found:
        raise StateError(f"{folder} holds no best weights: train with held-out rows and evaluate_every")
    way_out = "export the last weights instead (export_best=False), or train again"
    facts = read_facts(found[-1], BEST_FACTS, {"step": int, "accept_length": float}, way_out)
    expected = dict(draft.named_parameters())
    tensors = read_tensors(found[-1], BEST_WEIGHTS, expected, way_out)
    for name, parameter in expected.items():
        parameter.copy_(tensors[name])
    return facts


def whole(tensor: torch.Tensor, wanted: bool = True) -> torch.Tensor | None:
    """The tensor on the CPU, put together where it is split over processes; None where it is not `wanted`."""
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()  # all processes take part
    return tensor.detach().cpu().contiguous() if wanted else None


def as_part(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A weight or moment as its parameter lies: on its device, and this process's part where it is split."""
    tensor = tensor.to(parameter.device)
    if isinstance(parameter, DTensor) and tensor.shape == parameter.shape:
        return distribute_tensor(tensor, parameter.device_mesh, parameter.placements, src_data_rank=None)
    return tensor


def _named_states(draft, optimizers):
    """(name of the weight, its parameter, the optimizer that owns it)."""
    names = {parameter: name for name, parameter in draft.named_parameters()}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                yield names[parameter], parameter, optimizer


def _differences(found: dict, expected: dict, path: str = ""):
    """One line for each field in which two JSON objects differ."""
    for key in {**expected, **found}:
        here, there = expected.get(key, "(nothing)"), found.get(key, "(nothing)")
        if isinstance(here, dict) and isinstance(there, dict):
            yield from _differences(there, here, f"{path}{key}.")
        elif here != there:
            yield f"{path}{key}: the checkpoint has {there!r}, this training {here!r}"
