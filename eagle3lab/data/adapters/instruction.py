"""Instruction rows: `instruction` (+ `input`) with `output` or `response` (Alpaca, Evol-Instruct and kin)."""

from __future__ import annotations

from typing import Any

from eagle3lab.data.adapters.base import Conversation, conversation_id, mapping_of, ordered, text_of


def adapt_instruction(row: Any, set_name: str) -> Conversation:
    """Row -> Conversation; the input, when there is one, follows the instruction after a blank line."""
    row = mapping_of(row)
    messages = []
    if row.get("system"):
        messages.append({"role": "system", "content": text_of(row["system"], "system")})
    parts = [text_of(row.get("instruction"), "instruction"), text_of(row.get("input") or "", "input")]
    messages.append({"role": "user", "content": "\n\n".join(part for part in parts if part)})
    answer = text_of(row.get("output") or row.get("response") or "", "output")
    if answer:
        messages.append({"role": "assistant", "content": answer})
    kept, _ = ordered(messages)
    return Conversation(conversation_id(row, kept), set_name, kept)
