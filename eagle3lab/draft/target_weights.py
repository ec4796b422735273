"""The few tensors of the target that a drafter needs, read without loading the target.

Shapes: V target vocabulary, H hidden.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

EMBEDDING, HEAD, NORM = "embed_tokens.weight", "lm_head.weight", "norm.weight"
LANGUAGE = "language_model."


class TargetWeightsError(ValueError):
    """A target folder that lacks a tensor the drafter needs."""


@dataclass(frozen=True)
class TargetWeights:
    """Input embedding [V, H], output head [V, H] (the embedding where they are tied) and final norm [H], float32."""

    embed_VH: torch.Tensor
    head_VH: torch.Tensor
    norm_H: torch.Tensor


def read_target_weights(folder: str | Path) -> TargetWeights:
    """Reads them from the safetensors of a Hugging Face folder; only these tensors are touched.

    Names may carry any prefix (`model.`, `language_model.model.`); of a target that sees too, tensors below
    `language_model.` count. Raises TargetWeightsError naming what is missing.
    """
    folder = Path(folder)
    every = _files_of_tensors(folder)
    files = _of_language(every)
    names = {
        EMBEDDING: _find(folder, files, lambda name: name.endswith(EMBEDDING)),
        # the final norm stands beside the layers, not inside one
        NORM: _find(folder, files, lambda name: name.removesuffix(NORM).endswith("model.") or name == NORM),
    }
    # some write the head of a target that sees beside its language part
    heads = [name for name in (*files, *every) if name.endswith(HEAD) and ".layers." not in name]
    tensors = {key: _read(files[name], name) for key, name in names.items()}
    head_VH = _read(every[heads[0]], heads[0]) if heads else tensors[EMBEDDING]
    if head_VH.shape != tensors[EMBEDDING].shape:
        raise TargetWeightsError(
            f"{folder}: embedding {tuple(tensors[EMBEDDING].shape)} and head {tuple(head_VH.shape)} differ in shape"
        )
    return TargetWeights(tensors[EMBEDDING], head_VH, tensors[NORM])


LAYER = (
    "input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
    "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip


def read_target_layer(folder: str | Path, layer: int) -> dict[str, torch.Tensor]:
    """The weights (LAYER, without ".weight") of one decoder layer of a Llama-like target, float32.

    Raises TargetWeightsError naming what is missing, which it is for latent attention and for experts.
    """
    folder = Path(folder)
    files = _of_language(_files_of_tensors(folder))
    tensors = {}
    for part in LAYER:
        found = [name for name in files if name.endswith(f"layers.{layer}.{part}.weight")]
        if len(found) != 1:
            raise TargetWeightsError(f"{folder}: layer {layer} has no {part}.weight, so no drafter can start from it")
        tensors[part] = _read(files[found[0]], found[0])
    return tensors


def _of_language(files: dict[str, Path]) -> dict[str, Path]:
    """Those of the language part, where names tell one."""
    return {name: file for name, file in files.items() if LANGUAGE in name} or files


def _files_of_tensors(folder: Path) -> dict[str, Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {name: folder / file for name, file in weight_map.items()}
    single = folder / "model.safetensors"
    if not single.is_file():
        raise TargetWeightsError(f"{folder} holds neither model.safetensors nor its index")
    with safe_open(single, framework="pt") as file:
        return dict.fromkeys(file.keys(), single)


def _find(folder: Path, files: dict[str, Path], wanted) -> str:
    found = [name for name in files if wanted(name) and ".layers." not in name]
    if len(found) != 1:
        raise TargetWeightsError(f"{folder}: one tensor expected, found {found or 'none'} among {len(files)}")
    return found[0]


def _read(path: Path, name: str) -> torch.Tensor:
    with safe_open(path, framework="pt") as file:
        tensor = file.get_tensor(name).float()
    if not bool(torch.isfinite(tensor).all()):
        raise TargetWeightsError(f"{path}: {name} holds NaN or Inf")
    return tensor
