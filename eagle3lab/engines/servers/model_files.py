"""What config files and the stored tensors' shapes say of a target and of anybody's drafter; d2t and t2d are read.

Shapes: V target vocabulary, W draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from eagle3lab.draft.aux_layers import layers_sglang_reads
from eagle3lab.draft.stored import StoredError, StoredTensors
from eagle3lab.workbench.files import read_json


class ModelFilesError(ValueError):
    """A model folder that cannot be read. The message names the file."""


@dataclass(frozen=True)
class TargetFacts:
    """Sizes of a target. `architecture` is architectures[0] of its config.json, which decides SGLang's model file."""

    folder: Path
    architecture: str
    hidden_size: int
    vocab_size: int
    num_layers: int
    context: int | None


@dataclass(frozen=True)
class DraftFiles:
    """A drafter's folder. shapes: of its tensors, by name; d2t_W int64, t2d_V bool, where they are stored;
    training: this project's training.json, {} when there is none."""

    folder: Path
    config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    d2t_W: np.ndarray | None = None
    t2d_V: np.ndarray | None = None
    training: dict[str, Any] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        return (self.config.get("architectures") or [""])[0]

    @property
    def hidden_size(self) -> int:
        return self.config.get("hidden_size", 0)

    @property
    def target_hidden_size(self) -> int:
        return self.config.get("target_hidden_size") or self.hidden_size

    @property
    def eagle_config(self) -> dict[str, Any]:
        found = self.config.get("eagle_config")
        return found if isinstance(found, dict) else {}

    @property
    def layer_ids(self) -> list[int] | None:
        """Explicit ids as SGLang reads them: it knows only those inside eagle_config."""
        return self.eagle_config.get("eagle_aux_hidden_state_layer_ids")

    @property
    def num_aux(self) -> int:
        """How many aux states `fc` takes, by SGLang's rule."""
        return self.config.get("num_aux_hidden_states") or len(self.layer_ids or ()) or 3

    @property
    def is_eagle3(self) -> bool:
        """EAGLE-3 takes several target states and may have a vocabulary of its own; EAGLE-1 and 2 have neither."""
        name = self.architecture.lower()
        by_name = "eagle3" in name or "eagle_config" in self.config or "draft_vocab_size" in self.config
        fc_shape = self.shapes.get("fc.weight", ())
        return by_name or self.d2t_W is not None or (len(fc_shape) == 2 and fc_shape[1] >= 3 * fc_shape[0])

    def layers_read(self, target: TargetFacts) -> list[int]:
        """hs indices whose states a server would give this drafter."""
        return layers_sglang_reads(self.layer_ids, target.num_layers, target.architecture)


def is_local(path: str | None) -> bool:
    """Is this a folder here (and not a hub's name)."""
    return path is not None and Path(path).expanduser().is_dir()


def read_target(folder: str | Path) -> TargetFacts:
    """Reads config.json; of a multimodal target the language part counts. Raises ModelFilesError."""
    path = Path(folder).expanduser()
    config = _config(path)
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    try:
        sizes = [int(text[name]) for name in ("hidden_size", "vocab_size", "num_hidden_layers")]
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFilesError(f"{path / 'config.json'}: not a target's config ({error!r})") from error
    architecture = (config.get("architectures") or [""])[0]
    return TargetFacts(path, architecture, *sizes, text.get("max_position_embeddings"))


def read_draft(folder: str | Path) -> DraftFiles:
    """Reads config.json, training.json, the shapes of all tensors, d2t and t2d. Raises ModelFilesError."""
    path = Path(folder).expanduser()
    config = _config(path)
    try:
        tensors = StoredTensors(path)
        shapes = {name: tensors.shape(name) for name in tensors}
        maps = {name: tensors[name].numpy() for name in ("d2t", "t2d") if name in tensors}
    except (StoredError, TypeError) as error:  # a map in bfloat16 is none
        raise ModelFilesError(str(error)) from error
    training = read_json(path / "training.json") if (path / "training.json").is_file() else {}
    return DraftFiles(path, config, shapes, maps.get("d2t"), maps.get("t2d"), training)


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = read_json(folder / "config.json")
    except (OSError, ValueError) as error:
        raise ModelFilesError(f"{folder / 'config.json'}: cannot be read ({error})") from error
    if not isinstance(config, dict):
        raise ModelFilesError(f"{folder / 'config.json'}: holds no object")
    return config
