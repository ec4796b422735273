"""One small file a family of data sets: a raw row -> Conversation, or the reason why not."""

from eagle3lab.data.adapters.base import Adapter, Conversation, RowError, RowSkipped
from eagle3lab.data.adapters.instruction import adapt_instruction
from eagle3lab.data.adapters.messages import adapt_messages
from eagle3lab.data.adapters.prompts import adapt_prompt
from eagle3lab.data.adapters.sharegpt import adapt_sharegpt

ADAPTERS: dict[str, Adapter] = {
    "instruction": adapt_instruction,
    "messages": adapt_messages,
    "prompts": adapt_prompt,
    "sharegpt": adapt_sharegpt,
}

__all__ = ["ADAPTERS", "Adapter", "Conversation", "RowError", "RowSkipped"]
