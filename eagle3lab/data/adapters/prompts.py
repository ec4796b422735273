"""A plain list of prompts: bare texts, or objects with `prompt`, `question` or `text`."""

from __future__ import annotations

from typing import Any

from eagle3lab.data.adapters.base import Conversation, RowError, conversation_id, mapping_of, ordered, text_of

_KEYS = ("prompt", "question", "text")


def adapt_prompt(row: Any, set_name: str) -> Conversation:
    """Row -> Conversation of one user turn."""
    row = {"prompt": row} if isinstance(row, str) else mapping_of(row)
    key = next((k for k in _KEYS if k in row), None)
    if key is None:
        raise RowError(
            "no_prompt", f"none of {', '.join(_KEYS)} among {', '.join(map(str, row)) or 'no columns'}"
        )
    kept, _ = ordered([{"role": "user", "content": text_of(row[key], key)}])
    return Conversation(conversation_id(row, kept), set_name, kept)
