"""Target models by name: a local folder, the hub cache, a registry package (converted once), the hub."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3lab.data import hub
from eagle3lab.data.converters import glassllm, smollm2
from eagle3lab.data.packages import PACKAGES, PackageError, cache_root
from eagle3lab.workbench.files import read_json, sha256_file, write_json_atomic

RECORD = "target.json"
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.tiktoken", "*.py"]
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json")


class TargetError(ValueError):
    """No usable target under this name or path."""


@dataclass(frozen=True)
class Converted:
    """A target made from a registry package. `version` changes when the conversion does, so old folders are
    left."""

    package: str
    source: str
    convert: Callable[[Path], None]
    version: int = 1


CONVERTED = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": Converted(smollm2.PACKAGE, smollm2.SOURCE, smollm2.convert),
    "glassllm/en": Converted(glassllm.PACKAGE, glassllm.SOURCE, glassllm.convert),
}


def resolve_target(name_or_path: str | Path) -> Path:
    """A local Hugging Face folder (config.json, *.safetensors, tokenizer) of the target.

    Order: a local folder, the hub cache, a registry package (converted once into the cache, its files checked
    by hash at every call and converted again when damaged), the hub. Raises TargetError with all that was
    tried.
    """
    name = str(name_or_path)
    folder = Path(name).expanduser()
    if folder.is_dir():
        check_files(folder)
        return folder.resolve()
    if not hub.is_hub_name(name):
        raise TargetError(f"target {name!r}: no such folder, and no hub name of the form owner/model")
    tried = ["hub cache: not there"]
    cached = hub.snapshot(name, HUB_FILES, check_files, local_only=True)
    if isinstance(cached, Path):
        return cached
    if name in CONVERTED:
        try:
            return _converted(name, CONVERTED[name])
        except PackageError as error:
            tried.append(f"package {CONVERTED[name].package}: {error}")
    else:
        tried.append(f"registry packages: none has it (they have {', '.join(CONVERTED)})")
    fetched = hub.snapshot(name, HUB_FILES, check_files, local_only=False)
    if isinstance(fetched, Path):
        return fetched
    raise TargetError(
        f"target {name!r} could not be found.\n" + "\n".join(f"- {t}" for t in [*tried, f"hub: {fetched}"])
        + "\nGive the path of a local folder with config.json, *.safetensors and the tokenizer files instead."
    )  # fmt: skip


def check_files(folder: Path) -> None:
    """TargetError naming the folder and the missing file, unless config, weights and a tokenizer are
    there."""
    if not (folder / "config.json").is_file():
        raise TargetError(f"target folder {folder} has no config.json")
    if not any(folder.glob("*.safetensors")):
        raise TargetError(f"target folder {folder} has no *.safetensors (other weight formats are not read)")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        missing = sorted(f for f in set(read_json(index)["weight_map"].values()) if not (folder / f).is_file())
        if missing:
            raise TargetError(f"target folder {folder} lacks {', '.join(missing)} of its index")
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise TargetError(f"target folder {folder} has no tokenizer ({', '.join(_TOKENIZER_FILES)})")


def check_weights(folder: Path) -> dict[str, Any]:
    """Read every tensor once: names and shapes must be those of config.json, values finite.

    Returns {"tensors", "parameters", "dtypes"}; tied tensors that are not stored are no fault. Raises
    TargetError naming the file and the tensor.
    """
    import torch
    from safetensors import safe_open
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    expected = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    found: dict[str, int] = {}
    dtypes: set[str] = set()
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():
                tensor = tensors.get_tensor(name)
                shape = tuple(tensor.shape)
                if expected.get(name) != shape:
                    raise TargetError(f"{file}: {name} is {shape}, config.json says {expected.get(name)}")
                if not torch.isfinite(tensor).all():
                    raise TargetError(f"{file}: {name} holds NaN or infinity")
                found[name] = tensor.numel()
                dtypes.add(str(tensor.dtype).removeprefix("torch."))
    missing = sorted(set(expected) - set(found) - tied)
    if missing:
        raise TargetError(f"target folder {folder} lacks {len(missing)} tensors, e.g. {missing[0]}")
    return {"tensors": len(found), "parameters": sum(found.values()), "dtypes": sorted(dtypes)}


def _converted(name: str, recipe: Converted) -> Path:
    pin = PACKAGES[recipe.package]
    tag = f"{recipe.package}-{pin.version}-v{recipe.version}"
    folder = cache_root() / "targets" / tag
    fault = damage(folder)
    if fault is None:
        return folder
    if folder.exists():
        warnings.warn(f"cached target {folder} is damaged ({fault}); it is converted again", stacklevel=3)
    partial = folder.with_name(f".{tag}.{os.getpid()}-{secrets.token_hex(4)}")
    partial.mkdir(parents=True)
    try:
        recipe.convert(partial)
        check_files(partial)
        record = {"name": name, "source": recipe.source, "package": recipe.package, "version": pin.version}
        record |= {"package_sha256": pin.sha256, "weights": check_weights(partial)}
        record["files"] = {f.name: sha256_file(f) for f in sorted(partial.iterdir())}
        write_json_atomic(partial / RECORD, record)
        if damage(folder) is not None:  # another process may have made it meanwhile
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def damage(folder: Path) -> str | None:
    """What is wrong with a converted target's folder by its target.json; None when every file's hash
    agrees."""
    if not (folder / RECORD).is_file():
        return f"no {RECORD}"
    try:
        files = read_json(folder / RECORD)["files"]
    except (ValueError, KeyError, TypeError) as error:
        return f"{RECORD}: {error}"
    for name, expected in files.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if sha256_file(folder / name) != expected:
            return f"{name} has another sha256 than {RECORD} says"
    return None


def target_config(folder: str | Path) -> dict[str, Any]:
    """config.json of a target as a dict (for the context length and layer counts, without loading the
    model)."""
    return json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))


def context_length(folder: str | Path) -> int | None:
    """Longest context of a target in tokens, by its config or, for models that see too, its text config; None when
    neither says it."""
    config = target_config(folder)
    return config.get("max_position_embeddings") or config.get("text_config", {}).get("max_position_embeddings")
