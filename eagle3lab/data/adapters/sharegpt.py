"""B7, ShareGPT (Vicuna, unfiltered): {"id": "abc_0", "conversations": [{"from": "human", "value": ...}, ...]}.

Long conversations are published in chunks `<id>_0`, `<id>_1` ...: only chunk 0 holds the first prompt, and
all chunks share the conversation id, so a split by conversation keeps them together. The text is left as it
is: what looks like residue (`\\_`, entities) is part of many real questions about markup.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from eagle3lab.data.adapters.base import Conversation, RowSkipped, mapping_of
from eagle3lab.data.adapters.conversations import adapt_conversations

_CHUNK = re.compile(r"(?P<id>.+)_(?P<chunk>\d+)")


def adapt_sharegpt(row: Any, set_name: str) -> Conversation:
    """Row -> Conversation; skips continuation chunks and empty conversations, cuts at the first turn out of
    order."""
    row = mapping_of(row)
    whole = _CHUNK.fullmatch(str(row.get("id", "")))
    if whole and int(whole["chunk"]) > 0 and row.get("conversations"):
        raise RowSkipped("continuation", f"chunk {whole['chunk']} of {whole['id']}")
    found = adapt_conversations(row, set_name)
    return replace(found, id=whole["id"]) if whole else found
