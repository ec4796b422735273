"""The SGLang servers that the stages of a plan start, as command lines for release 0.5.14 and later, and the flags that
no parameter may add to them.

What is started in the end comes from eagle3lab/engines/sglang/arguments.py and servers/own_flags.py, on a floor above;
tests/house keeps these lines equal to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

# by parameter; a * stands for any ending, and --config is a file of flags
OWN_FLAGS = {
    "server_options": (
        "--speculative-*", "--model-path", "--host", "--port", "--dtype", "--device", "--config",
        "--return-aux-hidden-state-layer-ids", "--disable-cuda-graph", "--disable-decode-cuda-graph",
        "--disable-prefill-cuda-graph", "--cuda-graph-backend-*", "--cuda-graph-config",
    ),
    "vllm_options": (
        "--speculative-*", "--spec-*", "-sc", "--model", "--served-model-name", "--host", "--port", "--dtype",
        "--config", "--generation-config", "--kv-transfer-config",
    ),
}  # fmt: skip

_LAUNCH = "python -m sglang.launch_server"
_CAPTURE = ["--cuda-graph-backend-prefill", "disabled", "--speculative-algorithm", "EAGLE3",
            "--enable-return-aux-hidden-states", "--disable-radix-cache"]  # fmt: skip
_NO_GRAPHS = ["--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"]


def server_commands(stage: str, values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(what for, command) of each server that a stage starts on GPUs; none for other engines, devices and stages, and
    where `servers` that run already are named."""
    if values.get("engine") != "sglang" or values.get("server_device") != "cuda" or values.get("servers"):
        return []
    if stage == "inference":
        precisions = dict.fromkeys(_precision(values[name]) for name in ("heldout_dtype", "dtype"))
        return [("answers", _command(values, dtype)) for dtype in precisions]
    if stage == "extraction":
        return [("hidden states", _command(values, values["dtype"], _CAPTURE))]
    if stage == "diagnostics":
        capture = ("hidden states", _command(values, values["dtype"], _CAPTURE))
        return [capture, *([] if values["server_url"] else [_chain(values, values["num_steps"])])]
    if stage == "serving":
        return [*_benchmark(values), *_grid(values)]
    return []


def _benchmark(values: Mapping[str, Any], more: list[str] | None = None) -> list[tuple[str, str]]:
    """Plain decoding and the chains of a benchmark."""
    chains = [_chain(values, steps, more) for steps in values["num_steps"]]
    return [("baseline", _command(values, values["dtype"], more)), *chains]


def _grid(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a grid starts beside the servers of the benchmark: its trees, and all of them once more without graphs."""
    found = []
    for on in dict.fromkeys(values["grid_cuda_graphs"] if values["grid_concurrency"] else []):
        more = [] if on else _NO_GRAPHS
        servers = [] if on else _benchmark(values, more)
        for steps, topk, tokens in product(values["num_steps"], values["grid_topk"], values["grid_draft_tokens"]):
            if topk > 1:
                tree = f"tree of {steps}, topk {topk}: {tokens} draft tokens"
                servers.append((tree, _command(values, values["dtype"], [*more, *speculation(steps, topk, tokens)])))
        found += [(name if on else f"{name}, without CUDA graphs", command) for name, command in servers]
    return found


def _chain(values: Mapping[str, Any], steps: int, more: list[str] | None = None) -> tuple[str, str]:
    name = f"chain of {steps}: {steps + 1} draft tokens"
    return name, _command(values, values["dtype"], [*(more or []), *speculation(steps)])


def speculation(num_steps: int, topk: int = 1, num_draft_tokens: int | None = None) -> list[str]:
    """The arguments that make a server speculate with the drafter in DRAFT; a chain where the tokens are not given."""
    return ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "DRAFT",
            "--speculative-num-steps", str(num_steps), "--speculative-eagle-topk", str(topk),
            "--speculative-num-draft-tokens", str(num_draft_tokens or num_steps + 1)]  # fmt: skip


def _command(values: Mapping[str, Any], dtype: str, more: list[str] | None = None) -> str:
    words = ["--model-path", values["target"], "--host", "127.0.0.1", "--port", "PORT", "--dtype", _precision(dtype),
             "--device", "cuda", "--random-seed", "0"]  # fmt: skip
    words += ["--trust-remote-code"] if values.get("trust_remote_code") else []
    return " ".join([_LAUNCH, *words, *(more or []), *values["server_options"]])


def _precision(dtype: str) -> str:
    """What a parameter stands for on a GPU."""
    return "bfloat16" if dtype == "auto" else dtype


def names_no_own_flag(words: Iterable[str], parameter: str) -> bool:
    """Whether none of the words writes, in any form that a parser takes, a flag that the workbench writes itself."""
    for word in words:
        name = word.partition("=")[0].partition(".")[0].replace("_", "-")
        for flag in OWN_FLAGS[parameter]:
            begin = flag.removesuffix("*")
            if name == flag or (flag != begin and name.startswith(begin)):
                return False
            if name.startswith("--") and len(name) > 2 and begin.startswith(name):
                return False
    return True
