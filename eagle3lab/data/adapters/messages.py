"""Rows with `messages`: [{"role", "content"}, ...], as a list or as JSON text of one."""

from __future__ import annotations

import json
from typing import Any

from eagle3lab.data.adapters.base import Conversation, RowError, conversation_id, mapping_of, ordered, text_of

_ROLES = ("system", "user", "assistant")


def adapt_messages(row: Any, set_name: str) -> Conversation:
    """Row -> Conversation; other roles than system, user and assistant are an error."""
    row = mapping_of(row)
    raw = row.get("messages")
    if isinstance(raw, str):
        try:
            raw = json.loads(raw)
        except ValueError as error:
            raise RowError("messages_not_json", str(error)) from error
    if not isinstance(raw, list):
        raise RowError("no_messages", f"messages is {type(raw).__name__}")
    messages = []
    for number, turn in enumerate(raw):
        turn = mapping_of(turn)
        if turn.get("role") not in _ROLES:
            raise RowError("unknown_role", f"turn {number} has role {turn.get('role')!r}")
        messages.append({"role": turn["role"], "content": text_of(turn.get("content"), f"turn {number}")})
    kept, cut = ordered(messages)
    return Conversation(conversation_id(row, kept), set_name, kept, {"turns_cut": cut} if cut else {})
