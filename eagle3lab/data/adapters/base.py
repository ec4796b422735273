"""What every adapter returns, and the two ways a row can fall out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3lab.data.text import digest

Message = dict[str, str]


class RowSkipped(ValueError):
    """The row is sound but not wanted. `reason` is a short fixed word to count by, `detail` tells the
    case."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail


class RowError(RowSkipped):
    """The row is broken. Counted apart from what is skipped on purpose."""


@dataclass(frozen=True)
class Conversation:
    """Messages in the chat-template shape. `id` is the whole conversation's: every chunk or copy shares
    it."""

    id: str
    set: str
    messages: list[Message]
    meta: dict[str, Any] = field(default_factory=dict)


Adapter = Callable[[Any, str], Conversation]


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


def ordered(messages: list[Message]) -> tuple[list[Message], int]:
    """Keep the leading turns in order: system at most once and first, then user and assistant in turn.

    Returns the kept messages and how many turns were cut behind them. RowSkipped for a conversation that
    holds no turn ("empty_conversation"), starts with an answer ("starts_with_answer") or with an empty
    prompt.
    """
    if not messages:
        raise RowSkipped("empty_conversation")
    kept: list[Message] = []
    expected = ("system", "user")
    for message in messages:
        if message["role"] not in expected or not message["content"]:
            break
        kept.append(message)
        expected = ("assistant",) if message["role"] == "user" else ("user",)
    if any(m["role"] == "user" for m in kept):
        return kept, len(messages) - len(kept)
    turns = [m for m in messages if m["role"] != "system"]
    if turns and turns[0]["role"] == "assistant":
        raise RowSkipped("starts_with_answer")
    raise RowSkipped("empty_prompt" if turns else "no_user_turn")


def conversation_id(row: Mapping[str, Any], messages: list[Message]) -> str:
    """The row's own id where it has one, else a digest of its first user text."""
    for key in ("id", "conversation_id", "prompt_id", "instance_id", "question_id", "task_id"):
        if isinstance(row.get(key), str | int) and str(row[key]).strip():
            return str(row[key])
    return digest(next(m["content"] for m in messages if m["role"] == "user"))[:16]
