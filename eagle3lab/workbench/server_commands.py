"""The SGLang servers that the stages of a plan start, as command lines for release 0.5.14 and later.

What is started in the end comes from eagle3lab/engines/sglang/arguments.py, on a floor above; tests/house keeps these
lines equal to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LAUNCH = "python -m sglang.launch_server"
_CAPTURE = ["--cuda-graph-backend-prefill", "disabled", "--speculative-algorithm", "EAGLE3",
            "--enable-return-aux-hidden-states", "--disable-radix-cache"]  # fmt: skip


def server_commands(stage: str, values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(what for, command) of each server that a stage starts on GPUs; none for other engines, devices and stages, and
    where `servers` that run already are named."""
    if values.get("engine") != "sglang" or values.get("server_device") != "cuda" or values.get("servers"):
        return []
    if stage == "inference":
        precisions = dict.fromkeys((values["heldout_dtype"], values["dtype"]))
        return [("answers", _command(values, dtype)) for dtype in precisions]
    if stage == "extraction":
        return [("hidden states", _command(values, values["dtype"], _CAPTURE))]
    if stage == "diagnostics":
        capture = ("hidden states", _command(values, values["dtype"], _CAPTURE))
        return [capture, *([] if values["server_url"] else [_chain(values, values["num_steps"])])]
    if stage == "serving":
        return [
            ("baseline", _command(values, values["dtype"])),
            *(_chain(values, steps) for steps in values["num_steps"]),
        ]
    return []


def _chain(values: Mapping[str, Any], steps: int) -> tuple[str, str]:
    name = f"chain of {steps}: {steps + 1} draft tokens"
    return name, _command(values, values["dtype"], speculation(steps))


def speculation(num_steps: int, topk: int = 1, num_draft_tokens: int | None = None) -> list[str]:
    """The arguments that make a server speculate with the drafter in DRAFT; a chain where the tokens are not given."""
    return ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "DRAFT",
            "--speculative-num-steps", str(num_steps), "--speculative-eagle-topk", str(topk),
            "--speculative-num-draft-tokens", str(num_draft_tokens or num_steps + 1)]  # fmt: skip


def _command(values: Mapping[str, Any], dtype: str, more: list[str] | None = None) -> str:
    words = ["--model-path", values["target"], "--host", "127.0.0.1", "--port", "PORT", "--dtype", dtype,
             "--device", "cuda", "--random-seed", "0"]  # fmt: skip
    words += ["--trust-remote-code"] if values.get("trust_remote_code") else []
    return " ".join([_LAUNCH, *words, *(more or []), *values["server_options"]])
