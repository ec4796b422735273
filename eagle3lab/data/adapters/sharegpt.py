"""ShareGPT (Vicuna, unfiltered): {"id": "abc_0", "conversations": [{"from": "human", "value": ...}, ...]}.

Long conversations are published in chunks `<id>_0`, `<id>_1` ...: only chunk 0 holds the first prompt, and
all chunks share the conversation id, so a split by conversation keeps them together. The text is left as it
is: what looks like residue (`\\_`, entities) is part of many real questions about markup.
"""

from __future__ import annotations

import re
from typing import Any

from eagle3lab.data.adapters.base import Conversation, RowError, RowSkipped, mapping_of, ordered, text_of
from eagle3lab.data.text import digest

ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "system": "system",
}
_CHUNK = re.compile(r"(?P<id>.+)_(?P<chunk>\d+)")


def adapt_sharegpt(row: Any, set_name: str) -> Conversation:
    """Row -> Conversation; skips continuation chunks and empty conversations, cuts at the first turn out of
    order."""
    row = mapping_of(row)
    turns = row.get("conversations")
    if not isinstance(turns, list):
        raise RowError("no_conversations", f"conversations is {type(turns).__name__}")
    if not turns:
        raise RowSkipped("empty_conversation")
    whole = _CHUNK.fullmatch(str(row.get("id", "")))
    if whole and int(whole["chunk"]) > 0:
        raise RowSkipped("continuation", f"chunk {whole['chunk']} of {whole['id']}")
    messages = []
    for number, turn in enumerate(turns):
        turn = mapping_of(turn)
        role = ROLES.get(turn.get("from"))
        if role is None:
            raise RowError("unknown_role", f"turn {number} is from {turn.get('from')!r}")
        messages.append({"role": role, "content": text_of(turn.get("value"), f"turn {number}")})
    kept, cut = ordered(messages)
    identity = whole["id"] if whole else str(row.get("id") or digest(kept[0]["content"])[:16])
    return Conversation(identity, set_name, kept, {"turns_cut": cut} if cut else {})
