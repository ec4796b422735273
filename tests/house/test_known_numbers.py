"""What the workbench states of the rooms above it, which it may not import, is what those rooms hold."""

from dataclasses import fields
from pathlib import Path

import pytest
import torch
from repository import ROOT

from eagle3lab.analysis import bench_row, breakeven, lossless
from eagle3lab.data.adapters import ADAPTERS
from eagle3lab.data.limits import SETTINGS, Limits, plan_sets
from eagle3lab.data.sources import HUB, SETS
from eagle3lab.draft.aux_layers import default_aux_layers
from eagle3lab.draft.config import DraftConfig
from eagle3lab.draft.model import Eagle3Draft
from eagle3lab.draft.recipe import Recipe
from eagle3lab.engines.servers.own_flags import SGLANG, VLLM, own_flag
from eagle3lab.engines.sglang.arguments import launch_arguments
from eagle3lab.engines.sglang.spec import ServerSpec
from eagle3lab.features.codec import Codec
from eagle3lab.features.store import FeatureWriter
from eagle3lab.workbench import estimates, known_sets, standing
from eagle3lab.workbench.assumptions import read_assumptions
from eagle3lab.workbench.outlook import chosen_layers, drafter, reckon
from eagle3lab.workbench.params import resolve_parameters
from eagle3lab.workbench.server_commands import OWN_FLAGS, names_no_own_flag, server_commands
from eagle3lab.workbench.stages import STAGES

PLANNED = sorted(path.parent.name for path in (ROOT / "params").glob("*/plan.yaml"))
planned = pytest.mark.parametrize("profile", PLANNED)
RELEASE, PORT = "0.5.23", 30000


@pytest.fixture(scope="module")
def resolved():
    """Profile -> stage -> values, of the profiles that have a plan.yaml."""
    return {name: {stage: resolve_parameters(stage, name).values for stage in STAGES} for name in PLANNED}


def test_the_profiles_of_real_targets_can_be_planned():
    assert {"kimi_k25", "llama31_8b", "qwen3_8b"} <= set(PLANNED)


def test_the_names_of_sets_and_options_are_those_of_the_data_room():
    assert known_sets.KNOWN_SETS == tuple(SETS)
    assert (known_sets.ADAPTERS, known_sets.HUB) == (tuple(ADAPTERS), HUB)
    assert set(known_sets.NO_ADDRESS) == {s.name for s in SETS.values() if not (s.path or s.package or s.hub)}
    assert set(known_sets.SET_OPTIONS) == {field.name for field in fields(Limits)} | set(SETTINGS)


@planned
def test_the_stated_counts_are_those_that_are_prepared(profile, resolved, tmp_path, monkeypatch):
    prep = resolved[profile]["data_prep"]
    monkeypatch.chdir(tmp_path)
    for text in prep["sets"]:
        place = text.split(":", 2)[2] if ":" in text else ""
        if place and not place.startswith("hub:"):
            Path(place).parent.mkdir(parents=True, exist_ok=True)
            Path(place).touch()
    limits = Limits(**{name.name: prep[name.name] for name in fields(Limits) if name.name in prep})
    plans = {p.spec.name: p for p in plan_sets(prep["sets"], limits, prep["set_options"])}
    stated = {name: (each.samples, each.kind, each.partition) for name, each in read_assumptions(profile).sets.items()}
    assert stated == {n: (p.limits.limit_train, p.spec.kind, p.spec.partition) for n, p in plans.items()}


@planned
def test_a_planned_drafter_and_recipe_can_be_made(profile, resolved):
    values, facts = resolved[profile], read_assumptions(profile)
    training, sizes = values["training"], drafter(values, facts)
    layers = tuple(chosen_layers(values["extraction"], facts))
    assert facts.layers > max(layers) and list(layers) == default_aux_layers(facts.layers)
    own = {
        name: getattr(sizes, name)
        for name in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    }
    DraftConfig(
        **own, vocab_size=sizes.vocab_size, draft_vocab_size=sizes.draft_vocab_size, aux_layers=layers,
        target_hidden_size=sizes.target_hidden_size, target_num_layers=facts.layers,
    )  # fmt: skip
    names = {field.name for field in fields(Recipe)} & training.keys()
    assert names == {field.name for field in fields(Recipe)}  # the notebook has every knob
    Recipe(**{name: training[name] for name in names})
    assert reckon(values, facts).hours < values["doctor"]["limit_hours"]


@pytest.mark.parametrize("target_hidden_size", [32, 48])
def test_the_weights_of_a_drafter_are_those_of_the_network(target_hidden_size):
    sizes = {
        "hidden_size": 32, "intermediate_size": 80, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "draft_vocab_size": 50, "target_hidden_size": target_hidden_size, "vocab_size": 100,
    }  # fmt: skip
    config = DraftConfig(**sizes, aux_layers=(2, 4, 6), target_num_layers=9)
    draft = Eagle3Draft(config, torch.zeros(100, 32), torch.arange(50))
    assert estimates.DraftSizes(**sizes, aux_layers=3).parameters == sum(p.numel() for p in draft.parameters())


def test_the_bytes_of_a_store_are_those_of_a_real_one(tmp_path):
    writer = FeatureWriter(tmp_path, {"target": "x"}, [2, 4, 6], 64)
    for row in range(8):  # 200 tokens each, 50 of them generated
        writer.add(f"r{row}", range(200), [[150, 200]], torch.ones(200, 3, 64), torch.ones(200, 64))
    writer.close()
    written = sum(file.stat().st_size for file in tmp_path.glob("*.safetensors"))
    assert written == pytest.approx(1600 * estimates.bytes_per_token("bf16", 64, 3, 0.25, 100), rel=0.01)


@pytest.mark.parametrize("codec", ["float32", "bf16", "fp8", "fp8+bf16", "bf16+fp8", "fp8+top16", "float32+top3"])
@pytest.mark.parametrize("vocab_size", [65_536, 163_840])
@pytest.mark.parametrize("share", [1.0, 0.25])
def test_the_bytes_of_a_token_are_those_of_the_codec(codec, vocab_size, share):
    real = Codec.of(codec).bytes_per_token(7168, 3, share, vocab_size)
    assert estimates.bytes_per_token(codec, 7168, 3, share, vocab_size) == real


@pytest.mark.parametrize(("parameter", "own"), [("server_options", SGLANG), ("vllm_options", VLLM)])
def test_flags_that_no_parameter_may_write_are_those_that_no_specification_takes(parameter, own):
    assert OWN_FLAGS[parameter] == own
    forms = [form for flag in own for form in (flag, f"{flag}=1", f"{flag[:-1]}x", flag[:-1], flag.replace("-", "_"))]
    for word in [*forms, "--tp-size", "--cuda-graph-max-bs-decode", "--specialize-active-lora", "--", "-1", "EAGLE"]:
        assert names_no_own_flag([word], parameter) == (own_flag(word, own) is None), word


def test_break_even_is_that_of_the_benchmark():
    assert estimates.break_even(2.1, 82.3, 90.0) == pytest.approx(bench_row.break_even(2.1, 82.3, 90.0))


def test_status_reads_a_benchmark_as_the_benchmark_means_it():
    assert standing.SAME_DISTRIBUTION == lossless.LEVEL
    text = f"{breakeven.NOT_MEASURABLE} at one stream: the machine was busy"
    assert not standing.measurable({"advice": [text]}) and standing.measurable({"advice": ["speculate with"]})


@planned
def test_the_servers_shown_are_those_that_are_started(profile, resolved):
    shown = {stage: server_commands(stage, values) for stage, values in resolved[profile].items()}
    assert [stage for stage, servers in shown.items() if servers] == [
        "inference",
        "extraction",
        "diagnostics",
        "serving",
    ]

    def started(stage, **more):
        values = resolved[profile][stage]
        spec = ServerSpec(
            values["target"], dtype=values["dtype"], extra=tuple(values["server_options"]),
            trust_remote_code=values.get("trust_remote_code", False), **more,
        )  # fmt: skip
        words = ["python", "-m", "sglang.launch_server", *launch_arguments(spec, RELEASE, PORT)]
        return " ".join(words).replace(f"--port {PORT}", "--port PORT")

    assert [command for _, command in shown["inference"]] == [started("inference")]
    layers = tuple(resolved[profile]["extraction"]["aux_layers"])
    captured = started("extraction", capture_folder="states", aux_layers=layers)
    assert [command for _, command in shown["extraction"]] == [captured]
    chain = started("diagnostics", draft="DRAFT", num_steps=resolved[profile]["diagnostics"]["num_steps"])
    assert [command for _, command in shown["diagnostics"]] == [captured, chain]
    benchmarks = [
        started("serving", cuda_graphs=on, **chain)
        for on in (True, False)  # the grid asks all of them once more without CUDA graphs
        for chain in ({}, *({"draft": "DRAFT", "num_steps": n} for n in resolved[profile]["serving"]["num_steps"]))
    ]
    assert [command for _, command in shown["serving"]] == benchmarks
    names = [name for name, _ in shown["serving"]]
    half = len(names) // 2
    assert names[half:] == [f"{name}, without CUDA graphs" for name in names[:half]]


def test_the_trees_of_a_grid_are_shown_as_they_are_started(resolved):
    values = resolved["kimi_k25"]["serving"] | {"grid_topk": [1, 4], "grid_draft_tokens": [8], "num_steps": [3]}
    shown = dict(server_commands("serving", values))
    assert list(shown) == [
        "baseline", "chain of 3: 4 draft tokens", "tree of 3, topk 4: 8 draft tokens",
        "baseline, without CUDA graphs", "chain of 3: 4 draft tokens, without CUDA graphs",
        "tree of 3, topk 4: 8 draft tokens, without CUDA graphs",
    ]  # fmt: skip
    for name, command in shown.items():
        if name.startswith("tree"):
            spec = ServerSpec(
                values["target"], draft="DRAFT", num_steps=3, topk=4, num_draft_tokens=8, trust_remote_code=True,
                cuda_graphs="without" not in name, extra=tuple(values["server_options"]),
            )  # fmt: skip
            assert command.replace("PORT", str(PORT)).split()[3:] == launch_arguments(spec, RELEASE, PORT)
    assert len(server_commands("serving", values | {"grid_concurrency": []})) == 2
