"""Instruction rows: `instruction` (+ `input`) with `output` or `response`: Alpaca, B3 (Magicoder-Evol-Instruct)."""

from __future__ import annotations

from typing import Any

from eagle3lab.data.adapters.base import Conversation, conversation, mapping_of, text_of
from eagle3lab.data.adapters.turns import Turns


def adapt_instruction(row: Any, set_name: str) -> Conversation:
    """Row -> Conversation; the input, when there is one, follows the instruction after a blank line."""
    row = mapping_of(row)
    turns = Turns()
    if row.get("system"):
        turns.say("system", text_of(row["system"], "system"))
    parts = [text_of(row.get("instruction"), "instruction"), text_of(row.get("input") or "", "input")]
    turns.say("user", "\n\n".join(part for part in parts if part))
    answer = text_of(row.get("output") or row.get("response") or "", "output")
    if answer:
        turns.answer(answer)
    return conversation(row, set_name, turns.messages)
