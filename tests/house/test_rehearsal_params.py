"""Profile kimi_k25_rehearsal is the case with another model, other sizes and another machine, and nothing else."""

import pytest

from eagle3lab.workbench.known_sets import set_name, split_option
from eagle3lab.workbench.params import resolve_parameters
from eagle3lab.workbench.stages import STAGES

MODEL = {"profile", "target", "aux_layers", "draft_num_attention_heads", "draft_num_key_value_heads", "draft_head_dim"}
MACHINE = {"server_device", "server_options", "device", "dtype", "heldout_dtype", "processes", "accumulate",
           "wanted_cores", "grid_concurrency"}  # fmt: skip
SIZES = {
    "sets", "set_options", "limit_heldout", "heldout_share", "suite_limit", "max_prompt_tokens", "max_tokens",
    "long_max_tokens", "concurrency", "long_concurrency", "batch_tokens", "shard_tokens", "draft_vocab_size", "epochs",
    "ttt_steps", "max_length", "checkpoint_every", "log_every", "num_steps", "bench_prompts", "rounds", "amounts",
}  # fmt: skip


@pytest.fixture(scope="module")
def both():
    """Stage -> parameter -> (of the case, of the rehearsal)."""
    found = {}
    for stage in STAGES:
        case, rehearsal = (resolve_parameters(stage, name).values for name in ("kimi_k25", "kimi_k25_rehearsal"))
        found[stage] = {name: (case[name], rehearsal[name]) for name in case}
    return found


def test_only_model_machine_and_sizes_differ(both):
    differing = {name for each in both.values() for name, (case, rehearsal) in each.items() if case != rehearsal}
    assert differing == MODEL | MACHINE | SIZES


def test_its_sets_are_those_of_the_case_and_read_the_same_way(both):
    case, rehearsal = both["data_prep"]["sets"]
    assert [set_name(text) for text in rehearsal] == [set_name(text) for text in case]
    # options keep their names; where one is no size, its value too
    case, rehearsal = (
        {split_option(text)[:2]: split_option(text)[2] for text in o} for o in both["data_prep"]["set_options"]
    )
    assert case.keys() == rehearsal.keys()
    assert [key for key in case if not key[1].startswith("max_") and case[key] != rehearsal[key]] == []


def test_its_server_is_told_what_a_cpu_needs_in_place_of_gpus(both):
    flags = [{word for word in words if word.startswith("--")} for words in both["inference"]["server_options"]]
    assert flags[0] - flags[1] == {"--tp-size", "--cuda-graph-max-bs-decode"}
    assert flags[1] - flags[0] == {
        "--disable-shared-experts-fusion", "--mem-fraction-static", "--max-total-tokens", "--max-running-requests",
    }  # fmt: skip


def test_its_layers_are_the_default_as_those_of_the_case_are(both):
    case, rehearsal = both["extraction"]["aux_layers"]
    assert (case, rehearsal) == ([2, 61 // 2, 61 - 3], [2, 8 // 2, 8 - 3])
