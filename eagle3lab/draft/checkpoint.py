"""The drafter's folder: written in the form SGLang and vLLM load, proven by reading it back.

Format (eagle_config etc.): EAGLE-3 as SGLang 0.5 and vLLM 0.3x read it. Engines ignore missing or unknown tensors
silently, so both directions here are strict: exact keys, shapes, dtypes, a consistent vocabulary map.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from eagle3lab.draft.aux_layers import are_default, sglang_layer_ids
from eagle3lab.draft.config import DraftConfig
from eagle3lab.draft.engine_support import FLAGS, SERVER, oldest_releases, require_engine
from eagle3lab.draft.model import Eagle3Draft
from eagle3lab.draft.rope import LLAMA3
from eagle3lab.draft.vocab import VocabError, VocabMap
from eagle3lab.workbench.files import atomic_folder, write_json_atomic

WEIGHTS, CONFIG, TRAINING = "model.safetensors", "config.json", "training.json"
EMBEDDING = "embed_tokens.weight"  # only of a drafter whose width differs from the target's


class CheckpointError(ValueError):
    """A drafter folder that is not what it says."""


def engine_config(c: DraftConfig) -> dict:
    """config.json of the drafter. Aux layer ids are left out when they are the engines' own default.

    Raises ValueError for aux layers that SGLang cannot be told to take of this target.
    """
    eagle = {"use_aux_hidden_state": True}
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "head_dim": c.head_dim,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope_theta,
        "max_position_embeddings": c.max_position_embeddings,
        "vocab_size": c.vocab_size,
        "draft_vocab_size": c.draft_vocab_size,
        "target_hidden_size": c.target_hidden_size,
        "tie_word_embeddings": False,
        "eagle_config": eagle,
    }
    if not are_default(c.aux_layers, c.target_num_layers, c.target_architecture):
        # SGLang reads the ids in eagle_config; vLLM prefers the top-level ones, which are hs indices.
        eagle["eagle_aux_hidden_state_layer_ids"] = sglang_layer_ids(c.aux_layers, c.target_architecture)
        config["eagle_aux_hidden_state_layer_ids"] = list(c.aux_layers)
    if c.rope_llama3:
        config["rope_scaling"] = {"rope_type": "llama3", **dict(zip(LLAMA3, c.rope_llama3, strict=True))}
    for flag in FLAGS:
        if getattr(c, flag):
            config[flag] = True
    return config


def check_export(config: DraftConfig, engine: str = SERVER) -> None:
    """What `export_draft` would refuse of a drafter's sizes and switches, so that it is known before the training.

    Raises EngineError (see `require_engine`), and ValueError as `engine_config` does.
    """
    require_engine(config, engine)
    engine_config(config)


def export_draft(
    draft: Eagle3Draft, folder: str | Path, training: dict, dtype=torch.bfloat16, engine: str = SERVER
) -> Path:
    """Writes the folder (config.json, model.safetensors, training.json) whole or not at all, and proves it.

    `training` is free JSON for the record (data, recipe, numbers); the oldest engine releases that run the drafter are
    added. `engine` is the release it shall be served with, see `require_engine` for what is refused. A drafter of the
    full vocabulary has no d2t: vLLM refuses one there, and SGLang needs none.
    Raises CheckpointError when the written folder does not give back the same tensors and the same logits, and for a
    `folder` that holds anything but an earlier export, which alone is replaced.
    """
    folder = Path(folder)
    _check_place(folder)
    check_export(draft.config, engine)
    vocab = VocabMap(draft.target_ids_W.cpu(), draft.config.vocab_size)
    tensors = {name: p.detach().cpu().to(dtype).contiguous() for name, p in draft.state_dict().items()}
    if draft.config.owns_embedding:
        tensors[EMBEDDING] = draft.embed_VH.cpu().to(dtype).contiguous()
    if not draft.config.full_vocabulary:
        tensors |= {"d2t": vocab.d2t(), "t2d": vocab.t2d()}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"{name} holds NaN or Inf: the training diverged; nothing was exported")
    config = engine_config(draft.config) | {"torch_dtype": str(dtype).removeprefix("torch.")}
    record = {"draft_config": draft.config.to_dict(), "oldest_engines": oldest_releases(draft.config), **training}
    with atomic_folder(folder) as part:
        save_file(tensors, part / WEIGHTS, metadata={"format": "pt"})
        write_json_atomic(part / CONFIG, config)
        write_json_atomic(part / TRAINING, record)
        _prove(draft, part, dtype)
    return folder


def _check_place(folder: Path) -> None:
    """CheckpointError unless the folder is not there, empty, or an export: what lay in it would be gone."""
    if not folder.exists():
        return
    found = {path.name for path in folder.iterdir()} if folder.is_dir() else {folder.name}
    if found and found != {CONFIG, WEIGHTS, TRAINING}:
        others = sorted(found - {CONFIG, WEIGHTS, TRAINING}) or sorted(found)
        raise CheckpointError(
            f"{folder} is not the folder of a drafter exported before, and would be replaced: it holds "
            f"{', '.join(others[:5])}{', ...' * (len(others) > 5)}; name a new folder, or move these away"
        )


def load_draft(folder: str | Path, embed_VH: torch.Tensor, dtype=torch.float32) -> Eagle3Draft:
    """Reads a drafter folder of this project strictly. CheckpointError names what is wrong.

    `embed_VH` is the target's embedding; a drafter of another width carries its own and does not need it.
    """
    folder = Path(folder)
    config = read_draft_config(folder)
    try:
        tensors = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder / WEIGHTS}: cannot be read ({error})") from error
    try:
        if config.full_vocabulary:
            vocab = VocabMap(torch.arange(config.vocab_size), config.vocab_size)
        else:
            vocab = VocabMap.from_tensors(tensors.pop("d2t"), tensors.pop("t2d"))
        embed_VH = tensors.pop(EMBEDDING) if config.owns_embedding else embed_VH
    except KeyError as error:
        raise CheckpointError(
            f"{folder / WEIGHTS}: no tensor {error}: engines would draft wrong tokens silently"
        ) from None
    except VocabError as error:
        raise CheckpointError(f"{folder / WEIGHTS}: {error}") from None
    if vocab.vocab_size != config.vocab_size or vocab.size != config.draft_vocab_size:
        raise CheckpointError(
            f"{folder}: d2t/t2d are for {vocab.size} of {vocab.vocab_size} ids, "
            f"config.json says {config.draft_vocab_size} of {config.vocab_size}"
        )
    draft = Eagle3Draft(config, embed_VH.to(dtype), vocab.target_ids_W).to(dtype)
    check_tensors(draft, tensors, folder / WEIGHTS)
    if bad := [name for name, t in tensors.items() if not bool(torch.isfinite(t).all())]:
        raise CheckpointError(f"{folder / WEIGHTS}: NaN or Inf in {bad}")
    draft.load_state_dict(tensors)
    return draft.eval()


def check_tensors(draft: Eagle3Draft, tensors: Mapping[str, torch.Tensor], place: Path) -> None:
    """CheckpointError naming `place` when the tensors read there have other names or shapes than the drafter's."""
    expected = {name: tuple(parameter.shape) for name, parameter in draft.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if expected != found:
        wrong = sorted(name for name in expected.keys() & found.keys() if expected[name] != found[name])
        raise CheckpointError(
            f"{place}: missing {sorted(expected.keys() - found.keys())}, "
            f"unknown {sorted(found.keys() - expected.keys())}, wrong shape {wrong}"
        )


def read_training(folder: str | Path) -> dict:
    """training.json of a drafter folder: recipe, data and run. CheckpointError when there is none."""
    path = Path(folder) / TRAINING
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); the folder is no drafter of this project") from error


def read_draft_config(folder: str | Path) -> DraftConfig:
    """The drafter's sizes; aux layers from training.json (hs indices). CheckpointError when files disagree."""
    folder = Path(folder)
    training = read_training(folder)
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        draft_config = DraftConfig(**training["draft_config"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder}: not a drafter folder of this project ({error})") from error
    expected = engine_config(draft_config)
    if differing := [key for key, value in expected.items() if config.get(key) != value]:
        raise CheckpointError(
            f"{folder / CONFIG}: {', '.join(differing)} differ from {TRAINING}: the folder was edited"
        )
    return draft_config


@torch.no_grad()
def _prove(draft: Eagle3Draft, folder: Path, dtype) -> None:
    """Reloads what was written; the logits of random inputs must equal those of the draft rounded to `dtype`."""
    embed_VH = draft.embed_VH.cpu().float()
    loaded = load_draft(folder, embed_VH)
    if draft.config.owns_embedding:
        embed_VH = embed_VH.to(dtype).float()
    rounded = Eagle3Draft(draft.config, embed_VH, draft.target_ids_W.cpu())
    rounded.load_state_dict({name: p.cpu().to(dtype).float() for name, p in draft.state_dict().items()})
    generator = torch.Generator().manual_seed(0)
    c, T = draft.config, 5
    aux_TAH = torch.randn(T, len(c.aux_layers), c.target_hidden_size, generator=generator)
    ids_T = torch.randint(0, c.vocab_size, (T,), generator=generator)
    results = []
    for model in (rounded, loaded):
        y_TH = model.forward_cached(model.fuse(aux_TAH), ids_T, torch.arange(T), model.new_cache(T))
        results.append((model.logits(y_TH), model.target_ids_W))
    (logits, ids), (loaded_logits, loaded_ids) = results
    if not torch.equal(ids, loaded_ids) or not torch.equal(logits, loaded_logits):
        raise CheckpointError(f"{folder}: the exported drafter does not reproduce the trained one; nothing was kept")
