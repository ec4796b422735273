"""The tensors in a drafter's folder, whoever wrote it: *.safetensors, or pytorch_model*.bin that hold tensors alone."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open


class StoredError(ValueError):
    """Tensors that cannot be read. The message names the file and the way out."""


class StoredTensors(Mapping[str, torch.Tensor]):
    """Name -> tensor. From safetensors one is read at a time; what a pickle holds stays in memory.

    Safetensors win where a folder has both. StoredError for a folder without either, and for a damaged file.
    """

    def __init__(self, folder: str | Path):
        folder = Path(folder)
        self._files: dict[str, Path] = {}
        self._loaded: dict[str, torch.Tensor] = {}
        for file in (files := sorted(folder.glob("*.safetensors"))):
            try:
                with safe_open(file, framework="pt") as opened:
                    self._files |= dict.fromkeys(opened.keys(), file)
            except (OSError, SafetensorError) as error:
                raise StoredError(f"{file}: cannot be read ({error})") from error
        pickles = [] if files else sorted(folder.glob("pytorch_model*.bin"))
        for file in pickles:
            self._loaded |= _unpickled(file)
        if not files and not pickles:
            raise StoredError(f"{folder} has no *.safetensors and no pytorch_model*.bin: convert the drafter")

    def __iter__(self) -> Iterator[str]:
        return iter(self._files or self._loaded)

    def __len__(self) -> int:
        return len(self._files or self._loaded)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._get(name, lambda opened: opened.get_tensor(name)) if self._files else self._loaded[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Of one tensor; safetensors say it in the file's head."""
        if not self._files:
            return tuple(self._loaded[name].shape)
        return tuple(self._get(name, lambda opened: opened.get_slice(name).get_shape()))

    def _get(self, name: str, what):
        file = self._files[name]
        try:
            with safe_open(file, framework="pt") as opened:
                return what(opened)
        except (OSError, SafetensorError) as error:
            raise StoredError(f"{file}: cannot be read ({error})") from error


def _unpickled(file: Path) -> dict[str, torch.Tensor]:
    try:
        tensors = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file fails in many ways; torch's text would advise to run what it holds
        reason = "damaged, or it holds more than tensors: save them as safetensors"
        raise StoredError(f"{file}: cannot be read ({reason})") from error
    if not isinstance(tensors, dict) or not all(torch.is_tensor(tensor) for tensor in tensors.values()):
        raise StoredError(f"{file}: cannot be read (no table of tensors by name: save them as safetensors)")
    return tensors
