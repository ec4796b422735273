"""Drafters of other projects: their folders read into this network, or refused where it could not do what they do.

    who                            tensors            ids of the aux layers
    EAGLE                          midlayer.*         not said: the engines' default; pytorch_model.bin
    SpecForge, TorchSpec           midlayer.*         eagle_config, as SGLang reads them
    ModelOpt                       layers.0.*         eagle_config, as SGLang reads them
    speculators                    layers.0.*         top level, hs indices; sizes under transformer_layer_config

All hold fc, norm, lm_head and d2t (offsets); an embedding is left alone where it is as wide as the target's.
Shapes: V target vocabulary, W draft vocabulary, H draft hidden, G target hidden.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig

from eagle3lab.data import hub
from eagle3lab.draft.aux_layers import check_aux_layers, layers_sglang_reads
from eagle3lab.draft.checkpoint import CONFIG, EMBEDDING, TRAINING, CheckpointError, check_tensors, load_draft
from eagle3lab.draft.config import DraftConfig
from eagle3lab.draft.model import Eagle3Draft
from eagle3lab.draft.rope import LLAMA3
from eagle3lab.draft.stored import StoredTensors
from eagle3lab.draft.vocab import VocabError, VocabMap
from eagle3lab.workbench.files import read_json

LLAMA_KIND = (
    "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel",
    "LlamaForCausalLM",  # of EAGLE's own folders; the tensors tell whether it is a drafter
)  # fmt: skip
_RENAMED = (("model.", ""), ("layers.0.", "midlayer."), ("aux_norm_low", "fc_norm.0"), ("aux_norm_mid", "fc_norm.1"),
            ("aux_norm_high", "fc_norm.2"))  # fmt: skip
_NOT_USED = ("t2d", "rotary_emb.inv_freq")
_HUB_FILES = ("*.json", "*.safetensors", "pytorch_model*.bin")


def find_draft(name_or_path: str | Path, root: str | Path = ".") -> Path:
    """A drafter's folder: a local one, relative to `root`, or that of a hub name OWNER/MODEL, cached or downloaded.

    Raises CheckpointError with all that was tried. What the folder holds is read by `open_draft`.
    """
    name, folder = str(name_or_path), Path(root) / Path(name_or_path).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if not hub.is_hub_name(name):
        raise CheckpointError(f"drafter {name!r}: no such folder ({folder}), and no hub name of the form owner/model")
    tried = []
    for place, local_only in (("hub cache", True), ("hub", False)):
        found = hub.snapshot(name, _HUB_FILES, StoredTensors, local_only)
        if isinstance(found, Path):
            return found
        tried.append(f"- {place}: {found}")
    raise CheckpointError("\n".join([
        f"drafter {name!r} could not be found.", f"- folder {folder}: not there", *tried,
        "Give the path of a local folder with config.json and *.safetensors or pytorch_model*.bin instead.",
    ]))  # fmt: skip


def open_draft(
    folder: str | Path, target_folder: str | Path, embed_VH: torch.Tensor, aux_layers: list[int] | None = None
) -> Eagle3Draft:
    """The drafter of any folder, float32: one of this project strictly (`load_draft`), another by `import_draft`.

    aux_layers: hs indices, for a folder of others that does not say them as it means them. CheckpointError as both.
    """
    if (Path(folder) / TRAINING).is_file():
        return load_draft(folder, embed_VH)
    return import_draft(folder, target_folder, embed_VH, aux_layers)


def import_draft(
    folder: str | Path, target_folder: str | Path, embed_VH: torch.Tensor, aux_layers: list[int] | None = None
) -> Eagle3Draft:
    """The drafter of anybody's folder, float32, for the target in `target_folder` whose embedding is `embed_VH`.

    aux_layers: hs indices; None: what its config says, see above. CheckpointError names what cannot be read, is missing
    or is done otherwise there (several layers, latent attention, RoPE scaling).
    """
    folder = Path(folder)
    config, tensors = _read(folder)
    sizes = _sizes(config)
    _refuse(folder, config, sizes)
    target = read_json(Path(target_folder) / CONFIG)
    text, architecture = target.get("text_config") or target, (target.get("architectures") or [""])[0]
    try:
        ids_W = _target_ids(tensors.pop("d2t", None), len(tensors["lm_head.weight"]), embed_VH.shape[0])
        layers = aux_layers or _layers(config, text["num_hidden_layers"], architecture)
        wanted = _config(config, sizes, text, ids_W, check_aux_layers(layers, text["num_hidden_layers"]), architecture)
        if wanted.owns_embedding:
            embed_VH = tensors.pop(EMBEDDING)
    except KeyError as error:
        raise CheckpointError(f"{folder}: there is no {error}") from error
    except (ValueError, VocabError) as error:
        raise CheckpointError(f"{folder}: {error}") from error
    tensors.pop(EMBEDDING, None)
    draft = Eagle3Draft(wanted, embed_VH.float(), ids_W)
    check_tensors(draft, tensors, folder)
    draft.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return draft.eval()


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    try:
        tensors = StoredTensors(folder)
        used = {_own_name(name): tensors[name] for name in tensors if not name.endswith(_NOT_USED)}
        return read_json(folder / CONFIG), used
    except (OSError, ValueError) as error:
        raise CheckpointError(str(error)) from error


def _sizes(config: dict[str, Any]) -> dict[str, Any]:
    """Sizes of the layer; speculators leaves out what is transformers' default for a Llama."""
    inner = config.get("transformer_layer_config")
    return config if inner is None else LlamaConfig(**inner).to_dict()


def _own_name(name: str) -> str:
    for theirs, ours in _RENAMED:
        name = ours + name[len(theirs) :] if name.startswith(theirs) else name
    return name


def _refuse(folder: Path, config: dict, sizes: dict) -> None:
    architecture = (config.get("architectures") or ["none"])[0]
    kind = _rope_kind(_rope(sizes))
    reasons = {
        f"architecture {architecture} is not a Llama-type EAGLE-3 drafter": architecture not in LLAMA_KIND,
        f"it has {sizes.get('num_hidden_layers')} layers": sizes.get("num_hidden_layers", 1) != 1,
        "its attention has biases": sizes.get("attention_bias"),
        f"its RoPE is scaled ({kind})": kind not in ("default", "llama3"),
        "it is quantised": config.get("quantization_config"),
    }
    if found := [reason for reason, holds in reasons.items() if holds]:
        raise CheckpointError(f"{folder}: {'; '.join(found)}: this network cannot do what it does")


def _rope(sizes: dict) -> dict:
    """What the config says of RoPE, in its old and its new spelling."""
    return {**(sizes.get("rope_scaling") or {}), **(sizes.get("rope_parameters") or {})}


def _rope_kind(rope: dict) -> str:
    return rope.get("rope_type") or rope.get("type") or "default"


def _target_ids(d2t_W: torch.Tensor | None, rows: int, vocab_size: int) -> torch.Tensor:
    if d2t_W is None:
        if rows != vocab_size:
            raise VocabError(f"no d2t, and lm_head has {rows} rows of {vocab_size} ids")
        return torch.arange(vocab_size)
    if d2t_W.numel() != rows:
        raise VocabError(f"d2t has {d2t_W.numel()} entries, lm_head {rows} rows")
    return VocabMap(d2t_W.to(torch.int64).flatten() + torch.arange(rows), vocab_size).target_ids_W


def _layers(config: dict, num_layers: int, architecture: str) -> list[int]:
    inside = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    top = config.get("eagle_aux_hidden_state_layer_ids")
    if inside is None and top is not None:
        return list(top)
    return layers_sglang_reads(inside, num_layers, architecture)


def _config(
    config: dict, sizes: dict, target: dict, ids_W: torch.Tensor, layers: list[int], architecture: str
) -> DraftConfig:
    heads, rope = sizes["num_attention_heads"], _rope(sizes)
    scaled = _rope_kind(rope) == "llama3"
    return DraftConfig(
        hidden_size=sizes["hidden_size"],
        intermediate_size=sizes["intermediate_size"],
        num_attention_heads=heads,
        num_key_value_heads=sizes.get("num_key_value_heads") or heads,
        head_dim=sizes.get("head_dim") or sizes["hidden_size"] // heads,
        vocab_size=target["vocab_size"],
        draft_vocab_size=len(ids_W),
        target_hidden_size=config.get("target_hidden_size") or target["hidden_size"],
        aux_layers=tuple(layers),
        target_num_layers=target["num_hidden_layers"],
        rms_norm_eps=float(sizes.get("rms_norm_eps", 1e-6)),
        rope_theta=float(sizes.get("rope_theta") or rope.get("rope_theta") or 10000.0),
        max_position_embeddings=sizes.get("max_position_embeddings", 4096),
        fc_norm=bool(config.get("fc_norm") or config.get("use_aux_norm")),
        norm_output=bool(config.get("norm_output")),
        norm_before_residual=bool(config.get("norm_before_residual")),
        norm_before_fc=bool((config.get("eagle_config") or {}).get("norm_before_fc", config.get("norm_before_fc"))),
        rope_llama3=tuple(rope[name] for name in LLAMA3) if scaled else None,
        target_architecture=architecture,
    )
