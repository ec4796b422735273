"""A server specification as the command line and environment of one SGLang release.

Flags were read in the wheels of 0.5.13 to 0.5.23: per-phase CUDA-graph flags came with 0.5.14, aux states in answers
with 0.5.23; the others used here have the same names in all of them.
"""

from __future__ import annotations

import os
from pathlib import Path

from packaging.version import Version

from eagle3lab.draft.aux_layers import are_default, default_aux_layers, sglang_layer_ids
from eagle3lab.engines.servers.launched import HOST
from eagle3lab.engines.servers.model_files import TargetFacts, is_local, read_target
from eagle3lab.engines.sglang.spec import ServerSpec

GRAPHS_PER_PHASE_SINCE = Version("0.5.14")
CPU_KERNELS = Path(__file__).resolve().parents[3] / "sglang_cpu"  # holds the package sgl_kernel for CPUs

# What a CPU server needs. `intel_amx` must be named for prefill and decode one by one: as the one backend of all it is
# replaced by torch_native, which EAGLE refuses. Without sleep-on-idle an idle server keeps a core busy.
_CPU = (
    "--attention-backend", "torch_native",
    "--prefill-attention-backend", "intel_amx",
    "--decode-attention-backend", "intel_amx",
    "--sampling-backend", "pytorch",
    "--grammar-backend", "none",
    "--disable-overlap-schedule",
    "--sleep-on-idle",
)  # fmt: skip
_CPU_DRAFT = ("--speculative-draft-attention-backend", "intel_amx")


class CpuKernelsMissing(RuntimeError):
    """A CPU server cannot be started without the repository's folder of CPU kernels."""


def launch_arguments(spec: ServerSpec, version: str, port: int) -> list[str]:
    """Arguments of `python -m sglang.launch_server` for this release. Raises ModelFilesError or ValueError when aux
    layers cannot be converted for the target."""
    arguments = ["--model-path", spec.target, "--host", HOST, "--port", str(port)]
    arguments += ["--dtype", spec.dtype, "--device", spec.device, "--random-seed", str(spec.seed)]
    for flag, value in (
        ("--tokenizer-path", spec.tokenizer),
        ("--tp-size", spec.tp if spec.tp > 1 else None),
        ("--context-length", spec.context_length),
        ("--max-running-requests", spec.max_running_requests),
        ("--max-total-tokens", spec.max_total_tokens),
        ("--mem-fraction-static", spec.mem_fraction),
    ):
        if value is not None:
            arguments += [flag, str(value)]
    if spec.trust_remote_code:
        arguments.append("--trust-remote-code")
    if spec.device == "cpu":
        arguments += _CPU
    arguments += _graphs(spec, Version(version))
    if spec.captures:
        arguments += _capture(spec)
    elif spec.speculation:
        arguments += _speculation(spec)
    return [*arguments, *spec.extra]


def _graphs(spec: ServerSpec, version: Version) -> list[str]:
    """CUDA graphs off where they cannot be or must not be: a replayed graph calls no hooks, so the capture plugin would
    see no prompt (decode steps hold no rows, and may replay)."""
    off = spec.device == "cpu" or not spec.cuda_graphs
    if version < GRAPHS_PER_PHASE_SINCE:
        return ["--disable-cuda-graph"] if off else []
    decode = ["--cuda-graph-backend-decode", "disabled"] if off else []
    prefill = ["--cuda-graph-backend-prefill", "disabled"] if off or spec.captures else []
    return decode + prefill


def _speculation(spec: ServerSpec) -> list[str]:
    arguments = ["--speculative-algorithm", spec.speculation]
    if spec.draft:
        arguments += ["--speculative-draft-model-path", spec.draft]
    if spec.speculation != "NGRAM":
        arguments += ["--speculative-num-steps", str(spec.num_steps), "--speculative-eagle-topk", str(spec.topk)]
    arguments += ["--speculative-num-draft-tokens", str(spec.draft_tokens)]
    return [*arguments, *_CPU_DRAFT] if spec.device == "cpu" and spec.draft else arguments


def _capture(spec: ServerSpec) -> list[str]:
    """Without a draft the algorithm only names the convention of layers. A prompt found in the prefix cache would lack
    the states of its cached tokens."""
    arguments = ["--speculative-algorithm", "EAGLE3", "--enable-return-aux-hidden-states", "--disable-radix-cache"]
    ids = capture_ids(spec.aux_layers, read_target(spec.target)) if is_local(spec.target) else None
    return [*arguments, "--return-aux-hidden-state-layer-ids", *map(str, ids)] if ids else arguments


def capture_ids(aux_layers: tuple[int, ...] | None, target: TargetFacts) -> list[int] | None:
    """SGLang's ids of the hs indices to capture (None: EAGLE-3's default); None where they are its own default."""
    layers = list(aux_layers) if aux_layers else default_aux_layers(target.num_layers)
    if are_default(layers, target.num_layers, target.architecture):
        return None
    return sglang_layer_ids(layers, target.architecture)


def launch_environment(spec: ServerSpec) -> dict[str, str]:
    """Variables that the server needs beside those it inherits. Raises CpuKernelsMissing."""
    environment = {}
    if all(is_local(path) for path in (spec.target, spec.draft, spec.tokenizer) if path is not None):
        environment["HF_HUB_OFFLINE"] = "1"
    if spec.device == "cpu":
        if not (CPU_KERNELS / "sgl_kernel").is_dir():
            raise CpuKernelsMissing(f"{CPU_KERNELS} holds no sgl_kernel: run from a full checkout of the repository")
        # one thread: on few shared cores the server's processes otherwise wait for each other
        environment |= {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(CPU_KERNELS)}
    return environment


def join_environments(*parts: dict[str, str]) -> dict[str, str]:
    """All variables; a later part wins, but the folders of every PYTHONPATH are kept, earlier parts first."""
    paths = [part["PYTHONPATH"] for part in parts if part.get("PYTHONPATH")]
    joined = {name: value for part in parts for name, value in part.items()}
    return joined | ({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})
