"""B2, nvidia/OpenCodeInstruct: `input` is the task, `output` the answer, every column a text.

Scores are text too (`average_test_score` "0.9"): filter with `where=average_test_score>=0.8`, which reads the number.
"""

from __future__ import annotations

from typing import Any

from eagle3lab.data.adapters.base import Conversation, conversation, mapping_of, text_of
from eagle3lab.data.adapters.turns import Turns


def adapt_opencode(row: Any, set_name: str) -> Conversation:
    """Row -> Conversation of the task and, where there is one, its answer."""
    row = mapping_of(row)
    turns = Turns()
    turns.say("user", text_of(row.get("input"), "input"))
    answer = text_of(row.get("output") or "", "output")
    if answer:
        turns.answer(answer)
    return conversation(row, set_name, turns.messages)
