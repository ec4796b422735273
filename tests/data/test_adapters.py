import json

import pytest

from eagle3lab.data.adapters import ADAPTERS, RowError, RowSkipped


def _turns(*pairs):
    return [{"from": role, "value": text} for role, text in pairs]


def _sharegpt(*pairs, id="abc_0"):
    return ADAPTERS["sharegpt"]({"id": id, "conversations": _turns(*pairs)}, "sharegpt")


def test_sharegpt_roles_become_chat_roles():
    found = _sharegpt(("system", "Be kind."), ("human", " Hi "), ("chatgpt", "Hello"), ("user", "Bye"), ("bing", "!"))
    assert found.id == "abc"
    assert [m["role"] for m in found.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert found.messages[1]["content"] == "Hi"
    assert found.meta == {}


def test_sharegpt_is_cut_at_the_first_turn_out_of_order():
    found = _sharegpt(("human", "one"), ("human", "two"), ("gpt", "answer"))
    assert found.messages == [{"role": "user", "content": "one"}]
    assert found.meta == {"turns_cut": 2}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"id": "x_0", "conversations": []}, "empty_conversation"),
        ({"id": "x_3", "conversations": _turns(("human", "more"))}, "continuation"),
        ({"id": "x_0", "conversations": _turns(("gpt", "hello"))}, "starts_with_answer"),
        ({"id": "x_0", "conversations": _turns(("human", "  \n"))}, "empty_prompt"),
        ({"id": "x_0", "conversations": _turns(("system", "only this"))}, "no_user_turn"),
    ],
)
def test_sharegpt_skips_say_why(row, reason):
    with pytest.raises(RowSkipped) as caught:
        ADAPTERS["sharegpt"](row, "s")
    assert caught.value.reason == reason
    assert not isinstance(caught.value, RowError)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("text", "not_an_object"),
        ({"id": "x_0"}, "no_conversations"),
        ({"id": "x_0", "conversations": _turns(("alien", "hi"))}, "unknown_role"),
        ({"id": "x_0", "conversations": [{"from": "human", "value": 3}]}, "not_text"),
        ({"id": "x_0", "conversations": _turns(("human", "broken \ud800 text"))}, "not_unicode"),
    ],
)
def test_sharegpt_errors_say_why(row, reason):
    with pytest.raises(RowError) as caught:
        ADAPTERS["sharegpt"](row, "s")
    assert caught.value.reason == reason


def test_messages_may_be_json_text():
    messages = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
    for raw in (messages, json.dumps(messages)):
        found = ADAPTERS["messages"]({"prompt_id": "p1", "messages": raw}, "ultra")
        assert (found.id, found.messages) == ("p1", messages)
    with pytest.raises(RowError) as caught:
        ADAPTERS["messages"]({"messages": "[{"}, "ultra")
    assert caught.value.reason == "messages_not_json"


def test_instruction_rows_join_their_input():
    row = {"instruction": "Translate", "input": "good day", "output": "guten Tag"}
    found = ADAPTERS["instruction"](row, "alpaca")
    assert [m["content"] for m in found.messages] == ["Translate\n\ngood day", "guten Tag"]
    assert ADAPTERS["instruction"]({"instruction": "Hi", "response": "Ho"}, "e").messages[1]["content"] == "Ho"
    assert len(ADAPTERS["instruction"]({"instruction": "Hi", "input": "", "output": ""}, "e").messages) == 1


def test_prompts_may_be_texts_or_objects():
    assert ADAPTERS["prompts"]("What?", "p").messages == [{"role": "user", "content": "What?"}]
    assert ADAPTERS["prompts"]({"id": 7, "question": "What?"}, "p").id == "7"
    assert ADAPTERS["prompts"]("What?", "p").id == ADAPTERS["prompts"](" What?", "p").id
    with pytest.raises(RowError, match="no_prompt"):
        ADAPTERS["prompts"]({"x": 1}, "p")
