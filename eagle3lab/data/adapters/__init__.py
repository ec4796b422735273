"""One small file a family of data sets: a raw row -> Conversation, or the reason why not.

A family of your own takes three lines, in a notebook too:

    from eagle3lab.data.adapters import ADAPTERS, conversation
    ADAPTERS["forum"] = lambda row, name: conversation(row, name, [{"role": "user", "content": row["post"]}])
    sets = ["mine:forum:posts.jsonl"]
"""

from eagle3lab.data.adapters.base import Adapter, Conversation, RowError, RowSkipped, conversation
from eagle3lab.data.adapters.bfcl import adapt_bfcl
from eagle3lab.data.adapters.conversations import adapt_conversations
from eagle3lab.data.adapters.glaive import adapt_glaive
from eagle3lab.data.adapters.instruction import adapt_instruction
from eagle3lab.data.adapters.messages import adapt_messages
from eagle3lab.data.adapters.opencode import adapt_opencode
from eagle3lab.data.adapters.prompts import adapt_prompt
from eagle3lab.data.adapters.sharegpt import adapt_sharegpt
from eagle3lab.data.adapters.tolerant import adapt_tolerant
from eagle3lab.data.adapters.trajectory import adapt_trajectory

ADAPTERS: dict[str, Adapter] = {
    "bfcl": adapt_bfcl,
    "conversations": adapt_conversations,
    "glaive": adapt_glaive,
    "instruction": adapt_instruction,
    "messages": adapt_messages,
    "opencode": adapt_opencode,
    "prompts": adapt_prompt,
    "sharegpt": adapt_sharegpt,
    "tolerant": adapt_tolerant,
    "trajectory": adapt_trajectory,
}

__all__ = ["ADAPTERS", "Adapter", "Conversation", "RowError", "RowSkipped", "conversation"]
