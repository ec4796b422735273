"""A folder with one file of tensors and one of facts, and the CRC-32 of both: what a checkpoint consists of.

Disks lose bytes without a word, and a training would go on from them without one.
"""

import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from eagle3lab.features.layout import told_when_full
from eagle3lab.workbench.files import atomic_folder, read_json, write_json_atomic

SUMS = "crc32.json"
CHUNK = 1 << 22  # bytes that are summed at a time


class StateError(ValueError):
    """A training checkpoint that does not belong to this training, or cannot be read."""


def write_sealed(folder: Path, tensors_name: str, tensors: dict, facts_name: str, facts: dict) -> None:
    """Writes the folder whole or not at all: tensors (safetensors), facts (JSON), and their sums. DiskFullError."""
    with told_when_full(folder.parent), atomic_folder(folder) as part:
        save_file(tensors, part / tensors_name)
        write_json_atomic(part / facts_name, facts)
        write_json_atomic(part / SUMS, {name: crc32_of(part / name) for name in (tensors_name, facts_name)})


def read_facts(folder: Path, name: str, expected: Mapping[str, type], way_out: str) -> dict:
    """The facts of a folder. StateError when its file is damaged, or a field is missing or of another type."""
    path = folder / name
    _check_sum(path, way_out)
    try:
        facts = read_json(path)
    except (OSError, ValueError) as error:
        raise StateError(f"{path} cannot be read ({error}); {way_out}") from error
    if not isinstance(facts, dict):
        raise StateError(f"{path} is damaged: it is no JSON object; {way_out}")
    if wrong := [field for field, kind in expected.items() if not isinstance(facts.get(field), kind)]:
        raise StateError(f"{path} is damaged: {', '.join(wrong)} is missing or of another kind; {way_out}")
    return facts


def read_tensors(folder: Path, name: str, expected: Mapping[str, torch.Tensor], way_out: str) -> dict:
    """The tensors of a folder, on the CPU. StateError when their file is damaged, and unless they have exactly the
    names, shapes and dtypes of `expected` (a name that ends in "/step": a single number) and are finite."""
    path = folder / name
    _check_sum(path, way_out)
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise StateError(f"{path} cannot be read ({error}); {way_out}") from error
    lacking, unknown = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if lacking or unknown:
        raise StateError(f"{path} does not fit this drafter: it lacks {lacking}, and has besides {unknown}; {way_out}")
    for key, like in expected.items():
        tensor, shape = tensors[key], () if key.endswith("/step") else tuple(like.shape)
        if tuple(tensor.shape) != shape or tensor.dtype != like.dtype:
            raise StateError(
                f"{path} does not fit this drafter: {key} is {tensor.dtype} {tuple(tensor.shape)}, not {like.dtype} "
                f"{shape}; {way_out}"
            )
        if not bool(torch.isfinite(tensor).all()):
            raise StateError(f"{path} is damaged: {key} holds NaN or Inf; {way_out}")
    return tensors


def crc32_of(path: Path) -> int:
    """CRC-32 of a file's bytes."""
    found = 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            found = zlib.crc32(chunk, found)
    return found


def _check_sum(path: Path, way_out: str) -> None:
    """StateError when the file's CRC-32 is not the one on record; a folder without a record is from before it."""
    record = path.with_name(SUMS)
    if not record.exists():
        return
    try:
        expected, found = read_json(record)[path.name], crc32_of(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"{path} cannot be checked ({type(error).__name__}: {error}); {way_out}") from error
    if found != expected:
        raise StateError(f"{path} is damaged: its checksum is not the one in {record.name}; {way_out}")
