"""Berkeley function-calling questions: `question`: a list of turns, each a list of messages; `function`: the tools.

Their schemas write "dict" for an object and "float" for a number. Only the first turn can be asked: later ones
answer what happened after it.
"""

from __future__ import annotations

from typing import Any

from eagle3lab.data.adapters.base import Conversation, RowError, conversation, mapping_of
from eagle3lab.data.adapters.messages import ROLES, add_message
from eagle3lab.data.adapters.tools import tools_of
from eagle3lab.data.adapters.turns import Turns


def adapt_bfcl(row: Any, set_name: str) -> Conversation:
    """Row -> Conversation of the first turn with its tools."""
    row = mapping_of(row)
    questions = row.get("question")
    if not isinstance(questions, list) or not questions or not isinstance(questions[0], list):
        raise RowError("no_question", f"question is {type(questions).__name__}")
    turns = Turns()
    for number, message in enumerate(questions[0]):
        message = mapping_of(message)
        if message.get("role") not in ROLES:
            raise RowError("unknown_role", f"message {number} has role {message.get('role')!r}")
        add_message(turns, ROLES[message["role"]], message, number)
    return conversation(row, set_name, turns.messages, tools_of(row.get("function"), "function"))
