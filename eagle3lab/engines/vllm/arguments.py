"""A server specification as the command line and environment of vLLM's OpenAI server.

Flags were read in, and tried with, vLLM 0.32.0.
"""

from __future__ import annotations

import json
from pathlib import Path

from eagle3lab.draft.aux_layers import default_aux_layers
from eagle3lab.engines.servers.launched import HOST
from eagle3lab.engines.servers.model_files import is_local, read_target
from eagle3lab.engines.vllm.spec import VllmSpec

MODULE = "vllm.entrypoints.openai.api_server"  # the console script of the CPU repack does not start
CPU_CACHE_MIB = 1024  # vLLM would take most of the machine's memory
SERVED_NAME = "target"  # what requests call the model
REPOSITORY = Path(__file__).resolve().parents[3]
CONNECTOR, CONNECTOR_MODULE = "HiddenStatesToFiles", "eagle3lab.engines.vllm.connector"


def launch_arguments(spec: VllmSpec, port: int) -> list[str]:
    """Arguments of the server's module. Raises ModelFilesError or CollidingLayersError when the layers to capture
    cannot be told for the target."""
    arguments = ["--model", spec.target, "--served-model-name", SERVED_NAME, "--host", HOST, "--port", str(port)]
    # the target's generation_config.json would add end tokens and sampling settings to every request
    arguments += ["--dtype", spec.dtype, "--seed", str(spec.seed), "--generation-config", "vllm"]
    cache = spec.kv_cache_mib or (CPU_CACHE_MIB if spec.device == "cpu" else None)
    for flag, value in (
        ("--tensor-parallel-size", spec.tp if spec.tp > 1 else None),
        ("--max-model-len", spec.context_length),
        ("--max-num-seqs", spec.max_running_requests),
        ("--max-num-batched-tokens", spec.max_batch_tokens),
        ("--gpu-memory-utilization", spec.mem_fraction if spec.device == "cuda" else None),
        ("--kv-cache-memory-bytes", cache * 1024**2 if cache else None),
    ):
        if value is not None:
            arguments += [flag, str(value)]
    if spec.trust_remote_code:
        arguments.append("--trust-remote-code")
    if spec.device == "cpu" or not spec.cuda_graphs:
        arguments.append("--enforce-eager")
    if spec.capture_folder:
        arguments += _capture(spec)
    elif spec.draft:
        chain = {"method": "eagle3", "model": spec.draft, "num_speculative_tokens": spec.num_steps}
        arguments += ["--speculative-config", json.dumps(chain), "--per-request-spec-decode-metrics", "detailed"]
    return [*arguments, *spec.extra]


def captured_layers(spec: VllmSpec) -> list[int]:
    """hs indices that the server writes, in its order: the aux layers from low to high, and L, which is the last
    layer's output before the final norm."""
    count = read_target(spec.target).num_layers
    layers = default_aux_layers(count) if spec.aux_layers is None else spec.aux_layers
    return [*sorted(layers), count]


def _capture(spec: VllmSpec) -> list[str]:
    """Tokens of a cached prefix would be skipped, so nothing is cached between requests."""
    states = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": captured_layers(spec)}},
    }
    transfer = {
        "kv_connector": CONNECTOR,
        "kv_connector_module_path": CONNECTOR_MODULE,
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {
            "shared_storage_path": spec.capture_folder,
            "use_synchronization_lock": False,
        },
    }
    return [
        "--speculative-config", json.dumps(states), "--kv-transfer-config", json.dumps(transfer),
        "--no-enable-prefix-caching",
    ]  # fmt: skip


def launch_environment(spec: VllmSpec) -> dict[str, str]:
    """Variables that the server needs beside those it inherits."""
    environment = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if all(is_local(path) for path in (spec.target, spec.draft) if path is not None):
        environment["HF_HUB_OFFLINE"] = "1"
    if spec.device == "cpu":
        # one thread: on few shared cores more of them wait for each other
        environment |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    if spec.capture_folder:
        environment["PYTHONPATH"] = str(REPOSITORY)  # where the connector is
    return environment
