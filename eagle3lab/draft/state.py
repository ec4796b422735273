"""Resumable training state: float32 weights, optimizer moments and the position in the training plan.

One folder per checkpoint, written whole or not at all; safetensors and JSON, no pickle.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from eagle3lab.workbench.files import atomic_folder, write_json_atomic


class StateError(ValueError):
    """A training checkpoint that does not belong to this training."""


def _named_states(draft, optimizers):
    """(name of the weight, its parameter, the optimizer that owns it)."""
    names = {parameter: name for name, parameter in draft.named_parameters()}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                yield names[parameter], parameter, optimizer


def save_state(folder: Path, draft, optimizers, step: int, identity: dict, keep: int = 2) -> Path:
    """Writes `folder/step-000123` and removes all but the newest `keep` checkpoints."""
    tensors = {f"weight/{name}": p.detach().contiguous() for name, p in draft.named_parameters()}
    for name, parameter, optimizer in _named_states(draft, optimizers):
        for key, value in optimizer.state[parameter].items():
            tensors[f"optimizer/{name}/{key}"] = value.detach().contiguous().reshape(value.shape)
    target = folder / f"step-{step:06d}"
    with atomic_folder(target) as part:
        save_file(tensors, part / "state.safetensors")
        write_json_atomic(part / "state.json", {"step": step, "identity": identity})
    for old in sorted(folder.glob("step-*"))[:-keep]:
        shutil.rmtree(old)
    return target


def load_state(folder: Path, draft, optimizers, identity: dict) -> int:
    """Restores the newest checkpoint in place; returns its step, 0 when there is none.

    StateError when the checkpoint was made by another recipe, plan or drafter shape (names the differing fields).
    """
    checkpoints = sorted(folder.glob("step-*"))
    if not checkpoints:
        return 0
    newest = checkpoints[-1]
    state = json.loads((newest / "state.json").read_text())
    if differing := [key for key, value in identity.items() if state["identity"].get(key) != value]:
        raise StateError(
            f"{newest} belongs to another training: {', '.join(differing)} differ. "
            "Remove the folder to start over, or restore the parameters to go on."
        )
    tensors = load_file(newest / "state.safetensors")
    with torch.no_grad():
        for name, parameter in draft.named_parameters():
            parameter.copy_(tensors[f"weight/{name}"])
    for name, parameter, optimizer in _named_states(draft, optimizers):
        prefix = f"optimizer/{name}/"
        optimizer.state[parameter] = {
            key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)
        }
    return state["step"]
