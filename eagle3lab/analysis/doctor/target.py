"""Checks of a target model's folder (Hugging Face layout), read without loading the model."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from eagle3lab.analysis.doctor.report import Check, judged
from eagle3lab.analysis.tables import human_bytes
from eagle3lab.data.targets import TargetError, resolve_target
from eagle3lab.draft.aux_layers import check_aux_layers as valid_aux_layers
from eagle3lab.draft.aux_layers import default_aux_layers, some_aux_layers

INDEX = "model.safetensors.index.json"
FETCH_AGAIN = "remove the folder and let the target be fetched again"
ELSEWHERE = "python -m eagle3lab run PROFILE --only doctor -p target FOLDER"


def find_target(name: str | Path) -> tuple[Path | None, list[Check]]:
    """(the target's folder, no rows), or (None, the row that says why there is none)."""
    try:
        return resolve_target(name), []
    except (TargetError, OSError) as error:
        remedy = "set target to a folder with config.json, *.safetensors and a tokenizer, or make what is missing"
        return None, [judged("target", str(error), "a model's folder", "fault", remedy, ELSEWHERE)]


def check_target(folder: Path, aux_layers: Sequence[int] | None = None, max_bytes: int = 40 * 2**30) -> list[Check]:
    """All checks of a target folder. Without whole files the rest is not looked at."""
    files = check_files(folder)
    if files.verdict == "fault":
        return [files]
    return [
        files,
        check_finite(folder, max_bytes),
        check_aux_layers(folder, aux_layers),
        check_chat_template(folder),
        check_end_token(folder),
    ]


def check_files(folder: Path) -> Check:
    """config.json, tokenizer and every weight file (all shards of the index) are there and readable."""
    folder = Path(folder)
    name, expected = "target files", "config.json, tokenizer, safetensors"
    if not folder.is_dir():
        return Check(name, f"no folder {folder}", expected, "fault", "name an existing target")
    problems = _unreadable_json(folder, "config.json")
    if not any((folder / f).is_file() for f in ("tokenizer.json", "tokenizer.model", "tiktoken.model")):
        problems.append("no tokenizer file")
    shards = weight_files(folder)
    if not shards:
        problems.append("no safetensors file")
    for shard in shards:
        problems += _shard_problems(shard)
    problems += _index_problems(folder)
    found = "; ".join(problems) or f"{len(shards)} weight file(s), {human_bytes(_size(shards))}"
    return judged(name, found, expected, "fault" if problems else "ok", FETCH_AGAIN)


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files, sorted."""
    return sorted(Path(folder).glob("*.safetensors"))


def _size(files) -> int:
    return sum(file.stat().st_size for file in files)


def _unreadable_json(folder, name) -> list[str]:
    try:
        json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return [f"no {name}"]
    except ValueError as error:
        return [f"{name} is not JSON ({error})"]
    return []


def _shard_problems(shard) -> list[str]:
    try:
        with safe_open(shard, framework="pt") as tensors:
            return [] if tensors.keys() else [f"{shard.name} holds no tensor"]
    except SafetensorError as error:
        return [f"{shard.name} is damaged ({error})"]


def _index_problems(folder) -> list[str]:
    if not (folder / INDEX).is_file():
        return []
    unreadable = _unreadable_json(folder, INDEX)
    if unreadable:
        return unreadable
    shards = set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
    return [f"{shard} is missing" for shard in sorted(shards) if not (folder / shard).is_file()]


def check_finite(folder: Path, max_bytes: int = 40 * 2**30) -> Check:
    """No NaN and no infinity in any weight. Not checked above `max_bytes` of files (it reads them all)."""
    name, expected = "target weights", "finite"
    shards = weight_files(folder)
    size = _size(shards)
    if size > max_bytes:
        return Check(name, human_bytes(size), expected, "not checked", "raise max_bytes to read them all")
    bad, count = [], 0
    for shard in shards:
        with safe_open(shard, framework="pt") as tensors:
            for key in tensors.keys():
                count += 1
                tensor = tensors.get_tensor(key)
                if tensor.is_floating_point() and not bool(torch.isfinite(tensor.float()).all()):
                    bad.append(f"{key} in {shard.name}")
    found = f"not finite: {', '.join(bad[:3])}" + (f" and {len(bad) - 3} more" if len(bad) > 3 else "")
    return judged(name, found if bad else f"{count} tensors finite", expected, "fault" if bad else "ok", FETCH_AGAIN)


def check_aux_layers(folder: Path, aux_layers: Sequence[int] | None = None) -> Check:
    """The aux layers (hs indices; default [2, L//2, L-3]) are different layers of this target."""
    layers = text_config(folder).get("num_hidden_layers")
    name, expected = "aux layers", f"different layers of {layers}"
    if not isinstance(layers, int):
        return Check(name, "config.json has no num_hidden_layers", expected, "fault", FETCH_AGAIN)
    try:
        chosen = default_aux_layers(layers) if aux_layers is None else valid_aux_layers(aux_layers, layers)
    except ValueError as error:
        some = some_aux_layers(layers)
        remedy = "set aux_layers in common.yaml of the profile" + (f", for instance to {some}" if some else "")
        return Check(name, str(error), expected, "fault", remedy)
    return Check(name, f"{chosen}", expected, "ok")


def text_config(folder: Path) -> dict:
    """config.json of the language model (a multimodal config keeps it under `text_config`)."""
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    return config.get("text_config") or config


def check_chat_template(folder: Path) -> Check:
    """A chat template exists and can open the assistant's turn."""
    name, expected = "chat template", "present, with add_generation_prompt"
    template = _chat_template(Path(folder))
    if not template:
        remedy = "use the instruction-tuned variant of the target, or add its chat_template.jinja"
        return Check(name, "none", expected, "fault", remedy)
    opens = "add_generation_prompt" in template
    remedy = "its prompts would not open the assistant's turn: use the template the target was tuned with"
    return judged(
        name,
        f"{len(template):,} characters" + ("" if opens else ", without add_generation_prompt"),
        expected,
        "ok" if opens else "warning",
        remedy,
    )


def _chat_template(folder) -> str:
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        template = _json_or_empty(folder / name).get("chat_template")
        if isinstance(template, list):  # named templates
            template = next((t["template"] for t in template if t["name"] == "default"), None)
        if template:
            return template
    return ""


def check_end_token(folder: Path) -> Check:
    """Generation stops at an existing token, and at the one the tokenizer calls the end."""
    folder = Path(folder)
    name, expected = "end token", "ids of the vocabulary, the tokenizer's eos_token among them"
    vocab_size = text_config(folder).get("vocab_size")
    ids = _end_ids(folder)
    if not ids:
        return Check(name, "none", expected, "fault", "set eos_token_id in generation_config.json")
    if vocab_size and max(ids) >= vocab_size:
        return Check(
            name,
            f"{ids} with a vocabulary of {vocab_size}",
            expected,
            "fault",
            "mend eos_token_id in generation_config.json: answers would never end",
        )
    text, eos = _tokenizer_end(folder)
    missing = eos is not None and eos not in ids
    found = f"{ids}" + (f", without the tokenizer's {text} ({eos})" if missing else "")
    remedy = "add it to eos_token_id in generation_config.json: answers would run on to max_tokens"
    return judged(name, found, expected, "warning" if missing else "ok", remedy)


def _end_ids(folder) -> list[int]:
    """eos_token_id of generation_config.json, else of config.json, as a sorted list."""
    ids = _json_or_empty(folder / "generation_config.json").get("eos_token_id")
    if ids is None:
        ids = text_config(folder).get("eos_token_id")
    if ids is None:
        return []
    return sorted(ids) if isinstance(ids, list) else [ids]


def _tokenizer_end(folder) -> tuple[str | None, int | None]:
    """The tokenizer's eos_token and its id among the added tokens; None where the files do not say."""
    token = _json_or_empty(folder / "tokenizer_config.json").get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    added = _json_or_empty(folder / "tokenizer.json").get("added_tokens") or ()
    return text, next((entry["id"] for entry in added if entry["content"] == text), None)


def _json_or_empty(path) -> dict:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
