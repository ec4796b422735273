"""What a prepared set depends on, as one hash: the same hash means that preparing it again would change nothing."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from eagle3lab.data.adapters import ADAPTERS
from eagle3lab.data.chat import load_tokenizer
from eagle3lab.data.limits import Limits
from eagle3lab.data.sources import SetSpec
from eagle3lab.data.text import digest
from eagle3lab.workbench.files import sha256_file

_PIECES, _PIECE_BYTES = 32, 1 << 16  # of a weight file


def preparation_fingerprint(
    spec: SetSpec,
    tokenizer: Any,
    limits: Limits,
    context_length: int | None,
    end_ids: set[int] | None,
    blocked: Mapping[str, str],
    origin: Mapping[str, Any] | None = None,
) -> str:
    """Hash of the set's rows and settings, the target's tokenizer, the limits, the benchmarks and the code. `origin` is
    `spec.origin()`, where it is known already."""
    parts = {
        "set": asdict(spec) | {"path": None},  # a copy elsewhere is the same set: its hash is in the origin
        "origin": origin or spec.origin(),
        "limits": asdict(limits),
        "context_length": context_length,
        "end_ids": sorted(end_ids or ()),
        "tokenizer": tokenizer_digest(tokenizer),
        "blocked": digest(json.dumps(sorted(blocked))),
        "adapter": code_digest(ADAPTERS[spec.adapter]),
        "code": _room_digest(),
    }
    return digest(json.dumps(parts, sort_keys=True))


def tokenizer_digest(tokenizer: Any) -> str:
    """Hash of what decides about token ids: the vocabulary, a fast tokenizer's whole state, specials, the template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        state = backend.to_str()
    else:
        tokens = sorted(tokenizer.get_vocab().items())
        added = sorted((i, str(token)) for i, token in tokenizer.added_tokens_decoder.items())
        state = json.dumps([type(tokenizer).__name__, tokens, added])
    return digest(json.dumps([state, str(tokenizer.chat_template), tokenizer.eos_token_id]))


def target_fingerprint(
    folder: str | Path, parts: Collection[str] = ("target", "template"), trust_remote_code: bool = False
) -> dict[str, str]:
    """What a target's hidden states and token ids depend on: "target", its config and weights, and "template", its
    tokenizer with the chat template that it renders with, in whichever file that lies. trust_remote_code: the tokenizer
    may be code in the folder."""
    digests = {
        "target": lambda: weights_digest(Path(folder)),
        "template": lambda: tokenizer_digest(load_tokenizer(folder, trust_remote_code)),
    }
    return {part: digests[part]() for part in parts}


def weights_digest(folder: Path) -> str:
    """Hash of config.json, of every weight file's name and size, and of pieces spread evenly over it, its header first.

    All bytes of a large target would take an hour to read; training changes weights everywhere.
    """
    sha = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        sha.update(f"{path.name} {size}".encode())
        with open(path, "rb") as file:
            for i in range(_PIECES):
                file.seek(max(0, size - _PIECE_BYTES) * i // (_PIECES - 1))
                sha.update(file.read(_PIECE_BYTES))
    return sha.hexdigest()


def code_digest(function: Callable) -> str:
    """Hash of an adapter's source, or of its byte code where it has no source (typed at a prompt)."""
    try:
        return digest(inspect.getsource(function))
    except (OSError, TypeError):
        return digest(repr(_code_parts(function.__code__)))


def _code_parts(code: CodeType) -> list[Any]:
    """What byte code does, without the addresses that the text of nested code objects holds."""
    constants = [_code_parts(one) if isinstance(one, CodeType) else one for one in code.co_consts]
    return [code.co_code, constants, code.co_names]


@cache
def _room_digest() -> str:
    files = sorted(Path(__file__).parent.rglob("*.py"))
    return digest(json.dumps([[file.name, sha256_file(file)] for file in files]))
