"""Rows with `messages`: [{"role", "content"}, ...], as a list or as JSON text of one, with `tools` where it has some.

A1 (DeepSWE-Kimi trajectories: JSON text, calls written inline in the answer, observations as later user turns),
B4 (Mixture-of-Thoughts: `<think>` in the answer), B6 (UltraChat: `prompt`, `prompt_id`, `messages`) are of this
family. Content may be text, or parts as OpenAI's and LLaMA-Factory's rows have them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from textwrap import shorten
from typing import Any

from eagle3lab.data.adapters.base import Conversation, RowError, conversation, first_of, mapping_of, text_of
from eagle3lab.data.adapters.tools import tools_of
from eagle3lab.data.adapters.turns import Turns, call_of

ROLES = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool",
    "function": "tool",
}  # fmt: skip
_THOUGHT_COLUMNS = ("reasoning_content", "reasoning", "thinking")


def adapt_messages(row: Any, set_name: str) -> Conversation:
    """Row -> Conversation; a role that is not known is an error."""
    row = mapping_of(row)
    if "messages" not in row:
        raise RowError("no_messages", f"no key 'messages'; the row has {keys_of(row)}")
    turns = Turns()
    for number, turn in enumerate(message_list(row["messages"], "messages")):
        turn = mapping_of(turn)
        role = ROLES.get(turn.get("role"))
        if role is None:
            raise RowError("unknown_role", f"turn {number} has role {turn.get('role')!r}")
        if role == "user" and "content" not in turn:
            raise RowError("no_content", f"turn {number} has no key 'content'; it has {keys_of(turn)}")
        add_message(turns, role, turn, number)
    return conversation(row, set_name, turns.messages, tools_of(row.get("tools")))


def keys_of(row: Mapping[str, Any]) -> str:
    """The row's first keys, for an error that misses one."""
    return shorten(", ".join(map(str, row)), 60, placeholder=" ...") or "none"


def message_list(value: Any, column: str) -> list[Any]:
    """A column that holds a list, or the JSON text of one; RowError naming the column."""
    if isinstance(value, str):
        try:
            value = json.loads(value, strict=False)
        except ValueError as error:
            raise RowError(f"{column}_not_json", f"{column} is a text that is not JSON: {error}") from error
    if not isinstance(value, list):
        raise RowError(f"no_{column}", f"{column} is {type(value).__name__}")
    return value


def add_message(turns: Turns, role: str, turn: Mapping[str, Any], number: int) -> None:
    """Add one OpenAI-like message to the turns."""
    where = f"turn {number}"
    content, thought, calls = _parts(turn.get("content"), where)
    calls += [call_of(call, where) for call in turn.get("tool_calls") or []]
    if role == "tool":
        turns.result(content)
    elif role == "assistant":
        column = first_of(turn, _THOUGHT_COLUMNS)
        turns.answer(content, calls, thought or (text_of(turn[column], f"{where}, {column}") if column else ""))
    else:
        turns.say(role, content)


def _parts(content: Any, where: str) -> tuple[str, str, list[tuple[str, Any]]]:
    """(text, thought, calls) of a message's content: a text, nothing beside calls, or a list of typed parts."""
    if not isinstance(content, list):
        return ("" if content is None else text_of(content, where)), "", []
    texts, thoughts, calls = [], [], []
    for part in content:
        part = mapping_of(part)
        kind, value = part.get("type"), part.get("text", part.get("value"))
        if kind == "text":
            texts.append(text_of(value, where))
        elif kind == "reasoning":
            thoughts.append(text_of(value, where))
        elif kind == "tool_call":
            calls.append(call_of(value, where))
        else:
            raise RowError("not_text", f"{where} holds a part of type {kind!r}")
    return "\n".join(texts), "\n".join(thoughts), calls
