"""A2 (KimiK2.5-2000x) and other sets whose columns are not known beforehand.

`messages` or `conversations` where the row has them; else the first question column, the first thought column and the
first answer column that hold something. Columns of other names are given as a map: `columns=prompt:query`.
"""

from __future__ import annotations

from typing import Any

from eagle3lab.data.adapters.base import Conversation, RowError, conversation, first_of, mapping_of, text_of
from eagle3lab.data.adapters.conversations import adapt_conversations
from eagle3lab.data.adapters.messages import adapt_messages
from eagle3lab.data.adapters.turns import Turns

QUESTIONS = ("problem", "prompt", "question", "instruction", "input", "query")
THOUGHTS = ("thinking", "reasoning", "reasoning_content", "thought")
ANSWERS = ("solution", "response", "answer", "output", "completion")


def adapt_tolerant(row: Any, set_name: str) -> Conversation:
    """Row -> Conversation by whatever columns it has; RowError("no_prompt") names the columns it found."""
    row = mapping_of(row)
    if row.get("messages"):
        return adapt_messages(row, set_name)
    if row.get("conversations"):
        return adapt_conversations(row, set_name)
    question, thought, answer = (first_of(row, names) for names in (QUESTIONS, THOUGHTS, ANSWERS))
    if question is None:
        raise RowError("no_prompt", f"none of {', '.join(QUESTIONS)} among {', '.join(map(str, row)) or 'no columns'}")
    turns = Turns()
    if row.get("system"):
        turns.say("system", text_of(row["system"], "system"))
    turns.say("user", text_of(row[question], question))
    if answer:
        turns.answer(text_of(row[answer], answer), None, text_of(row[thought], thought) if thought else "")
    return conversation(row, set_name, turns.messages)
