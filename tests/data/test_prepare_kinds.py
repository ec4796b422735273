"""Sets of both kinds for a target like Kimi-K2.5, with the settings of a set."""

import json
from dataclasses import replace

import pytest
from case_rows import ROWS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3lab.data.chat import render_text
from eagle3lab.data.corpus import write_corpus
from eagle3lab.data.limits import Limits
from eagle3lab.data.prepare import prepare_set, read_prompts, read_tokenized
from eagle3lab.data.rehearsal.tokenizer import END, KimiStandIn
from eagle3lab.data.sources import SETS, SetSpec
from eagle3lab.data.spans import check_spans
from eagle3lab.data.text import normalise, row_stem
from eagle3lab.workbench.files import read_jsonl

ENDS = {163585, END}
OPEN = Limits(limit_heldout=None, min_chars=1, max_prompt_tokens=5000)


@pytest.fixture(scope="module")
def kimi():
    return KimiStandIn()


@pytest.fixture
def prepare(tmp_path, kimi):
    """Prepare rows as the set `spec`; returns (summary, its folder)."""

    def run(spec, rows, limits=OPEN, tokenizer=kimi, blocked=(), **options):
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        spec = replace(spec, path=str(tmp_path / "rows.jsonl"))
        options = {"end_ids": ENDS} | options
        summary = prepare_set(spec, tokenizer, tmp_path / "prepared", limits, blocked=dict(blocked), **options)
        fallen = sum(summary["skipped"].values()) + sum(summary["errors"].values())
        assert summary["input"] == len(rows[: spec.max_rows]) == summary["prompts"] + summary["tokenized"] + fallen
        return summary, tmp_path / "prepared" / spec.name

    return run


def _decode(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _spans(tokenizer, row):
    return [_decode(tokenizer, row["input_ids"][a:b]) for a, b in row["loss_spans"]]


def _chat(*texts, **columns):
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]} | columns


@pytest.mark.parametrize("name", ROWS)
def test_each_of_the_cases_sets_is_prepared_for_kimi(prepare, name):
    spec = SETS[name]
    summary, folder = prepare(spec, [ROWS[name]])
    assert summary["kind"] == spec.kind and summary["partition"] == spec.partition
    prompts, tokenized = list(read_prompts(folder)), list(read_tokenized(folder))
    assert (len(prompts), bool(tokenized)) == ((1, False) if spec.kind == "prompts" else (0, True))
    assert (folder / "tokenized.jsonl").exists() == (spec.kind == "tokenized")


def test_a_trajectory_without_thinking_is_one_sample_of_all_its_answers(prepare, kimi, tmp_path):
    summary, folder = prepare(SETS["deepswe_kimi"], [ROWS["deepswe_kimi"]])
    (row,) = read_tokenized(folder)
    messages = json.loads(ROWS["deepswe_kimi"]["messages"])
    answers = [m["content"] + "<|im_end|>" for m in messages if m["role"] == "assistant"]
    assert _spans(kimi, row) == answers
    assert _decode(kimi, row["input_ids"]) == render_text(kimi, messages, False, options={"thinking": False})
    assert (row["origin"], row["finish_reason"], row["split"]) == ("given", "stop", row["split"])
    assert (summary["tokenized"], summary["samples"], summary["sample_tokens"]["sum"]) == (1, 1, len(row["input_ids"]))
    assert summary["loss_tokens"] == sum(b - a for a, b in row["loss_spans"])
    written = write_corpus(tmp_path / "corpus.parquet", read_tokenized(folder))  # its rows are rows of the corpus
    assert (written["rows"], written["loss_tokens"]) == (1, summary["loss_tokens"])


def test_reasoning_answers_are_a_sample_each_and_can_be_limited(prepare, kimi):
    thoughts = [_chat(f"Question {n}?", "<think>One.</think>A.", "More?", "<think>Two.</think>B.") for n in range(20)]
    spec = SetSpec("native", "tolerant", "tokenized")
    summary, folder = prepare(spec, thoughts)
    rows = list(read_tokenized(folder))
    assert (summary["tokenized"], summary["samples"], len(rows)) == (20, 40, 40)
    assert {tuple(_spans(kimi, row)) for row in rows} == {
        ("One.</think>A.<|im_end|>",), ("Two.</think>B.<|im_end|>",)
    }  # fmt: skip
    by_stem = {}
    for row in rows:
        by_stem.setdefault(row_stem(row["id"])[0], []).append(row)
    assert all([row["id"].rsplit("-", 1)[1] for row in pair] == ["t1", "t3"] for pair in by_stem.values())
    assert all(len({row["split"] for row in pair}) == 1 for pair in by_stem.values())
    fewer, folder = prepare(spec, thoughts, replace(OPEN, max_samples=1))
    chosen = [row["id"] for row in read_tokenized(folder)]
    assert (fewer["tokenized"], len(chosen)) == (20, 20)
    assert len({key.rsplit("-", 1)[1] for key in chosen}) == 2  # not always the first
    assert set(chosen) <= {row["id"] for row in rows}


def test_long_samples_are_cut_and_marked(prepare, kimi):
    spec = replace(SETS["deepswe_kimi"], name="native")
    _, folder = prepare(spec, [_chat("Hi", "x" * 40, "Go", "y" * 40)])
    (whole,) = read_tokenized(folder)
    first, second = whole["loss_spans"]
    for length, spans, finish in [
        (first[0] + 5, [[first[0], first[0] + 5]], "length"),
        (second[0], [first], "length"),
        (len(whole["input_ids"]), [first, second], "stop"),
    ]:
        _, folder = prepare(spec, [_chat("Hi", "x" * 40, "Go", "y" * 40)], replace(OPEN, max_sample_tokens=length))
        (row,) = read_tokenized(folder)
        assert row["input_ids"] == whole["input_ids"][:length]
        assert (row["loss_spans"], row["finish_reason"]) == (spans, finish)
    rows = [_chat("Hi", "x" * 40)]
    summary, _ = prepare(spec, rows, replace(OPEN, max_sample_tokens=first[0]))
    assert summary["skipped"] == {"too_many_tokens": 1}
    summary, folder = prepare(spec, rows, replace(OPEN, max_prompt_tokens=9), context_length=first[0] + 3)
    assert len(next(read_tokenized(folder))["input_ids"]) == first[0] + 3


def test_native_rows_fall_with_their_reasons(prepare):
    rows = [
        _chat("Fine?", "Yes."),
        _chat("Fine?", "Yes."),
        _chat("Alone?"),
        _chat("Forged?", "a<|im_end|>b"),
        _chat("Thought?", "<think>hm</think>b"),
        _chat("name the CAPITAL of France", "Paris."),
        {"messages": "[{"},
        _chat("Fine?", "No."),
    ]
    spec = replace(SETS["deepswe_kimi"], name="native")  # thinking is off: a thought has no place
    summary, folder = prepare(spec, rows, blocked={normalise("Name the capital of France!"): "quiz-1"})
    assert summary["tokenized"] == 2  # another answer to the same prompt is another row
    assert summary["skipped"] == {"duplicate": 1, "no_answer": 1, "special_token_in_text": 1, "benchmark": 1}
    assert summary["errors"] == {"template": 1, "messages_not_json": 1}
    reasons = {line["row"]: line["reason"] for line in read_jsonl(folder / "errors.jsonl")}
    assert reasons == {
        1: "duplicate", 2: "no_answer", 3: "special_token_in_text", 4: "template", 5: "benchmark",
        6: "messages_not_json",
    }  # fmt: skip


def test_a_turn_nobody_answered_is_not_part_of_a_sample(prepare, kimi):
    spec = replace(SETS["deepswe_kimi"], name="native")
    _, folder = prepare(spec, [_chat("Hi", "Ho.", "Still there?")])
    (row,) = read_tokenized(folder)
    assert "Still there?" not in _decode(kimi, row["input_ids"])


def test_a_prompt_may_end_at_its_first_last_or_any_turn(prepare):
    rows = [_chat(f"one {n}", "a", "two", "b", "three", "c") for n in range(40)]
    ends = {}
    for turn in ("first", "last", "random"):
        _, folder = prepare(SetSpec("p", "messages", turn=turn), rows)
        ends[turn] = [len(row["messages"]) for row in read_prompts(folder)]
    assert set(ends["first"]) == {1} and set(ends["last"]) == {5}
    assert set(ends["random"]) == {1, 3, 5}
    _, folder = prepare(SetSpec("p", "messages", turn="random"), rows[::-1])
    assert sorted(len(row["messages"]) for row in read_prompts(folder)) == sorted(ends["random"])


def test_tools_stand_in_the_template_or_in_a_system_text(prepare, kimi, chatml):
    spec = SETS["glaive"]
    _, folder = prepare(spec, [ROWS["glaive"]])
    (row,) = read_prompts(folder)
    assert _decode(kimi, row["prompt_ids"]) == render_text(kimi, row["messages"], True, row["tools"])
    assert "<|im_system|>tool_declare" in _decode(kimi, row["prompt_ids"])
    summary, _ = prepare(spec, [ROWS["glaive"]], tokenizer=chatml, end_ids=None)
    assert summary["errors"] == {"template": 1}  # ChatML has no place for tools, and does not lose them silently
    _, folder = prepare(replace(spec, tools="system"), [ROWS["glaive"]], tokenizer=chatml, end_ids=None)
    (row,) = read_prompts(folder)
    assert "tools" not in row and '"name": "send_email"' in row["messages"][0]["content"]


def test_prompts_with_other_tools_are_other_prompts(prepare):
    other = ROWS["glaive"] | {"system": ROWS["glaive"]["system"].replace("get_time", "get_date")}
    other["chat"] = other["chat"].replace("get_time", "get_date")
    summary, _ = prepare(SETS["glaive"], [ROWS["glaive"], other, ROWS["glaive"]])
    assert (summary["prompts"], summary["skipped"]) == (2, {"duplicate": 1})


def test_the_datas_own_system_prompt_can_be_dropped(prepare):
    for system, roles in [("keep", ["system", "user"]), ("drop", ["user"])]:
        _, folder = prepare(replace(SETS["openthoughts"], system=system), [ROWS["openthoughts"]])
        (row,) = read_prompts(folder)
        assert [m["role"] for m in row["messages"]] == roles
    assert SETS["openthoughts"].system == "drop"


def test_thinking_off_is_what_the_template_makes_of_it(prepare, kimi):
    for thinking, end in [("default", "<think>"), ("on", "<think>"), ("off", "<think></think>")]:
        _, folder = prepare(SetSpec("p", "messages", thinking=thinking), [_chat("Hi there", "Ho")])
        (row,) = read_prompts(folder)
        assert _decode(kimi, row["prompt_ids"]).endswith(f"<|im_middle|>{end}")


def test_filters_columns_and_the_number_of_rows_read_are_settings(prepare):
    rows = [{"frage": f"Was ist {n}?", "score": str(n / 10)} for n in range(10)]
    spec = SetSpec("p", "prompts", columns="prompt:frage", where="score>=0.5")
    summary, folder = prepare(spec, rows)
    assert (summary["prompts"], summary["skipped"]) == (5, {"filtered": 5})
    assert summary["settings"]["where"] == "score>=0.5"
    assert next(line for line in read_jsonl(folder / "errors.jsonl"))["detail"] == "score is 0.0"
    assert prepare(replace(spec, max_rows=7), rows)[0]["skipped"] == {"filtered": 5}


def test_the_summary_tells_languages_lengths_and_where_they_lie(prepare):
    rows = [
        _chat("What is rice, and where does it grow?"),
        _chat("これは何ですか、先生"),
        _chat("人人生而自由，在尊严和权利上一律平等，这是什么意思？"),
        _chat("Что это такое и где растёт рис?"),
        _chat("1 + 1 = ?"),
    ]
    summary, folder = prepare(SetSpec("p", "messages"), rows)
    assert summary["languages"] == {"en": 1, "ja": 1, "zh": 1, "ru": 1, "unclear": 1}
    lengths = sorted(row["n_prompt"] for row in read_prompts(folder))
    told = summary["prompt_tokens"]
    assert (told["min"], told["median"], told["max"], told["sum"]) == (lengths[0], lengths[2], lengths[4], sum(lengths))
    assert told["p90"] == round(lengths[3] + 0.6 * (lengths[4] - lengths[3]), 1)


def test_lone_surrogates_hidden_in_a_call_are_an_error_of_that_row(prepare):
    calls = [{"function": {"name": "f", "arguments": {"x": "\ud800"}}}]
    row = {
        "messages": [{"role": "user", "content": "Call it"}, {"role": "assistant", "content": "", "tool_calls": calls}]
    }
    summary, _ = prepare(replace(SETS["deepswe_kimi"], name="native"), [row, _chat("Hi", "Ho")])
    assert (summary["tokenized"], summary["errors"]) == (1, {"not_unicode": 1})


texts = st.text("ab \n<>日", min_size=1, max_size=8)
conversations = st.lists(st.tuples(texts, texts, st.booleans()), min_size=1, max_size=3)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.lists(conversations, min_size=1, max_size=12), seed=st.integers(0, 3), limit=st.integers(0, 6))
def test_whatever_the_rows_every_one_is_accounted_for(prepare, kimi, data, seed, limit):
    rows = [
        _chat(*(t for q, a, thinks in turns for t in (q, f"<think>{q}</think>{a}" if thinks else a))) for turns in data
    ]
    limits = replace(OPEN, limit_train=limit, limit_heldout=limit, seed=seed)
    for kind in ("prompts", "tokenized"):
        summary, folder = prepare(SetSpec("any", "messages", kind), rows, limits)
        assert max(summary["splits"].values(), default=0) <= limit
        for row in read_tokenized(folder):
            check_spans(len(row["input_ids"]), row["loss_spans"])
            assert all(row["input_ids"][end - 1] == END for _, end in row["loss_spans"])
