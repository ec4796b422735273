import json

import pytest

from eagle3lab.data.adapters import ADAPTERS, conversation
from eagle3lab.data.limits import Limits, plan_sets
from eagle3lab.data.side_by_side import Preparation, prepare_sets
from eagle3lab.data.sources import SETS, SetSpec

COMMON = Limits(limit_train=100, max_prompt_tokens=500)


def test_a_set_has_the_common_limits_and_its_own_options():
    plans = plan_sets(
        ["opencode", "glaive"],
        COMMON,
        ["opencode.limit_train=7", "opencode.where=average_test_score>=0.8", "glaive.tools=system",
         "glaive.limit_heldout=all", "opencode.heldout_share=0.5", "glaive.max_rows=10"],
    )  # fmt: skip
    assert [plan.spec.name for plan in plans] == ["opencode", "glaive"]
    opencode, glaive = plans
    assert (opencode.limits.limit_train, opencode.limits.heldout_share) == (7, 0.5)
    assert opencode.limits.max_prompt_tokens == 500 == glaive.limits.max_prompt_tokens
    assert opencode.spec.where == "average_test_score>=0.8"
    assert (glaive.limits.limit_train, glaive.limits.limit_heldout) == (100, None)
    assert (glaive.spec.tools, glaive.spec.max_rows) == ("system", 10)
    assert SETS["glaive"].tools == "template"


def test_without_a_common_limit_the_counts_of_the_case_hold():
    plans = plan_sets(["opencode", "alpaca"], Limits(), ["alpaca.limit_train=3"])
    assert [plan.limits.limit_train for plan in plans] == [14_714, 3]
    assert plan_sets(["opencode"], Limits(), ["opencode.limit_train=all"])[0].limits.limit_train is None


@pytest.mark.parametrize(
    ("sets", "options", "message"),
    [
        (["glaive", "glaive"], [], "'glaive' is named twice"),
        (["glaive"], ["limit_train=3"], "is not SET.NAME=VALUE"),
        (["glaive"], ["glaive.limit_train"], "is not SET.NAME=VALUE"),
        (["glaive"], ["opencode.limit_train=3"], "'opencode' is none of the sets: glaive"),
        (["glaive"], ["glaive.limit_tain=3"], "did you mean 'limit_train'"),
        (["glaive"], ["glaive.limit_train=many"], "'many' is not int"),
        (["glaive"], ["glaive.turn=middle"], "possible are first, last, random"),
        (["glaive"], ["glaive.package=x"], "there is no 'package'"),
        (["glaive"], ["glaive.where=score>high"], "needs a number"),
        (["glaive"], ["glaive.columns=prompt"], "WANTED:GIVEN"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(sets, options, message):
    with pytest.raises(ValueError, match=message):
        plan_sets(sets, COMMON, options)


def test_a_family_of_ones_own_takes_three_lines(tmp_path, glass_folder, monkeypatch):
    (tmp_path / "posts.jsonl").write_text(
        "".join(
            json.dumps({"id": n, "post": f"Tell me about the cat and the hat {'again ' * n}"}) + "\n" for n in range(3)
        )
    )
    # the three lines
    monkeypatch.setitem(
        ADAPTERS, "forum", lambda row, name: conversation(row, name, [{"role": "user", "content": row["post"]}])
    )
    sets = [f"mine:forum:{tmp_path / 'posts.jsonl'}"]
    plans = plan_sets(sets, Limits(limit_heldout=None, max_prompt_tokens=100))
    (summary,) = prepare_sets(plans, Preparation(glass_folder, tmp_path / "prepared"), workers=2)
    assert (summary["input"], summary["prompts"]) == (3, 3)


def test_a_set_of_ones_own_gets_a_name(monkeypatch):
    monkeypatch.setitem(SETS, "posts", SetSpec("posts", "prompts", hub="me/posts", limit=5))
    assert plan_sets(["posts"], Limits())[0].limits.limit_train == 5


def test_the_case_itself_is_a_list_of_sets_with_options(tmp_path):
    (tmp_path / "kimi.jsonl").write_text('{"problem": "What is 2+2?", "solution": "4."}\n')
    names = ["deepswe_kimi", f"kimi_2000x:tolerant:{tmp_path / 'kimi.jsonl'}", "glaive", "opencode", "evol_instruct",
             "mixture_of_thoughts", "openthoughts", "ultrachat", "sharegpt", "swe_agent"]  # fmt: skip
    common = Limits(limit_train=None, max_chars=20_000, max_prompt_tokens=8192, max_reference_tokens=0)
    plans = plan_sets(
        names,
        common,
        ["swe_agent.max_chars=200000", "swe_agent.max_prompt_tokens=65536", "deepswe_kimi.max_sample_tokens=65536",
         "opencode.where=average_test_score>=0.8"],
    )  # fmt: skip
    by_name = {plan.spec.name: plan for plan in plans}
    assert sum(plan.limits.limit_train for plan in plans) == 88_088
    assert [name for name, plan in by_name.items() if plan.spec.kind == "tokenized"] == ["deepswe_kimi", "kimi_2000x"]
    assert {name: plan.limits.max_prompt_tokens for name, plan in by_name.items()} == {
        **dict.fromkeys(by_name, 8192), "swe_agent": 65_536
    }  # fmt: skip
    assert (by_name["swe_agent"].limits.max_chars, by_name["swe_agent"].spec.partition) == (200_000, "long")
    assert by_name["deepswe_kimi"].limits.max_sample_tokens == 65_536
    assert by_name["opencode"].spec.where == "average_test_score>=0.8"
    assert by_name["kimi_2000x"].spec.path == str(tmp_path / "kimi.jsonl")
