import json

import pytest

from eagle3lab.data.suites import SUITES, benchmark_texts, heldout_prompts, prepare_suites
from eagle3lab.data.text import normalise, share


def test_the_suites_have_their_published_sizes():
    bench, humaneval = heldout_prompts("mt_bench"), heldout_prompts("humaneval")
    assert (len(bench), len(humaneval)) == (80, 164)
    assert bench[0]["id"] == "mt_bench-81"
    assert bench[0]["messages"][0]["content"].startswith("Compose an engaging travel blog post about a recent trip")
    assert humaneval[0]["id"] == "humaneval-0"
    assert "def has_close_elements(" in humaneval[0]["messages"][0]["content"]
    assert len({row["id"] for row in bench + humaneval}) == 244
    assert [row["id"] for row in heldout_prompts("mt_bench", 2)] == ["mt_bench-81", "mt_bench-82"]


@pytest.mark.parametrize("suite", SUITES)
def test_no_prompt_of_a_suite_comes_twice(suite):
    ids = [one["id"] for one in heldout_prompts(suite)]
    assert len(ids) == len(set(ids))


def test_every_turn_is_blocked_from_training():
    texts = benchmark_texts()
    assert len(texts) >= 2 * 80 + 164 - 5  # a few second turns are the same words
    second = "Rewrite your previous response. Start every sentence with the letter A."
    assert texts[normalise(second)] == "mt_bench-81"


def test_function_calls_bring_their_tools_in_the_words_of_json_schema():
    questions = heldout_prompts("bfcl")
    assert len(questions) == 400 + 200 + 200 + 200 + 258 + 1053 + 16 + 24
    assert questions[0]["id"] == "bfcl-simple_python_0"
    assert questions[0]["messages"] == [
        {"role": "user", "content": "Find the area of a triangle with a base of 10 units and height of 5 units."}
    ]
    (tool,) = questions[0]["tools"]
    assert tool["function"]["parameters"]["type"] == "object"
    assert tool["function"]["parameters"]["properties"]["base"]["type"] == "integer"
    assert '"type": "dict"' not in json.dumps([one["tools"] for one in questions])
    assert len({one["id"] for one in questions}) == len(questions)


def test_alpaca_and_news_are_held_out_as_what_they_are():
    alpaca, news = heldout_prompts("alpaca"), heldout_prompts("lee_news")
    assert (len(alpaca), len(news)) == (80, 299 + 1)
    assert news[0]["messages"][0]["content"].startswith("Summarize the following news article")
    texts = benchmark_texts(["alpaca"])
    assert all(normalise(one["messages"][0]["content"]) in texts for one in alpaca)


def test_gsm_symbolic_asks_all_templates_before_any_comes_twice():
    questions = heldout_prompts("gsm_symbolic")
    assert len(questions) == 2 * 85 and len({one["id"] for one in questions}) == 170
    templates = [one["id"].split("-")[1] for one in questions]
    assert templates[:85] == templates[85:] and len(set(templates)) == 85 and "32" not in templates
    texts = [one["messages"][0]["content"] for one in questions]
    assert len(set(texts)) == 170 and all(text.endswith("Do not include units.") for text in texts)
    assert " can peel " in texts[0] and "How long will it take her to peel and saute" in texts[0]
    assert texts == [one["messages"][0]["content"] for one in heldout_prompts("gsm_symbolic")]  # seeded


def test_the_second_turns_of_mt_bench_are_kept():
    first = heldout_prompts("mt_bench", 1)[0]
    assert first["later_turns"] == ["Rewrite your previous response. Start every sentence with the letter A."]
    assert "later_turns" not in heldout_prompts("humaneval", 1)[0]


def test_prompts_of_ones_own(tmp_path, glass):
    file = tmp_path / "mine.jsonl"
    rows = [{"prompt": "Tell me a story."}, {"id": "b", "messages": [{"role": "user", "content": "And then?"}]}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = heldout_prompts(f"mine:{file}")
    assert [(one["id"], one["suite"]) for one in own] == [("mine-1", "mine"), ("mine-b", "mine")]
    assert benchmark_texts([f"mine:{file}"])[normalise("and then")] == "mine-b"
    prompts, _ = prepare_suites([f"mine:{file}"], glass, max_prompt_tokens=48)
    assert [(row["id"], row["set"], row["split"]) for row in prompts] == [
        ("mine-1", "mine", "heldout"), ("mine-b", "mine", "heldout"),
    ]  # fmt: skip
    file.write_text('{"text": "no prompt"}\n')
    with pytest.raises(ValueError, match="mine.jsonl, line 1: give `prompt`"):
        heldout_prompts(f"mine:{file}")
    file.write_text('{"id": "a", "prompt": "One."}\n{"id": "a", "prompt": "Two."}\n')
    with pytest.raises(ValueError, match="mine.jsonl, line 2: the id 'mine-a' comes twice"):
        heldout_prompts(f"mine:{file}")
    with pytest.raises(ValueError, match="there is no file"):
        heldout_prompts("mine:nowhere.jsonl")


def test_a_suite_the_template_cannot_render_is_skipped_with_that_reason(chatml):
    prompts, skipped = prepare_suites(["bfcl"], chatml, max_prompt_tokens=10_000, limit=3)
    assert prompts == [] and {row["reason"] for row in skipped} == {"template"}


def test_an_unknown_suite_is_refused():
    with pytest.raises(ValueError, match="known: mt_bench, humaneval"):
        heldout_prompts("mtbench")


def test_suites_as_prompts_skip_what_the_target_cannot_take(glass):
    prompts, skipped = prepare_suites(["mt_bench"], glass, max_prompt_tokens=48, limit=5)
    assert len(prompts) == 5
    assert all(row["n_prompt"] <= 48 and row["split"] == "heldout" and row["set"] == "mt_bench" for row in prompts)
    assert {row["reason"] for row in skipped} <= {"too_many_tokens", "unknown_token"}
    everything, all_skipped = prepare_suites(["mt_bench", "humaneval"], glass, max_prompt_tokens=48)
    assert len(everything) + len(all_skipped) == 244


def test_normal_form_ignores_case_spaces_and_punctuation():
    assert normalise("  Hello,\n WORLD! ﬁn ") == "hello world fin"
    assert normalise("?!") == "?!"
    assert normalise("a b") != normalise("ab")


def test_shares_are_stable_and_even():
    assert share(0, "x") == share(0, "x") != share(1, "x")
    values = [share(3, str(n)) for n in range(2000)]
    assert all(0 <= v < 1 for v in values)
    assert abs(sum(values) / 2000 - 0.5) < 0.03  # 4.6 standard errors
