"""Command lines and environments, against lists written by hand from vLLM 0.32.0's own flags."""

import json

import pytest

from eagle3lab.engines.servers.spec import SpecError
from eagle3lab.engines.vllm.arguments import REPOSITORY, launch_arguments, launch_environment
from eagle3lab.engines.vllm.spec import VllmSpec
from tests.engines.sglang.drafters import write_target

BEGIN = ["--model", "/m", "--served-model-name", "target", "--host", "127.0.0.1", "--port", "3000"]


def test_a_plain_server_on_a_gpu():
    assert launch_arguments(VllmSpec("/m"), 3000) == [
        *BEGIN, "--dtype", "bfloat16", "--seed", "0", "--generation-config", "vllm",
    ]  # fmt: skip


def test_all_options_of_a_server_on_gpus():
    spec = VllmSpec(
        "/m", tp=8, context_length=8192, max_running_requests=64, max_batch_tokens=4096, mem_fraction=0.85,
        kv_cache_mib=3, trust_remote_code=True, seed=7, cuda_graphs=False, extra=("--enable-expert-parallel",),
    )  # fmt: skip
    assert launch_arguments(spec, 3000) == [
        *BEGIN, "--dtype", "bfloat16", "--seed", "7", "--generation-config", "vllm", "--tensor-parallel-size", "8",
        "--max-model-len", "8192", "--max-num-seqs", "64", "--max-num-batched-tokens", "4096",
        "--gpu-memory-utilization", "0.85", "--kv-cache-memory-bytes", "3145728", "--trust-remote-code",
        "--enforce-eager", "--enable-expert-parallel",
    ]  # fmt: skip


def test_a_chain_counts_every_verification():
    arguments = launch_arguments(VllmSpec("/m", draft="/d", num_steps=5), 3000)
    assert arguments[-4:-2] == ["--speculative-config", arguments[-3]]
    assert json.loads(arguments[-3]) == {"method": "eagle3", "model": "/d", "num_speculative_tokens": 5}
    assert arguments[-2:] == ["--per-request-spec-decode-metrics", "detailed"]


@pytest.mark.parametrize(("layers", "ids"), [(None, [2, 4, 5, 8]), ((5, 1), [1, 5, 8])])
def test_a_capturing_server_writes_the_layers_and_the_last_state(tmp_path, layers, ids):
    """Layer ids are hs indices there; the number of layers is the last layer's output."""
    spec = VllmSpec(write_target(tmp_path / "m"), capture_folder="/c", aux_layers=layers)
    arguments = launch_arguments(spec, 3000)
    states = json.loads(arguments[arguments.index("--speculative-config") + 1])
    assert states["method"] == "extract_hidden_states" and states["num_speculative_tokens"] == 1
    assert states["draft_model_config"]["hf_config"]["eagle_aux_hidden_state_layer_ids"] == ids
    transfer = json.loads(arguments[arguments.index("--kv-transfer-config") + 1])
    assert transfer["kv_connector_extra_config"]["shared_storage_path"] == "/c"
    module = REPOSITORY.joinpath(*transfer["kv_connector_module_path"].split(".")).with_suffix(".py")
    assert f"class {transfer['kv_connector']}(" in module.read_text(encoding="utf-8")
    assert "--no-enable-prefix-caching" in arguments
    assert launch_environment(spec)["PYTHONPATH"] == str(REPOSITORY)


def test_a_server_on_a_cpu_keeps_to_one_thread_and_little_memory(tmp_path):
    spec = VllmSpec(write_target(tmp_path / "m"), device="cpu")
    arguments, environment = launch_arguments(spec, 3000), launch_environment(spec)
    assert "--enforce-eager" in arguments
    assert arguments[arguments.index("--kv-cache-memory-bytes") + 1] == str(2**30)
    assert environment["OMP_NUM_THREADS"] == "1" and environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert environment["HF_HUB_OFFLINE"] == "1" and environment["VLLM_NO_USAGE_STATS"] == "1"
    assert "HF_HUB_OFFLINE" not in launch_environment(VllmSpec("owner/name"))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"dtype": "int4"}, "dtype='int4' is none of"),
        ({"num_steps": 0}, "num_steps=0 must be a whole number"),
        ({"mem_fraction": 1.5}, "mem_fraction=1.5"),
        ({"draft": "/d", "capture_folder": "/c"}, "captured without a draft"),
        ({"aux_layers": (1, 2)}, "aux_layers is for capturing"),
        ({"aux_layers": (-1,), "capture_folder": "/c"}, "must be hs indices"),
        ({"extra": "--a b"}, "is one text"),
        ({"extra": ["--speculative_config.method", "eagle"]}, "is written from the other fields"),
        ({"extra": ["--model", "/other"]}, "--model is written"),
    ],
)
def test_a_specification_that_contradicts_itself(changes, text):
    with pytest.raises(SpecError, match=text.replace("(", r"\(")):
        VllmSpec("/m", **changes)
