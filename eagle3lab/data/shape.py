"""A conversation -> what is kept of it: a prompt that the target will answer, or samples of the answers it gave.

All that a target's tokenizer and template decide about a row is decided here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from eagle3lab.data.adapters import Conversation, RowError, RowSkipped
from eagle3lab.data.answers import Sample, render_conversation, render_samples
from eagle3lab.data.chat import (
    ChatError,
    end_token_ids,
    render_prompt,
    special_token_in,
    special_tokens,
    thinking_options,
)
from eagle3lab.data.limits import Limits
from eagle3lab.data.sources import SetSpec
from eagle3lab.data.spans import MaskError
from eagle3lab.data.text import normalise, share


@dataclass(frozen=True)
class Shaped:
    """A conversation cut to what is kept. `text`: what makes it the same as another, `asked`: the user's turns, both
    normalised; `answer`: the message behind a prompt, where the data holds one."""

    conversation: Conversation
    text: str
    asked: list[str]
    answer: dict[str, Any] | None = None

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.conversation.messages


class Shaper:
    """Shapes the conversations of one set for one target."""

    def __init__(
        self, spec: SetSpec, tokenizer: Any, limits: Limits, context_length: int | None, end_ids: set[int] | None
    ):
        self.spec, self.tokenizer, self.limits = spec, tokenizer, limits
        self.ends = end_ids or end_token_ids(tokenizer)
        self.specials = special_tokens(tokenizer)
        self.options = thinking_options(spec.thinking)
        rooms = [n for n in (limits.max_sample_tokens, context_length) if n is not None]
        self.longest_sample = min(rooms) if rooms else None

    def shape(self, conversation: Conversation) -> Shaped:
        """Cut the conversation to what is kept; RowSkipped where its first user text is too short or too long."""
        messages, answer = conversation.messages, None
        if self.spec.system == "drop":
            messages = [m for m in messages if m["role"] != "system"]
        if self.spec.tools == "system" and conversation.tools:
            messages = _declare(messages, conversation.tools)
            conversation = replace(conversation, tools=None)
        if self.spec.kind == "prompts":
            text = next(m["content"] for m in messages if m["role"] == "user")
            if not self.limits.min_chars <= len(text) <= self.limits.max_chars:
                reason = "too_short" if len(text) < self.limits.min_chars else "too_long"
                raise RowSkipped(reason, f"{len(text)} chars")
            end = self._end(conversation.id, messages)
            messages, answer = messages[:end], messages[end] if end < len(messages) else None
        texts = [normalise(m["content"]) for m in messages]
        asked = [text for text, m in zip(texts, messages, strict=True) if m["role"] == "user"]
        if conversation.tools:
            texts.append(normalise(json.dumps(conversation.tools, sort_keys=True)))
        return Shaped(replace(conversation, messages=messages), " ".join(texts), asked, answer)

    def _end(self, key: str, messages: list[dict[str, Any]]) -> int:
        """The number of messages that make the prompt: it ends with a user's turn or a tool's result."""
        ends = [n + 1 for n, m in enumerate(messages) if m["role"] in ("user", "tool")]
        ends = [end for end in ends if end == len(messages) or messages[end]["role"] == "assistant"]
        chosen = {"first": 0, "last": -1, "random": int(share(self.limits.seed, f"turn:{key}") * len(ends))}
        return ends[chosen[self.spec.turn]]

    def prompt(self, shaped: Shaped) -> dict[str, Any]:
        """{"messages", "prompt_ids", "n_prompt"} and "tools" where it has some. RowSkipped or RowError when the
        target cannot take it."""
        self._refuse_text(shaped)
        try:
            ids = render_prompt(self.tokenizer, shaped.messages, shaped.conversation.tools, self.options)
        except ChatError as error:
            raise RowError("template", str(error)) from error
        if len(ids) > self.limits.max_prompt_tokens:
            raise RowSkipped("too_many_tokens", f"{len(ids)} tokens")
        self._refuse_unknown(ids)
        tools = {"tools": shaped.conversation.tools} if shaped.conversation.tools else {}
        return {"messages": shaped.messages, "prompt_ids": ids, "n_prompt": len(ids)} | tools

    def reference(self, row: Mapping[str, Any], answer: dict[str, Any] | None) -> dict[str, Any]:
        """The data's own answer to a prompt as ids; nothing when there is none that the template can hold."""
        limit = self.limits.max_reference_tokens
        if not limit or answer is None:
            return {}
        messages = [*row["messages"], answer]
        if special_token_in(self.specials, messages):
            return {}
        try:
            ids, spans = render_conversation(self.tokenizer, messages, self.ends, row.get("tools"), self.options)
        except (ChatError, MaskError):
            return {}
        found = ids[spans[-1][0] : spans[-1][1]]
        if spans[-1][0] != row["n_prompt"] or self.tokenizer.unk_token_id in found:
            return {}
        return {"reference_ids": found[:limit], "reference_cut": len(found) > limit}

    def samples(self, shaped: Shaped) -> list[dict[str, Any]]:
        """[{"input_ids", "loss_spans", "finish_reason", "turn"}] of the answers in a conversation of the target's
        own. RowSkipped or RowError when it cannot take them."""
        self._refuse_text(shaped)
        messages = shaped.messages
        while messages and messages[-1]["role"] != "assistant":
            messages = messages[:-1]  # what stands behind the last answer was never answered
        if not messages:
            raise RowSkipped("no_answer")
        try:
            found = render_samples(self.tokenizer, messages, self.ends, shaped.conversation.tools, self.options)
        except (ChatError, MaskError) as error:
            raise RowError("template", str(error)) from error
        for sample in found:
            self._refuse_unknown(sample.input_ids)
        rows = [row for sample in found if (row := self._cut(sample))]
        if not rows:
            raise RowSkipped("too_many_tokens", f"no answer begins within {self.longest_sample} tokens")
        if self.limits.max_samples is not None:
            rows.sort(key=lambda row: share(self.limits.seed, f"sample:{shaped.conversation.id}:{row['turn']}"))
            rows = sorted(rows[: self.limits.max_samples], key=lambda row: row["turn"] or 0)
        return rows

    def _cut(self, sample: Sample) -> dict[str, Any] | None:
        """The sample cut at the longest length; None when nothing trained is left. A cut answer has no end token."""
        length = min(len(sample.input_ids), self.longest_sample or len(sample.input_ids))
        spans = [[start, min(end, length)] for start, end in sample.loss_spans if start < length]
        if not spans:
            return None
        whole = spans == sample.loss_spans
        return {"input_ids": sample.input_ids[:length], "loss_spans": spans, "turn": sample.turn,
                "finish_reason": "stop" if whole else "length"}  # fmt: skip

    def _refuse_text(self, shaped: Shaped) -> None:
        try:
            json.dumps([shaped.messages, shaped.conversation.tools], ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise RowError("not_unicode", "lone surrogate in a call or a tool") from error
        if special := special_token_in(self.specials, shaped.messages, shaped.conversation.tools):
            raise RowSkipped("special_token_in_text", special)

    def _refuse_unknown(self, ids: list[int]) -> None:
        if self.tokenizer.unk_token_id is not None and self.tokenizer.unk_token_id in ids:
            raise RowSkipped("unknown_token", "the target's vocabulary cannot spell it")


def _declare(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose system text declares the tools, for templates that have no place for them."""
    said = messages[0]["content"] if messages and messages[0]["role"] == "system" else ""
    declared = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = f"You can call these functions:\n{declared}"
    system = {"role": "system", "content": f"{said}\n\n{text}" if said else text}
    return [system, *(messages[1:] if said else messages)]
