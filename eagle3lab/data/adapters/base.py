"""What every adapter returns, the two ways a row can fall out, and the turns that a conversation is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3lab.data.text import digest

# A message in the chat-template shape: role and content; an answer may also hold `reasoning_content` and
# `tool_calls`, a tool's result `name` and `tool_call_id`.
Message = dict[str, Any]


class RowSkipped(ValueError):
    """The row is sound but not wanted. `reason` is a short fixed word to count by, `detail` tells the case."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail


class RowError(RowSkipped):
    """The row is broken. Counted apart from what is skipped on purpose."""


@dataclass(frozen=True)
class Conversation:
    """Messages in the chat-template shape, and the tools they may call as JSON schemas (None: no tools).

    `id` is the whole conversation's: every chunk or copy shares it, and so falls on the same side of the split.
    """

    id: str
    set: str
    messages: list[Message]
    meta: dict[str, Any] = field(default_factory=dict)
    tools: list[dict[str, Any]] | None = None


Adapter = Callable[[Any, str], Conversation]


def conversation(
    row: Any, set_name: str, messages: list[Message], tools: list[dict[str, Any]] | None = None
) -> Conversation:
    """The usual end of an adapter: the leading turns in order, under the row's own id where it has one.

    `messages` are plain {"role", "content"} or what `Turns` collected. RowSkipped where no user turn leads.
    """
    kept, cut = ordered(messages)
    return Conversation(conversation_id(row, kept), set_name, kept, {"turns_cut": cut} if cut else {}, tools or None)


def text_of(value: Any, where: str) -> str:
    """A stripped text; RowError when it is none, or cannot be written as UTF-8 (lone surrogates)."""
    if not isinstance(value, str):
        raise RowError("not_text", f"{where} is {type(value).__name__}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RowError("not_unicode", f"{where}: lone surrogate at character {error.start}") from error
    return value.strip()


def mapping_of(row: Any) -> Mapping[str, Any]:
    """The row as a mapping; RowError otherwise."""
    if not isinstance(row, Mapping):
        raise RowError("not_an_object", f"the row is {type(row).__name__}")
    return row


def first_of(row: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """The first of the columns that the row has and that holds something, or None."""
    return next((name for name in names if row.get(name) not in (None, "", [])), None)


_AFTER = {"system": ("user",), "user": ("assistant",), "tool": ("tool", "assistant")}


def ordered(messages: list[Message]) -> tuple[list[Message], int]:
    """Keep the leading turns in order: system at most once and first, then user and assistant in turn; after a
    call its results.

    Returns the kept messages and how many turns were cut behind them. RowSkipped for a conversation that
    holds no turn ("empty_conversation"), starts with an answer ("starts_with_answer") or with an empty
    prompt.
    """
    if not messages:
        raise RowSkipped("empty_conversation")
    kept: list[Message] = []
    expected: tuple[str, ...] = ("system", "user")
    for message in messages:
        calls = message.get("tool_calls")
        empty = not (message["content"] or calls or message["role"] == "tool")
        if message["role"] not in expected or empty:
            break
        kept.append(message)
        expected = _AFTER.get(message["role"]) or (("tool",) if calls else ("user",))
    if any(m["role"] == "user" for m in kept):
        return kept, len(messages) - len(kept)
    turns = [m for m in messages if m["role"] != "system"]
    if turns and turns[0]["role"] == "assistant":
        raise RowSkipped("starts_with_answer")
    raise RowSkipped("empty_prompt" if turns else "no_user_turn", "the first user turn holds no text" if turns else "")


_IDS = ("id", "conversation_id", "prompt_id", "instance_id", "question_id", "task_id")


def conversation_id(row: Any, messages: list[Message]) -> str:
    """The row's own id where it has one, else a digest of its first user text."""
    for key in _IDS if isinstance(row, Mapping) else ():
        if isinstance(row.get(key), str | int) and str(row[key]).strip():
            return str(row[key])
    return digest(next(m["content"] for m in messages if m["role"] == "user"))[:16]
