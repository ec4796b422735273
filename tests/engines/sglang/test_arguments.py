"""Command lines and environments, against lists written by hand from each release's own flags."""

import pytest

from eagle3lab.engines.sglang import arguments
from eagle3lab.engines.sglang.arguments import join_environments, launch_arguments, launch_environment
from eagle3lab.engines.sglang.spec import ServerSpec
from tests.engines.sglang.drafters import write_target


def test_a_plain_server_on_a_gpu():
    assert launch_arguments(ServerSpec("/m"), "0.5.23", 3000) == [
        "--model-path", "/m", "--host", "127.0.0.1", "--port", "3000", "--dtype", "bfloat16", "--device", "cuda",
        "--random-seed", "0",
    ]  # fmt: skip


def test_all_options_of_a_server_on_gpus():
    spec = ServerSpec(
        "/m", tokenizer="/tok", tp=8, context_length=8192, max_running_requests=64, max_total_tokens=100000,
        mem_fraction=0.85, trust_remote_code=True, seed=7, extra=("--enable-metrics",),
    )  # fmt: skip
    assert launch_arguments(spec, "0.5.23", 3000) == [
        "--model-path", "/m", "--host", "127.0.0.1", "--port", "3000", "--dtype", "bfloat16", "--device", "cuda",
        "--random-seed", "7", "--tokenizer-path", "/tok", "--tp-size", "8", "--context-length", "8192",
        "--max-running-requests", "64", "--max-total-tokens", "100000", "--mem-fraction-static", "0.85",
        "--trust-remote-code", "--enable-metrics",
    ]  # fmt: skip


def speculative(spec, version="0.5.23"):
    """The arguments from --random-seed on."""
    found = launch_arguments(spec, version, 1)
    return found[found.index("--random-seed") + 2 :]


def test_a_chain():
    assert speculative(ServerSpec("/m", draft="/d", num_steps=5)) == [
        "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "/d", "--speculative-num-steps", "5",
        "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "6",
    ]  # fmt: skip


def test_a_tree():
    assert speculative(ServerSpec("/m", draft="/d", num_steps=3, topk=4, num_draft_tokens=8)) == [
        "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "/d", "--speculative-num-steps", "3",
        "--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "8",
    ]  # fmt: skip


def test_ngram_has_neither_drafter_nor_steps():
    assert speculative(ServerSpec("/m", algorithm="NGRAM", num_draft_tokens=12)) == [
        "--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "12",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.5.23", ["--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"]),
        ("0.5.14", ["--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"]),
        ("0.5.13.post1", ["--disable-cuda-graph"]),
        ("0.5.9", ["--disable-cuda-graph"]),
    ],
)
def test_cuda_graphs_are_switched_off_in_the_words_of_the_release(version, expected):
    assert speculative(ServerSpec("/m", cuda_graphs=False), version) == expected
    assert speculative(ServerSpec("/m"), version) == []


def test_a_drafter_on_a_cpu():
    spec = ServerSpec("/m", draft="/d", device="cpu", dtype="float32", mem_fraction=0.3)
    assert launch_arguments(spec, "0.5.23", 3000) == [
        "--model-path", "/m", "--host", "127.0.0.1", "--port", "3000", "--dtype", "float32", "--device", "cpu",
        "--random-seed", "0", "--mem-fraction-static", "0.3",
        "--attention-backend", "torch_native", "--prefill-attention-backend", "intel_amx",
        "--decode-attention-backend", "intel_amx", "--sampling-backend", "pytorch", "--grammar-backend", "none",
        "--disable-overlap-schedule", "--sleep-on-idle",
        "--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled",
        "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "/d", "--speculative-num-steps", "3",
        "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4",
        "--speculative-draft-attention-backend", "intel_amx",
    ]  # fmt: skip


CAPTURE = ["--speculative-algorithm", "EAGLE3", "--enable-return-aux-hidden-states", "--disable-radix-cache"]


@pytest.mark.parametrize(
    ("architecture", "aux_layers", "ids"),
    [
        ("LlamaForCausalLM", None, None),
        ("LlamaForCausalLM", (2, 4, 5), None),
        ("LlamaForCausalLM", (1, 3, 6), ["0", "2", "5"]),
        ("DeepseekV3ForCausalLM", None, None),
        ("DeepseekV3ForCausalLM", (0, 3, 6), ["0", "3", "6"]),
        ("GptOssForCausalLM", (1, 3, 6), ["0", "2", "5"]),
        ("MiniMaxM3SparseForConditionalGeneration", None, ["1", "3", "4"]),
    ],
)
def test_capturing_names_layers_by_the_family_of_the_target(tmp_path, architecture, aux_layers, ids):
    target = write_target(tmp_path / "m", architectures=[architecture])
    spec = ServerSpec(target, return_aux=True, aux_layers=aux_layers)
    named = ["--return-aux-hidden-state-layer-ids", *ids] if ids else []
    assert speculative(spec) == ["--cuda-graph-backend-prefill", "disabled", *CAPTURE, *named]


def test_a_multimodal_target_counts_by_its_language_part(tmp_path):
    text = {"hidden_size": 32, "vocab_size": 64, "num_hidden_layers": 61}
    target = write_target(tmp_path / "m", architectures=["KimiK25ForConditionalGeneration"], text_config=text)
    assert speculative(ServerSpec(target, return_aux=True, aux_layers=(2, 30, 58)))[2:] == CAPTURE


def test_a_cpu_server_finds_the_kernels_and_stays_off_the_network(tmp_path, monkeypatch):
    (tmp_path / "kernels" / "sgl_kernel").mkdir(parents=True)
    monkeypatch.setattr(arguments, "CPU_KERNELS", tmp_path / "kernels")
    target = write_target(tmp_path / "m")
    assert launch_environment(ServerSpec(target, device="cpu")) == {
        "HF_HUB_OFFLINE": "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(tmp_path / "kernels"),
    }


def test_a_gpu_server_never_sees_the_cpu_kernels(tmp_path):
    assert launch_environment(ServerSpec(write_target(tmp_path / "m"))) == {"HF_HUB_OFFLINE": "1"}


def test_a_target_of_the_hub_may_be_fetched(tmp_path):
    assert launch_environment(ServerSpec("owner/model")) == {}
    assert launch_environment(ServerSpec(write_target(tmp_path / "m"), draft="owner/drafter")) == {}


def test_every_part_of_an_environment_keeps_its_folders():
    joined = join_environments({"PYTHONPATH": "/a", "X": "1"}, {"Y": "2"}, {"PYTHONPATH": "/b", "X": "3"})
    assert joined == {"PYTHONPATH": "/a:/b", "X": "3", "Y": "2"}
