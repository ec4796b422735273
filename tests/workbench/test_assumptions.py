"""plan.yaml is as strict as a parameter file, and what it says of sets and options is checked."""

import pytest

from eagle3lab.workbench.assumptions import SetFacts, read_assumptions
from eagle3lab.workbench.constraints import violations
from eagle3lab.workbench.estimates import DraftSizes, bytes_per_token, hours, hours_text, size_text
from eagle3lab.workbench.layers import LayerError
from eagle3lab.workbench.params import resolve_parameters

GOOD = """\
samples: 30
sets:
  one: {samples: 20, kind: prompts, partition: short}
  two: {samples: 10, kind: tokenized, partition: long}
layers: 8
hidden_size: 4
vocab_size: 100
context_length: 64
intermediate_size: 16
num_attention_heads: 2
num_key_value_heads: 1
head_dim: 2
sample_tokens: 10
answer_tokens: 5
plain_tok_s: 2
"""


def test_a_profile_states_its_facts_beside_its_parameters(lab):
    assert read_assumptions("tiny") is None
    lab.layer("plan", GOOD)
    facts = read_assumptions("tiny")
    assert facts.sets == {"one": SetFacts(20, "prompts", "short"), "two": SetFacts(10, "tokenized", "long")}
    assert facts.samples == 30 and facts.plain_tok_s == 2.0 and facts.served is None
    assert "layers" not in resolve_parameters("data_prep", "tiny").values


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("samples: 30", "samples: 31", "samples = 31, but its sets have 30 together"),
        ("samples: 20", "samples: '20'", "sets, one: samples: '20' is text, wanted int: write 20"),
        ("kind: prompts", "kind: prompt", r"sets, one: kind: 'prompt' is not one of.*did you mean 'prompts'"),
        ("partition: long", "partition: huge", "sets, two: partition: 'huge' is not one of"),
        (", partition: long", "", "sets, two: missing: partition"),
        ("layers: 8\n", "", "missing: layers"),
        ("layers: 8", "layer: 8", r"unknown name 'layer' \(did you mean 'layers'\?\)"),
        ("head_dim: 2", "head_dim: 0", "head_dim = 0: must be above 0"),
        ("plain_tok_s: 2", "served: {5: [2.1, 80.0]}", "served.5.*both above 0, and plain_tok_s"),
        ("plain_tok_s: 2", "plain_tok_s: 2\nserved: {5: [2.1]}", "served.5.*write .accept length, tok/s."),
    ],
)
def test_a_wrong_fact_is_refused_with_its_file_and_name(lab, old, new, message):
    assert old in GOOD
    lab.layer("plan", GOOD.replace(old, new, 1))
    with pytest.raises(LayerError, match=f"params/tiny/plan.yaml: {message}"):
        read_assumptions("tiny")


def test_unknown_sets_and_options_are_refused_by_name():
    [line] = violations({"sets": ["sharegpt", "sharegtp"]})
    assert line.startswith("sets = 'sharegtp': is no known set with an address; known: ")
    assert violations({"sets": ["kimi_2000x"]})  # its rows are published nowhere
    assert not violations({"sets": ["kimi_2000x:tolerant:rows.jsonl", "mine:messages:hub:me/rows", "ultrachat"]})
    for option in ("sharegpt.limit=3", "ultrachat.limit_train=3", "limit_train=3", "sharegpt.limit_train"):
        [line] = violations({"sets": ["sharegpt"], "set_options": [option]})
        assert option in line and "SET.NAME=VALUE" in line
    assert not violations({"sets": ["a.b:messages:rows.jsonl"], "set_options": ["a.b.where=x>=0.5"]})


def test_a_rule_on_one_name_says_which_item_breaks_it():
    assert violations({"num_steps": [3, 0]}) == ["num_steps = 0: must be at least 1"]


def test_bytes_of_a_token_by_hand():
    # 3 layers of 4: bf16 24 + teacher 8 + id 4; fp8 3 * (4 + 1) + 5 + 4; top 2 of few ids 2 * (2 + 2) + 2
    assert bytes_per_token("bf16", 4, 3, 1.0, 100) == 36
    assert bytes_per_token("bf16", 4, 3, 0.5, 100) == 32
    assert bytes_per_token("fp8", 4, 3, 1.0, 100) == 24
    assert bytes_per_token("fp8+top2", 4, 3, 1.0, 100) == 4 + 15 + 10
    assert bytes_per_token("fp8+top2", 4, 3, 1.0, 70_000) == 4 + 15 + 14
    with pytest.raises(ValueError, match="codec = 'fp9'"):
        bytes_per_token("fp9", 4, 3, 1.0, 100)


def test_a_drafter_by_hand():
    sizes = DraftSizes(4, 16, 2, 1, 2, 50, 3, 4, 100)
    block = 2 * 4 * (4 + 2 * 2) + 4 * 4 + 3 * 4 * 16 + 12 * 4  # q, k and v, o, the feed-forward, fc
    assert block == 64 + 16 + 192 + 48 and sizes.fused == 12
    assert sizes.parameters == 320 + 200 + 16  # block, head, four norms
    assert sizes.exported_bytes == 2 * 536 + 8 * 50 + 100  # d2t in eight bytes an id, t2d in one
    assert sizes.checkpoint_bytes("adamw") == 4 * 3 * 536
    assert sizes.checkpoint_bytes("muon") == 4 * (3 * 536 - 320)
    narrow = DraftSizes(2, 16, 2, 1, 2, 100, 3, 4, 100)
    assert narrow.exported_bytes == 2 * (narrow.parameters + 100 * 2)  # an embedding of its own, all ids


def test_hours_and_sizes_as_people_say_them():
    assert hours(7200, 2) == 1.0 and hours_text(21.97) == "22.0 h" and hours_text(0.5) == "30 min"
    assert [size_text(n) for n in (12, 1500, 3.807e12)] == ["12 B", "1.5 kB", "3.81 TB"]
    with pytest.raises(ValueError, match="throughput must be above 0"):
        hours(1, 0)
