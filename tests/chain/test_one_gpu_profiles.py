"""Profiles llama31_8b and qwen3_8b rehearsed: their parameters on random small models of the same architecture, from
the prompts to the scaling curve, with only model, machine and sizes overridden.
"""

import json
import shutil

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from eagle3lab.data.rehearsal.rows import set_texts, write_rows
from eagle3lab.data.targets import resolve_target
from eagle3lab.draft.checkpoint import read_training
from eagle3lab.engines.servers.findings import faults
from eagle3lab.engines.servers.model_files import read_target
from eagle3lab.engines.sglang.guards import before_launch
from eagle3lab.engines.sglang.spec import ServerSpec
from eagle3lab.features.store import FeatureStore
from eagle3lab.workbench.known_sets import set_name
from eagle3lab.workbench.params import resolve_parameters
from eagle3lab.workbench.runner import run_chain

pytestmark = pytest.mark.notebooks
STAGES = ["data_prep", "inference", "extraction", "training", "diagnostics", "serving", "scaling"]
ROWS = 10
# in float32 outputs with and without speculation are the same to the token
MACHINE = {"engine": "embedded", "device": "cpu", "dtype": "float32", "heldout_dtype": "float32"}
SIZES = {
    "aux_layers": [1, 2, 3], "max_prompt_tokens": 96, "max_tokens": 12, "limit_heldout": 2, "heldout_share": 0.2,
    "suite_limit": 1, "draft_vocab_size": 64, "batch_size": 16, "batch_tokens": 256, "shard_tokens": 1024,
    "set_options": [], "epochs": 20, "serve_prompts": 6, "heart_answers": 0, "train_prompts": 4, "bench_prompts": 3,
    "rounds": 1, "grid_concurrency": [1], "amounts": [6, 12],
}  # fmt: skip
COMMON = {
    "vocab_size": 1024, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "eos_token_id": 3, "initializer_range": 0.3,
}  # fmt: skip
MODELS = {
    # RoPE as Llama-3.1 stretches it
    "llama31_8b": lambda: LlamaForCausalLM(LlamaConfig(**COMMON, rope_parameters={
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    })),
    "qwen3_8b": lambda: Qwen3ForCausalLM(Qwen3Config(**COMMON, head_dim=16)),
}  # fmt: skip


def random_target(profile, folder):
    """Weights of the profile's architecture beside the tokenizer of glassllm. It says a few tokens only, and which one
    hangs mostly on the last one, so that a drafter learns something from few rows."""
    torch.manual_seed(1)
    model = MODELS[profile]()
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(8)
        model.lm_head.weight[100:116].mul_(4)
    model.save_pretrained(folder)
    for file in resolve_target("glassllm/en").iterdir():
        if file.name.startswith(("tokenizer", "special_tokens", "chat_template")):
            shutil.copy(file, folder)
    return folder


@pytest.fixture(scope="module", params=MODELS)
def rehearsed(request, tmp_path_factory):
    """(profile, target, folders of the stages)."""
    profile, base = request.param, tmp_path_factory.mktemp(request.param)
    target = random_target(profile, base / "target")
    files, sets = write_rows(base / "sets", ROWS), resolve_parameters("data_prep", profile).values["sets"]
    here = set_texts({set_name(text): files[set_name(text)] for text in sets})
    overrides = {"target": str(target), "runs_dir": str(base / "runs"), "sets": here, **MACHINE, **SIZES}
    results = run_chain(profile, stages=STAGES, overrides=overrides)
    assert [(result.state, result.error) for result in results] == [("ok", None)] * len(STAGES)
    return profile, target, {result.stage: result.folder for result in results}


def test_nothing_but_model_machine_and_sizes_was_changed(rehearsed):
    profile, _, folders = rehearsed
    changed = {"target", "runs_dir", "sets", *MACHINE, *SIZES}
    for stage, folder in folders.items():
        used = json.loads((folder / "run.json").read_text())["parameters"]
        own = {name for name in used if not name.endswith("_run")} - changed
        planned = resolve_parameters(stage, profile).values
        assert {name: used[name]["value"] for name in own} == {name: planned[name] for name in own}


def test_every_prompt_was_answered_and_captured(rehearsed):
    _, _, folders = rehearsed
    corpus = json.loads((folders["inference"] / "results.json").read_text())
    # three sets of ten rows and four suites of one; a few held-out rows are over their limit
    assert 3 * 8 + 4 <= corpus["answers"] <= 3 * ROWS + 4
    store = FeatureStore(folders["extraction"] / "features")
    assert len(store) == corpus["corpus_rows"] == corpus["answers"] and store.codec.name == "fp8"


def test_what_is_served_was_simulated_and_is_lossless(rehearsed):
    profile, _, folders = rehearsed
    results = json.loads((folders["diagnostics"] / "results.json").read_text())
    assert (results["cycles_differing"], results["lossless"]) == (0, "6/6")
    simulated, served = json.loads((folders["diagnostics"] / "checks.json").read_text())["accept"][-2:]
    assert sum(simulated["histogram"][1:]) > 0  # some drafts were accepted
    for field in ("prompts", "verifications", "committed", "histogram"):
        assert simulated[field] == served[field], field
    benchmark = json.loads((folders["serving"] / "results.json").read_text())
    assert benchmark["differing_answers"] == 0
    chains = resolve_parameters("serving", profile).values["num_steps"]
    assert [row["num_steps"] for row in benchmark["rows"]] == [0, *chains]
    assert [(row["cell"]["num_steps"], row["reason"]) for row in benchmark["grid"]] == [(steps, "") for steps in chains]


def test_the_curve_has_the_subsets_and_the_whole(rehearsed):
    _, _, folders = rehearsed
    rows = json.loads((folders["extraction"] / "results.json").read_text())["train_rows"]
    points = json.loads((folders["scaling"] / "results.json").read_text())["points"]
    assert sorted(point["amount"] for point in points) == [6, 12, rows]
    assert all(1 <= point["accept_length"] <= 6 for point in points)


def test_the_drafter_is_one_that_sglang_takes_for_this_architecture(rehearsed):
    profile, target, folders = rehearsed
    draft = folders["training"] / "draft"
    assert read_target(target).architecture == type(MODELS[profile]()).__name__
    assert faults(before_launch(ServerSpec(str(target), draft=str(draft)), "0.5.23")) == []
    recipe = read_training(draft)["recipe"]
    assert recipe["ttt_steps"] == resolve_parameters("training", profile).values["ttt_steps"]
