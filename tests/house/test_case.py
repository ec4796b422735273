"""Profile kimi_k25 is the case: every number here was taken from its record, or worked out from it by hand."""

import re
import shlex
import subprocess
import sys
from functools import cache

import pytest
from repository import ROOT

from eagle3lab.workbench.assumptions import read_assumptions
from eagle3lab.workbench.cli import main
from eagle3lab.workbench.known_sets import set_name
from eagle3lab.workbench.outlook import reckon
from eagle3lab.workbench.params import ParameterError, resolve_parameters
from eagle3lab.workbench.stages import STAGES

CASE = "kimi_k25"
COUNTS = {  # set: samples, kind, partition; A1 to B8
    "deepswe_kimi": (2_800, "tokenized", "long"),
    "kimi_2000x": (2_000, "tokenized", "short"),
    "glaive": (10_000, "prompts", "short"),
    "opencode": (14_714, "prompts", "short"),
    "evol_instruct": (10_000, "prompts", "short"),
    "mixture_of_thoughts": (10_002, "prompts", "short"),
    "openthoughts": (10_000, "prompts", "short"),
    "ultrachat": (15_000, "prompts", "short"),
    "sharegpt": (10_000, "prompts", "short"),
    "swe_agent": (3_572, "prompts", "long"),
}


@cache
def resolved() -> dict[str, dict]:
    return {stage: resolve_parameters(stage, CASE).values for stage in STAGES}


def values(**changes) -> dict[str, dict]:
    """The parameters of every stage, with changes in those that know the name."""
    known = {name for each in resolved().values() for name in each}
    assert changes.keys() <= known
    return {
        stage: {name: changes.get(name, value) for name, value in each.items()} for stage, each in resolved().items()
    }


@pytest.fixture(scope="module")
def outlook():
    return reckon(values(), read_assumptions(CASE))


def test_its_ten_sets_add_up():
    facts = read_assumptions(CASE)
    assert {name: (s.samples, s.kind, s.partition) for name, s in facts.sets.items()} == COUNTS
    assert facts.samples == 88_088 == sum(count for count, _, _ in COUNTS.values())
    assert [set_name(text) for text in values()["data_prep"]["sets"]] == list(COUNTS)


def test_its_two_partitions(outlook):
    # 10,000 + 14,714 + 10,000 + 10,002 + 10,000 + 15,000 + 10,000, and B8
    assert outlook.answers == {"short": 79_716, "long": 3_572}
    inference = values()["inference"]
    assert (inference["concurrency"], inference["max_tokens"]) == (150, 10_240)
    assert (inference["long_concurrency"], inference["long_max_tokens"]) == (32, 16_384)
    assert outlook.most_answer_tokens == 79_716 * 10_240 + 3_572 * 16_384


def test_its_layers_and_sizes(outlook):
    for stage in ("doctor", "extraction"):
        assert values()[stage]["aux_layers"] == [2, 30, 58]
    assert (outlook.facts.layers, outlook.facts.hidden_size) == (61, 7168)
    assert (outlook.draft.fused, outlook.draft.hidden_size) == (21_504, 7_168)


def test_its_engine_and_the_draft_tokens(outlook):
    for stage in ("inference", "extraction", "serving"):
        assert (values()[stage]["engine"], values()[stage]["server_device"]) == ("sglang", "cuda"), stage
        assert not any("disable" in option for option in values()[stage]["server_options"]), "CUDA graphs stay on"
    assert outlook.draft_tokens == [5, 16] and True in values()["serving"]["grid_cuda_graphs"]


def test_its_bytes(outlook):
    # (21,504 + 7,168) * 2 bytes = 56 KiB a token, and four for the id; 88,088 samples of 2,000 tokens
    assert outlook.token_bytes["bf16"] == 57_344 + 4
    assert outlook.store_bytes["bf16"] == 176_176_000 * 57_348  # about 10 TB
    # four states of 7,168 bytes and an exponent each
    assert outlook.token_bytes["fp8"] == 4 * 7_169 + 4 == 28_680
    assert outlook.store_bytes["fp8"] == 5_052_727_680_000 and outlook.codec == "fp8"
    # q 8,192, k and v 1,024 each, of twice 7,168; o; three matrices of 18,432; fc; head of 32,000; four norms
    weights = 14_336 * 10_240 + 8_192 * 7_168 + 3 * 7_168 * 18_432 + 21_504 * 7_168 + 32_000 * 7_168 + 4 * 7_168
    assert outlook.draft.parameters == weights == 985_427_968


def test_its_hours(outlook):
    assert [time.stage for time in outlook.times] == [
        "inference", "extraction", "training", "serving", "serving", "scaling",
    ]  # fmt: skip
    found = {time.stage: time.hours for time in reversed(outlook.times)}
    assert found["inference"] == pytest.approx(83_288 / 0.7 / 3600)  # 33.05; 83,288 * 788 / 830 s would be 21.97
    assert "22.0 h at 788 tokens each, 830 tok/s" in outlook.times[0].assuming
    assert found["extraction"] == pytest.approx(19, abs=0.1)
    assert found["training"] == pytest.approx(12, abs=0.1)
    assert found["serving"] == pytest.approx(32 * 2 * 3 * 512 / 90 / 3600)
    # the grid: two chains, with graphs and without; both sides answer 32 prompts twice, and 1, 8 or 32 to warm up
    answers = {streams: 2 * 2 * 2 * (2 * 32 + streams) for streams in (1, 8, 32)}
    seconds = answers[1] * 512 / 90 + answers[8] * 512 / 720 + answers[32] * 512 / 830  # 32 * 90 is above 830
    assert outlook.times[4].hours == pytest.approx(seconds / 3600)
    assert "a grid of 12 cells: 1,864 answers of 512 tokens" in outlook.times[4].assuming
    assert outlook.most_generation_hours == pytest.approx(292.8, abs=0.1)


def test_what_nobody_computed(outlook):
    five, sixteen = outlook.served
    assert (five.draft_tokens, sixteen.draft_tokens) == (5, 16)
    assert (round(five.cycle_ms, 1), round(sixteen.cycle_ms, 1)) == (25.5, 37.0)
    assert (round(five.pays_above, 2), round(sixteen.pays_above, 2)) == (2.30, 3.33)


def test_the_plan_tells_it_all_in_120_columns(capsys):
    assert main(["plan", CASE]) == 0
    text = capsys.readouterr().out
    flat = re.sub(r"[\s\\]+", " ", text)
    for told in (
        "together 88,088", "short 79,716 prompts, 150 at a time, answers of at most 10,240 tokens",
        "long 3,572 prompts, 32 at a time, answers of at most 16,384 tokens",
        "bf16 57,348 10.1 TB", "fp8 28,680 5.05 TB <- codec of 03_extraction", "21,504 -> 7,168 by fc",
        "06_serving 18 min assuming 192 answers", "06_serving 1.1 h assuming a grid of 12 cells",
        "together 75.2 h within", "06_serving, chain of 15: 16 draft tokens, without CUDA graphs",
        "exported (bfloat16) 1.97 GB", "02_inference 33.1 h assuming 83,288 answers at 0.7 a second",
        "5 draft tokens: 82.3 tok/s at accept length 2.1, 25.5 ms a cycle: pays above 2.30; it did not pay",
        *(f"python -m eagle3lab run {CASE} --only {stage}" for stage in STAGES),
        "--speculative-algorithm EAGLE3 --speculative-draft-model-path DRAFT --speculative-num-steps 15",
    ):  # fmt: skip
        assert told in flat, told
    assert not re.search(r"--speculative-algorithm EAGLE\b(?!3)", flat)
    assert max(map(len, text.splitlines())) <= 120
    command = text.partition("chain of 15: 16 draft tokens\n")[2].partition("  06_serving")[0]
    assert all(line.endswith(" \\") for line in command.splitlines()[:-1]), "the lines are one command to a shell"
    words = shlex.split(command.replace("\\\n", ""))
    assert words[:3] == ["python", "-m", "sglang.launch_server"]
    assert words[words.index("--speculative-algorithm") + 1] == "EAGLE3"
    assert words[words.index("--speculative-num-draft-tokens") + 1] == "16"


def test_planning_it_loads_no_torch():
    code = "import sys; from eagle3lab.workbench.cli import main; main(['plan', 'kimi_k25']); "
    code += "print(sorted({'torch', 'transformers', 'sglang'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout.splitlines()[-1] == "[]", run.stderr


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("aux_layers", [2, 30, 61], r"aux_layers = \[2, 30, 61\]: increasing ids in 0..60 are needed"),
        ("aux_layers", [30, 2, 58], "increasing ids"),
        ("limit_train", 100, "set 'glaive': 10000 samples, and limit_train = 100"),
        ("sets", ["glaive"], "set 'opencode' is in plan.yaml and not in `sets`"),
        ("sets", ["alpaca"], "set 'alpaca' is in `sets` and not in plan.yaml"),
        ("set_options", ["glaive.partition=long"], "glaive.*short, and set_options say long"),
        ("set_options", ["glaive.limit_train=9"], "glaive.*10000 samples, and limit_train = 9"),
        ("long_max_tokens", 260_000, "swe_agent.*may have 325536 tokens, the context 262144"),
        ("draft_vocab_size", 200_000, "the target has 163840 ids"),
        ("draft_num_key_value_heads", 7, "num_attention_heads = 64 is no multiple"),
        ("draft_hidden_size", 21_504, "fc is skipped"),
        ("codec", "fp9", "codec = 'fp9' is none of"),
        ("amounts", [88_088.0], "subsets must be smaller than the 88088 samples"),
    ],
)
def test_a_value_that_contradicts_the_facts_is_refused(name, value, message):
    with pytest.raises(ParameterError, match=message):
        reckon(values(**{name: value}), read_assumptions(CASE))


def test_all_contradictions_are_told_at_once():
    with pytest.raises(ParameterError, match=r"\[2, 30, 99\].*fp9"):
        reckon(values(aux_layers=[2, 30, 99], codec="fp9"), read_assumptions(CASE))


def test_the_command_refuses_too(capsys):
    assert main(["plan", CASE, "-p", "aux_layers", "[2, 30, 61]"]) == 2
    told = capsys.readouterr()
    assert "increasing ids in 0..60" in told.err and told.out == ""
