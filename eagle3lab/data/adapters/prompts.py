"""A plain list of prompts: bare texts, or objects with `prompt`, `question` or `text`."""

from __future__ import annotations

from typing import Any

from eagle3lab.data.adapters.base import Conversation, RowError, conversation, mapping_of, text_of

_KEYS = ("prompt", "question", "text")


def adapt_prompt(row: Any, set_name: str) -> Conversation:
    """Row -> Conversation of one user turn."""
    row = {"prompt": row} if isinstance(row, str) else mapping_of(row)
    key = next((k for k in _KEYS if k in row), None)
    if key is None:
        known, found = ", ".join(_KEYS), ", ".join(map(str, row)) or "no columns"
        raise RowError("no_prompt", f"none of {known} among {found}")
    return conversation(row, set_name, [{"role": "user", "content": text_of(row[key], key)}])
