"""B8, agent trajectories: nebius/SWE-agent-trajectories, and SWE-agent's own files.

nebius: `trajectory`: [{role: system, user or ai, text, system_prompt, mask, cutoff_date}]; a system turn's text is in
`system_prompt`, and the action is a fenced block inside the ai text. SWE-agent: `history`: [{role, content, ...}] with
tool calls in newer files. Every step is a turn; observations are user turns, or results where a tool was called.
"""

from __future__ import annotations

from typing import Any

from eagle3lab.data.adapters.base import Conversation, RowError, conversation, mapping_of, text_of
from eagle3lab.data.adapters.messages import ROLES, add_message, message_list
from eagle3lab.data.adapters.turns import Turns

_NEBIUS = {"system": "system", "user": "user", "ai": "assistant"}


def adapt_trajectory(row: Any, set_name: str) -> Conversation:
    """Row -> Conversation of all steps, cut at the first one out of order."""
    row = mapping_of(row)
    turns = Turns()
    own = "history" in row
    for number, step in enumerate(message_list(row.get("history" if own else "trajectory"), "trajectory")):
        step = mapping_of(step)
        role = (ROLES if own else _NEBIUS).get(step.get("role"))
        if role is None:
            raise RowError("unknown_role", f"step {number} has role {step.get('role')!r}")
        if own:
            add_message(turns, role, step, number)
        elif role == "system":
            turns.say("system", text_of(step.get("system_prompt") or step.get("text"), f"step {number}, system_prompt"))
        elif role == "assistant":
            turns.answer(text_of(step.get("text"), f"step {number}"))
        else:
            turns.say(role, text_of(step.get("text"), f"step {number}"))
    return conversation(row, set_name, turns.messages)
