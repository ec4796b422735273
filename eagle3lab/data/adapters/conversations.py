"""Rows with `conversations`: [{"from", "value"}, ...], with `system` and `tools` columns where it has them.

B5 (OpenThoughts: from user and assistant, thoughts between its own tags) and LLaMA-Factory's tool rows (turns
`function_call` and `observation`) are of this family; ShareGPT builds on it.
"""

from __future__ import annotations

from typing import Any

from eagle3lab.data.adapters.base import Conversation, RowError, conversation, mapping_of, text_of
from eagle3lab.data.adapters.messages import message_list
from eagle3lab.data.adapters.tools import tools_of
from eagle3lab.data.adapters.turns import Turns, call_of

ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "system": "system",
    "function_call": "call",
    "observation": "tool",
    "tool": "tool",
}


def adapt_conversations(row: Any, set_name: str) -> Conversation:
    """Row -> Conversation, cut at the first turn out of order; a speaker that is not known is an error."""
    row = mapping_of(row)
    turns = Turns()
    if row.get("system"):
        turns.say("system", text_of(row["system"], "system"))
    for number, turn in enumerate(message_list(row.get("conversations"), "conversations")):
        turn = mapping_of(turn)
        speaker = turn.get("from", turn.get("role"))
        role = ROLES.get(speaker) if isinstance(speaker, str) else None
        if role is None:
            raise RowError("unknown_role", f"turn {number} is from {speaker!r}")
        text = text_of(turn.get("value", turn.get("content")), f"turn {number}")
        if role == "assistant":
            turns.answer(text)
        elif role == "call":
            turns.answer("", [call_of(text, f"turn {number}")])
        elif role == "tool":
            turns.result(text)
        else:
            turns.say(role, text)
    return conversation(row, set_name, turns.messages, tools_of(row.get("tools")))
