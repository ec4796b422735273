"""The case's ten sets, each read as its owner publishes it. Rows of `case_rows` are synthetic, in the real columns."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from case_rows import CALL, ROWS, TASK

from eagle3lab.data.adapters import ADAPTERS, RowError, RowSkipped
from eagle3lab.data.adapters.glaive import glaive_call
from eagle3lab.data.filters import row_filter
from eagle3lab.data.sources import SETS, open_rows

TRAJECTORIES = Path(__file__).resolve().parents[3] / "shared" / "data" / "swe-agent"


def _read(name, row=None, **changes):
    spec = SETS[name]
    return ADAPTERS[spec.adapter]((ROWS[name] if row is None else row) | changes, name)


def _said(conversation):
    return [(m["role"], m["content"]) for m in conversation.messages]


def test_the_sets_are_the_ten_of_the_case_with_its_counts():
    counts = [("deepswe_kimi", 2800), ("kimi_2000x", 2000), ("glaive", 10_000), ("opencode", 14_714),
              ("evol_instruct", 10_000), ("mixture_of_thoughts", 10_002), ("openthoughts", 10_000),
              ("ultrachat", 15_000), ("sharegpt", 10_000), ("swe_agent", 3572)]  # fmt: skip
    assert [(name, SETS[name].limit) for name in list(SETS)[:10]] == counts
    assert sum(SETS[name].limit for name in ROWS) == 88_088
    assert [name for name in ROWS if SETS[name].kind == "tokenized"] == ["deepswe_kimi", "kimi_2000x"]
    assert [name for name in ROWS if SETS[name].partition == "long"] == ["deepswe_kimi", "swe_agent"]
    assert all(SETS[name].hub for name in ROWS if name != "kimi_2000x")


@pytest.mark.parametrize("name", ROWS)
def test_a_row_as_published_is_read(name):
    found = _read(name)
    assert found.set == name
    roles = [m["role"] for m in found.messages if m["role"] != "system"]
    assert roles[:2] == ["user", "assistant"]
    assert found.meta == {}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_without_its_columns_is_an_error_that_says_so(name):
    with pytest.raises(RowError):
        ADAPTERS[SETS[name].adapter]({"other": 1}, name)
    with pytest.raises(RowError, match="not_an_object"):
        ADAPTERS[SETS[name].adapter](["a"], name)


def test_a1_calls_stay_text_and_observations_stay_user_turns():
    found = _read("deepswe_kimi")
    assert [m["role"] for m in found.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert found.messages[2] == {"role": "assistant", "content": CALL}
    assert found.messages[1]["content"] == TASK
    as_list = _read("deepswe_kimi", messages=json.loads(ROWS["deepswe_kimi"]["messages"]))
    assert as_list == found


def test_a1_trajectories_of_one_issue_share_their_conversation():
    other = json.loads(ROWS["deepswe_kimi"]["messages"])
    other[2]["content"] = "Another way."
    assert _read("deepswe_kimi", messages=other).id == _read("deepswe_kimi").id


@pytest.mark.parametrize("question", ["problem", "prompt", "question", "instruction"])
@pytest.mark.parametrize("thought", ["thinking", "reasoning", "reasoning_content"])
@pytest.mark.parametrize("answer", ["solution", "response", "answer", "output"])
def test_a2_is_read_by_whatever_columns_it_has(question, thought, answer):
    found = _read("kimi_2000x", {question: "What is 2+2?", thought: "Two and two.", answer: "It is 4."})
    assert found.messages == [
        {"role": "user", "content": "What is 2+2?"},
        {"role": "assistant", "content": "It is 4.", "reasoning_content": "Two and two."},
    ]


def test_a2_is_read_as_messages_conversations_or_with_a_column_map():
    expected = _read("kimi_2000x").messages
    thought = "<think>Two and two.</think>It is 4."
    for row in (
        {"messages": [{"role": "user", "content": "What is 2+2?"}, {"role": "assistant", "content": thought}]},
        {"conversations": [{"from": "human", "value": "What is 2+2?"}, {"from": "gpt", "value": thought}]},
        {"prompt": "What is 2+2?", "response": thought, "thinking": None},
    ):
        assert _read("kimi_2000x", row).messages == expected
    row, _ = row_filter("", "prompt:frage,thinking:gedanke,response:antwort")(
        {"frage": "What is 2+2?", "gedanke": "Two and two.", "antwort": "It is 4."}
    )
    assert _read("kimi_2000x", row).messages == expected


def test_b1_functions_are_found_though_they_are_no_list_and_the_preamble_goes():
    found = _read("glaive")
    assert [tool["function"]["name"] for tool in found.tools] == ["send_email", "get_time"]
    assert found.tools[0]["function"]["parameters"]["required"] == ["to"]
    assert [m["role"] for m in found.messages] == [
        "user", "assistant", "tool", "assistant", "user", "assistant", "tool", "assistant"
    ]  # fmt: skip
    assert found.messages[0]["content"] == "Please write to Ann.\n\nSay hello."
    assert found.messages[3]["content"] == "It is sent."
    assert "<|endoftext|>" not in json.dumps(found.messages)


def test_b1_calls_hold_their_arguments_and_results_answer_them():
    messages = _read("glaive").messages
    first, second = messages[1]["tool_calls"][0], messages[5]["tool_calls"][0]
    assert first["function"] == {
        "name": "send_email", "arguments": {"to": "ann@example.com", "text": "Don't panic"}
    }  # fmt: skip
    assert (messages[1]["content"], messages[5]["content"]) == ("", "Let me look.")
    assert (first["id"], second["id"]) == ("functions.send_email:0", "functions.get_time:1")
    assert messages[2] == {
        "role": "tool", "name": "send_email", "tool_call_id": first["id"], "content": '{"status": "sent"}'
    }  # fmt: skip
    assert messages[6]["tool_call_id"] == second["id"]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"name": "f", "arguments": \'{"k": "v"}\'}', {"k": "v"}),
        ('{"name": "f", "arguments": \'{"k": "it\'s"}\'}', {"k": "it's"}),
        ('{"name": "f", "arguments": \'{"k": "it\\\'s"}\'}', {"k": "it's"}),
        ('{"name": "f", "arguments": \'{"k": "say \\"hi\\""}\'}', {"k": 'say "hi"'}),
        ('{"name": "f", "arguments": \'{"k": "a\nb"}\'}', {"k": "a\nb"}),
        ('{"name": "f", "arguments": {"k": {"n": [1, 2]}}}', {"k": {"n": [1, 2]}}),
        ('{"name": "f", "arguments": "{\\"k\\": 1}"}', {"k": 1}),
        ('{"name": "f", "arguments": \'{}\'}', {}),
    ],
)
def test_b1_arguments_are_read_in_every_way_they_are_quoted(text, arguments):
    assert glaive_call(text, "turn 1") == ("f", arguments)


@pytest.mark.parametrize("text", ['{"name": "f", "arguments": \'{"k": \'}', "{broken", '{"arguments": {}}', "[]"])
def test_b1_a_broken_call_is_an_error(text):
    with pytest.raises(RowError) as caught:
        glaive_call(text, "turn 1")
    assert caught.value.reason == "bad_function_call" and "turn 1" in caught.value.detail


def test_b1_rows_without_functions_keep_their_system_prompt():
    system = "SYSTEM: You are a helpful assistant, with no access to external functions."
    found = _read("glaive", system=system, chat="USER: Hi\n\n\nASSISTANT: Ho <|endoftext|>\n\n\n")
    assert found.tools is None
    assert _said(found) == [
        ("system", "You are a helpful assistant, with no access to external functions."), ("user", "Hi"),
        ("assistant", "Ho"),
    ]  # fmt: skip


def test_b1_reasons():
    for changes, reason in [
        ({"chat": "Hello\n\n\nUSER: Hi"}, "unknown_role"),
        ({"chat": ""}, "empty_conversation"),
        ({"chat": "ASSISTANT: Hi"}, "starts_with_answer"),
        ({"system": "SYSTEM: Use them -\n{broken"}, "bad_tools"),
        ({"chat": None}, "not_text"),
    ]:
        with pytest.raises(RowSkipped) as caught:
            _read("glaive", **changes)
        assert caught.value.reason == reason


def _as_published(row):
    """A row of LLaMA-Factory's copy of glaive, written the way glaive publishes it."""
    tools = [json.dumps(tool, indent=4) for tool in json.loads(row["tools"] or "[]")]
    head = "You are a helpful assistant with access to the following functions. Use them if required -\n"
    system = "SYSTEM: " + (head + "\n\n".join(tools) if tools else "You are a helpful assistant.")
    chat = ""
    for turn in row["conversations"]:
        if turn["from"] == "function_call":
            call = json.loads(turn["value"])
            quoted = f'{{"name": "{call["name"]}", "arguments": \'{json.dumps(call["arguments"])}\'}}'
            chat += f"ASSISTANT: <functioncall> {quoted} <|endoftext|>\n\n\n"
        else:
            speaker = {"human": "USER", "gpt": "ASSISTANT", "observation": "FUNCTION RESPONSE"}[turn["from"]]
            end = " <|endoftext|>" if turn["from"] == "gpt" else ""
            chat += f"{speaker}: {turn['value']}{end}\n\n\n"
    return {"system": system, "chat": chat}


def test_b1_real_glaive_rows_say_the_same_in_both_of_their_forms():
    with open_rows(SETS["glaive_demo"]) as rows:
        rows = list(rows)
    assert len(rows) == 300
    calls = 0
    for row in rows:
        ours, published = ADAPTERS["conversations"](row, "g"), _read("glaive", _as_published(row))
        said = [m for m in published.messages if m["role"] != "system"]
        assert said == [m for m in ours.messages if m["role"] != "system"]
        assert published.tools == ours.tools
        calls += sum("tool_calls" in m for m in said)
    assert calls == 211  # all function_call turns of the file


def test_b2_scores_are_texts_and_are_compared_as_numbers():
    found = _read("opencode")
    assert found.id == "7f2c0a" and found.messages[0]["content"].startswith("Write a function that adds.")
    look = row_filter("average_test_score>=0.8", "")
    assert look(ROWS["opencode"])[1] is None
    assert look(ROWS["opencode"] | {"average_test_score": "0.10"})[1] == "average_test_score is 0.10"
    assert look(ROWS["opencode"] | {"average_test_score": "1.0"})[1] is None
    with pytest.raises(RowError, match="not_a_number.*average_test_score is 'None'"):
        look(ROWS["opencode"] | {"average_test_score": None})


def test_b3_and_alpaca_are_instructions():
    assert _said(_read("evol_instruct")) == [
        ("user", "Please write a quicksort."), ("assistant", "def quicksort(xs): ...")
    ]  # fmt: skip
    with open_rows(SETS["alpaca"]) as rows:
        found = [ADAPTERS["instruction"](row, "alpaca") for row in rows]
    assert len(found) == 999
    assert all(m["content"] for one in found for m in one.messages)


def test_b4_thoughts_are_split_from_the_answer():
    assert _read("mixture_of_thoughts").messages[1] == {
        "role": "assistant", "content": "x = 1", "reasoning_content": "Subtract one."
    }  # fmt: skip


def test_b5_thoughts_and_solutions_have_their_own_tags():
    found = _read("openthoughts")
    assert [m["role"] for m in found.messages] == ["system", "user", "assistant"]
    assert found.messages[2] == {
        "role": "assistant", "content": "\\boxed{12}", "reasoning_content": "Three fours."
    }  # fmt: skip
    turns = [ROWS["openthoughts"]["conversations"][0], {"from": "assistant", "value": "<think>Hm.</think>12"}]
    assert _read("openthoughts", conversations=turns).messages[2]["reasoning_content"] == "Hm."


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("<think>a</think>b", ("a", "b")),
        ("  <think>\na\n</think>\n\nb ", ("a", "b")),
        ("a</think>b", ("a", "b")),
        ("b", ("", "b")),
        ("<think>cut off", ("", "")),
        ("<think></think>b", ("", "b")),
        ("Use <think>x</think> tags", ("", "Use <think>x</think> tags")),
        ("<|begin_of_thought|>a<|end_of_thought|> b", ("a", "b")),
        ("<|begin_of_solution|>b<|end_of_solution|>", ("", "b")),
    ],
)
def test_thoughts_stand_at_the_head(text, split):
    from eagle3lab.data.adapters.thoughts import split_thought

    assert split_thought(text) == split


def test_a_thought_that_was_cut_off_ends_the_conversation_before_it():
    row = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "<think>hm"}]}
    found = _read("mixture_of_thoughts", row)
    assert found.messages == [{"role": "user", "content": "Hi"}]
    assert found.meta == {"turns_cut": 1}


def test_b6_the_prompt_id_is_the_conversation():
    assert _read("ultrachat").id == ROWS["ultrachat"]["prompt_id"]
    assert SETS["ultrachat"].split == "train_sft"
    assert replace(SETS["ultrachat"], split="train_gen").origin()["split"] == "train_gen"


def test_b7_residue_is_left_as_it_is():
    found = _read("sharegpt")
    assert (found.id, found.messages[0]["content"]) == ("QWJhYvA", "Summarize <div>this</div> \\_please\\_")


def test_b8_the_system_text_is_in_its_own_column_and_the_action_in_the_text():
    assert _said(_read("swe_agent")) == [
        ("system", "SETTING: a shell."), ("user", "ISSUE:\nIt breaks."),
        ("assistant", "Let's list the files.\n```\nls -a\n```"), ("user", "main.py"),
        ("assistant", "Done.\n```\nsubmit\n```"),
    ]  # fmt: skip
    assert _read("swe_agent").id == "owner__repo-12"


@pytest.mark.skipif(not TRAJECTORIES.is_dir(), reason="the real trajectories are not beside this checkout")
def test_b8_real_trajectories_are_read_whole():
    found = {}
    with open_rows(replace(SETS["swe_agent"], path=str(TRAJECTORIES))) as rows:
        for row in rows:
            one = ADAPTERS["trajectory"](row, "swe_agent")
            assert one.meta == {} and len(one.messages) == len(row["history"])
            found[len(one.messages)] = one
    assert sorted(found) == [10, 11, 12]
    with_calls = [one for one in found.values() if any("tool_calls" in m for m in one.messages)]
    assert with_calls
    for one in with_calls:
        calls = [call for m in one.messages for call in m.get("tool_calls", [])]
        results = [m for m in one.messages if m["role"] == "tool"]
        assert [m["tool_call_id"] for m in results] == [call["id"] for call in calls[: len(results)]]
        assert all(isinstance(call["function"]["arguments"], dict) for call in calls)
