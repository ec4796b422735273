"""A real server from its specification: refused, launched, asked, killed, started again, gone."""

import json
import os
import signal
import subprocess
import time

import numpy as np
import pytest

from eagle3lab.draft.aux_layers import layers_sglang_reads, sglang_layer_ids
from eagle3lab.engines.servers.findings import LaunchRefused
from eagle3lab.engines.servers.process import ServerStartError, port_is_free
from eagle3lab.engines.sglang.arguments import launch_arguments, launch_environment
from eagle3lab.engines.sglang.attach import attach
from eagle3lab.engines.sglang.guards import on_server
from eagle3lab.engines.sglang.release import ArgumentsRefused, check_arguments, installed_release
from eagle3lab.engines.sglang.server import PYTHON, SGLangServer
from eagle3lab.engines.sglang.spec import ServerSpec
from tests.engines.sglang.drafters import H, good_tensors, write_draft
from tests.tiny import save_tiny_target

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def target(folder):
    return save_tiny_target(folder / "target")


@pytest.fixture(scope="module")
def spec(folder, target):
    """A chain of two steps with a drafter that knows nothing."""
    return ServerSpec(
        target, draft=write_draft(folder / "draft"), num_steps=2, dtype="float32", device="cpu",
        max_running_requests=4, max_total_tokens=2048, mem_fraction=0.3, extra=("--skip-tokenizer-init",),
    )  # fmt: skip


@pytest.fixture(scope="module")
def server(spec, folder):
    with SGLangServer(spec, log=folder / "server.log") as server:
        yield server


def wait_for(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.2)


# ---- before the launch -------------------------------------------------------------------------------------


def test_the_installed_parser_takes_every_argument(target):
    version = installed_release(str(PYTHON)).version
    shared = {"tokenizer": "/t", "context_length": 4096, "max_running_requests": 8, "max_total_tokens": 9000, "tp": 2}
    for device in ("cpu", "cuda"):
        for changes in (
            {"draft": "/d"},
            {"draft": "/d", "topk": 4, "num_draft_tokens": 8, "cuda_graphs": False, "trust_remote_code": True},
            {"algorithm": "NGRAM", "num_draft_tokens": 8, "mem_fraction": 0.5},
            {"return_aux": True, "aux_layers": (1, 3, 6)},
        ):
            spec = ServerSpec(target, device=device, **shared, **changes)
            check_arguments(str(PYTHON), launch_arguments(spec, version, 30000), launch_environment(spec))


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (("--chunked-prefill-sizes", "3"), "unrecognized arguments: --chunked-prefill-sizes"),
        (("--chunked-prefill-size", "many"), "--chunked-prefill-size: invalid int value: 'many'"),
        (("--load-format", "pickle"), "--load-format: invalid choice: 'pickle'"),
        (("--enable-metrics", "yes"), "unrecognized arguments: yes"),
    ],
)
def test_the_installed_parser_refuses_a_wrong_flag_before_anything_starts(target, extra, words):
    server = SGLangServer(ServerSpec(target, device="cpu", extra=extra))
    with pytest.raises(ArgumentsRefused, match=words):
        server.start()
    assert server.pid is None and not server.log.exists()


def test_the_wrong_algorithm_is_refused_before_anything_starts(spec, folder):
    server = SGLangServer(ServerSpec(spec.target, draft=spec.draft, algorithm="EAGLE", device="cpu"))
    with pytest.raises(LaunchRefused, match="use --speculative-algorithm EAGLE3"):
        server.start()
    assert server.pid is None and not server.log.exists()


CAPTURED = """
import importlib, json, sys
from functools import partial
from types import SimpleNamespace as Space
modules = {
    "llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM", "glm4_moe": "Glm4MoeForCausalLM",
    "deepseek_v2": "DeepseekV3ForCausalLM", "glm4_moe_lite": "Glm4MoeLiteForCausalLM", "gpt_oss": "GptOssForCausalLM",
    "minimax_m3_vl": "MiniMaxM3SparseForConditionalGeneration", "kimi_k25": "KimiK25ForConditionalGeneration",
}
kinds = {name: getattr(importlib.import_module("sglang.srt.models." + file), name) for file, name in modules.items()}
found = []
for name, kind in kinds.items():
    for ids in json.loads(sys.argv[1]):
        config = Space(num_hidden_layers=12, text_config=Space(num_hidden_layers=12))
        layers = [Space() for _ in range(20)]
        model = Space(pp_group=Space(is_last_rank=True), config=config, model=Space(layers=layers))
        asked = model
        if name.startswith("KimiK25"):  # hands over to its language model
            capture = kinds["DeepseekV3ForCausalLM"].set_eagle3_layers_to_capture
            model.set_eagle3_layers_to_capture = partial(capture, model)
            asked = Space(language_model=model)
        kind.set_eagle3_layers_to_capture(asked, ids)
        found.append([name, ids, model.model.layers_to_capture])
print("found:" + json.dumps(found))
"""


def test_sglangs_own_model_files_read_layer_ids_as_this_project_says(spec):
    asked = [None, [1, 5, 8], [2, 5, 8], [0, 5, 8], [3, 5, 12], [4, 6, 9]]
    environment = {**os.environ, **launch_environment(spec)}
    command = [str(PYTHON), "-c", CAPTURED, json.dumps(asked)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    lines = [line for line in run.stdout.splitlines() if line.startswith("found:")]
    assert lines, run.stderr
    found = json.loads(lines[0].removeprefix("found:"))
    assert len(found) == 8 * len(asked)
    for architecture, ids, captured in found:
        assert layers_sglang_reads(ids, 12, architecture) == captured, (architecture, ids)
        if ids and captured[-1] < 12:
            assert layers_sglang_reads(sglang_layer_ids(captured, architecture), 12, architecture) == captured


# ---- a running server --------------------------------------------------------------------------------------


def test_it_tells_how_it_was_started(server, spec):
    info = server.info()
    assert (info.url, info.version) == (server.url, installed_release(str(PYTHON)).version)
    assert (info.target, info.draft, info.architecture) == (spec.target, spec.draft, "LlamaForCausalLM")
    assert (info.algorithm, info.num_steps, info.topk, info.num_draft_tokens) == ("EAGLE3", 2, 1, 3)
    assert (info.dtype, info.device, info.tp) == ("float32", "cpu", 1)
    assert (info.max_running_requests, info.max_total_tokens, info.radix_cache) == (4, 2048, True)
    assert not info.captures and "--speculative-algorithm EAGLE3" in info.launch_command


def test_somebody_else_can_attach_to_it_and_finds_nothing_wrong(server):
    other = attach(server.url)
    assert other.alive() and other.info() == server.info()
    assert on_server(other.info()) == []


def test_the_death_of_one_of_its_processes_is_noticed_and_nothing_is_left(server):
    """That it starts again on its port: test_dispatch."""
    scheduler = next(p for p in server._process.members() if "scheduler" in p.name())
    os.kill(scheduler.pid, signal.SIGKILL)
    wait_for(lambda: not server.alive())
    process = server._process
    server.stop()
    assert process.members() == [] and port_is_free(server.port) and server.pid is None


def test_a_drafter_that_cannot_be_loaded_is_refused_and_if_launched_all_the_same_the_log_says_why(spec, folder):
    """The guard's claim about wrong shapes is the server's own behaviour."""
    draft = write_draft(folder / "wrong", good_tensors() | {"fc.weight": np.zeros((H, H), np.float32)})
    wrong = ServerSpec(
        spec.target, draft=draft, device="cpu", dtype="float32", mem_fraction=0.3, max_total_tokens=2048,
        extra=spec.extra,
    )  # fmt: skip
    with pytest.raises(LaunchRefused, match=r"fc.weight \[32, 32\] instead of \[32, 96\]"):
        SGLangServer(wrong).start()
    server = SGLangServer(wrong, log=folder / "wrong.log", unguarded=True)
    with (
        pytest.warns(UserWarning, match="shapes that the server cannot load"),
        pytest.raises(ServerStartError) as error,
    ):
        server.start()
    assert "AssertionError" in str(error.value) or "AssertionError" in server.log.read_text()
    assert server.pid is None and port_is_free(server.port)
