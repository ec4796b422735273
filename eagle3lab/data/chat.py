"""Messages -> token ids, with loss spans whose borders are proven by rendering again.

The text is rendered with the chat template and tokenised without extra specials, as a server does it. No
offsets are used: a border is where the ids of a shorter rendering end, and the shorter one must be a prefix
of the longer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle3lab.data.spans import check_spans

Message = Mapping[str, Any]


class ChatError(ValueError):
    """Messages that the template cannot render, or renders so that the borders of the answers are lost."""


def load_tokenizer(folder: str | Path) -> Any:
    """The tokenizer of a target folder; ChatError when it has no chat template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    if not tokenizer.chat_template:
        raise ChatError(f"{folder}: the tokenizer has no chat template; put one into chat_template.jinja")
    return tokenizer


def end_token_ids(tokenizer: Any, generation_config: Any = None) -> set[int]:
    """Ids that end an answer: the tokenizer's eos and those of the generation config.

    `generation_config` is a GenerationConfig, its dict, the target's folder (generation_config.json, else
    config.json is read) or None. ChatError when there is no end token at all.
    """
    if isinstance(generation_config, str | Path):
        files = [Path(generation_config) / name for name in ("generation_config.json", "config.json")]
        found = [json.loads(f.read_text(encoding="utf-8")) for f in files if f.is_file()]
        generation_config = next((c for c in found if c.get("eos_token_id") is not None), {})
    if isinstance(generation_config, Mapping):
        configured = generation_config.get("eos_token_id")
    else:
        configured = getattr(generation_config, "eos_token_id", None)
    ids = {configured} if isinstance(configured, int) else set(configured or ())
    if tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    if not ids:
        raise ChatError("neither the tokenizer nor the generation config names an end token")
    return ids


def render_text(tokenizer: Any, messages: list[Message], add_generation_prompt: bool) -> str:
    """The chat template's text; ChatError with the template's own words when it refuses the messages."""
    from jinja2 import TemplateError

    if not messages:
        raise ChatError("empty conversation: there is no message to render")
    try:
        return tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=add_generation_prompt
        )
    except TemplateError as error:
        roles = ", ".join(str(m.get("role")) for m in messages)
        raise ChatError(f"the chat template refuses the messages ({roles}): {error}") from error


def token_ids(tokenizer: Any, text: str) -> list[int]:
    """Ids of a rendered text, without the specials a tokenizer would add by itself (the template holds
    them)."""
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def render_prompt(tokenizer: Any, messages: list[Message]) -> list[int]:
    """Ids of the messages up to the point where the target starts to answer."""
    return token_ids(tokenizer, render_text(tokenizer, messages, add_generation_prompt=True))


def special_tokens(tokenizer: Any) -> list[str]:
    """The texts of a tokenizer's special tokens."""
    return [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]


def special_token_in(specials: list[str], messages: list[Message]) -> str | None:
    """A special token that stands as text in a message (it would forge the template's structure), or None."""
    return next((s for s in specials for m in messages if s in m["content"]), None)


def render_conversation(
    tokenizer: Any, messages: list[Message], end_ids: set[int] | None = None
) -> tuple[list[int], list[list[int]]]:
    """(input_ids, loss_spans) of a finished conversation; a span covers one answer with its end token.

    `end_ids` default to `end_token_ids(tokenizer)`. Raises ChatError when a rendering is not a prefix of the
    next (the template rewrites history: make one sample an answer) or an answer does not hold exactly one end
    token, and MaskError for a mask that is all zero or all one.
    """
    ends = end_ids or end_token_ids(tokenizer)
    whole_text = render_text(tokenizer, messages, add_generation_prompt=False)
    whole = token_ids(tokenizer, whole_text)
    spans = []
    for turn, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        if turn == 0:
            raise ChatError("message 0 is an answer without a prompt")
        before_text = render_text(tokenizer, messages[:turn], add_generation_prompt=True)
        after_text = render_text(tokenizer, messages[: turn + 1], add_generation_prompt=False)
        before = token_ids(tokenizer, before_text)
        after = whole if after_text == whole_text else token_ids(tokenizer, after_text)
        if not (after_text.startswith(before_text) and whole_text.startswith(after_text)):
            raise ChatError(
                f"message {turn}: the template rewrites earlier messages; make one sample an answer"
            )
        if after[: len(before)] != before or whole[: len(after)] != after:
            raise ChatError(f"message {turn}: tokens run across the border of the answer")
        found = [i for i in range(len(before), len(after)) if after[i] in ends]
        if len(found) != 1:
            raise ChatError(f"message {turn}: the answer holds {len(found)} end tokens, expected 1")
        spans.append([len(before), found[0] + 1])
    check_spans(len(whole), spans, "conversation")
    return whole, spans
