"""Messages -> text and token ids, by the target's chat template, as a server renders them.

The text is rendered with the chat template and tokenised without extra specials. `options` are the template's own
switches (see `thinking_options`), `tools` the functions that the template declares.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]] | None


class ChatError(ValueError):
    """Messages that the template cannot render, or renders so that something is lost."""


def load_tokenizer(folder: str | Path, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a target folder; ChatError when it has no chat template.

    `trust_remote_code` runs the Python code that lies in the folder (Kimi's tokenizer is such code).
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
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


def thinking_options(thinking: str) -> dict[str, bool]:
    """Template options for "default", "on" or "off": Kimi's templates read `thinking`, Qwen's `enable_thinking`."""
    if thinking not in ("default", "on", "off"):
        raise ValueError(f"thinking is {thinking!r}; possible: default, on, off")
    return {} if thinking == "default" else dict.fromkeys(("thinking", "enable_thinking"), thinking == "on")


def render_text(
    tokenizer: Any,
    messages: Sequence[Message],
    add_generation_prompt: bool,
    tools: Tools = None,
    options: Mapping[str, Any] | None = None,
) -> str:
    """The chat template's text; ChatError with the template's own words when it refuses the messages."""
    from jinja2 import TemplateError

    if not messages:
        raise ChatError("empty conversation: there is no message to render")
    try:
        return tokenizer.apply_chat_template(
            list(messages),
            tools=list(tools) if tools else None,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            **(options or {}),
        )
    except (TemplateError, TypeError, KeyError) as error:  # templates written in Python raise their own kinds
        roles = ", ".join(str(m.get("role")) for m in messages)
        raise ChatError(f"the chat template refuses the messages ({roles}): {error}") from error


def token_ids(tokenizer: Any, text: str) -> list[int]:
    """Ids of a rendered text, without the specials a tokenizer would add by itself (the template holds
    them)."""
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def render_prompt(
    tokenizer: Any, messages: Sequence[Message], tools: Tools = None, options: Mapping[str, Any] | None = None
) -> list[int]:
    """Ids of the messages up to the point where the target starts to answer.

    ChatError when the template leaves out what the system, the user or a tool says, or the tools.
    """
    text = render_text(tokenizer, messages, True, tools, options)
    for number, message in enumerate(messages):
        if message["role"] != "assistant" and message["content"].strip() not in text:
            raise ChatError(f"the chat template leaves out message {number} ({message['role']})")
    if tools and text == render_text(tokenizer, messages, True, None, options):
        raise ChatError("the chat template leaves out the tools: let a system text declare them (tools=system)")
    return token_ids(tokenizer, text)


def check_as_served(tokenizer: Any) -> None:
    """ChatError unless a prompt has the same ids here as where a server tokenises it: by the tokenizer's own
    apply_chat_template, or by `encode` of the rendered text (SGLang leaves `add_special_tokens` out where the
    tokenizer adds none, and a slow tokenizer may then take another path)."""
    probe = [{"role": "user", "content": "Hi, what is 2+2?\n\n  Ünï 日本: def f(x):\n\treturn x"}]
    ours, text = render_prompt(tokenizer, probe), render_text(tokenizer, probe, True)
    template = tokenizer.apply_chat_template(probe, tokenize=True, add_generation_prompt=True, return_dict=False)
    served = {"apply_chat_template": template, "encode": tokenizer.encode(text, add_special_tokens=False)}
    if not tokenizer.encode(""):
        served["encode without options"] = tokenizer.encode(text)
    for way, ids in served.items():
        if list(ids) != ours:
            raise ChatError(f"the tokenizer's own {way} gives other ids than ours: {list(ids)} and {ours}")


def special_tokens(tokenizer: Any) -> list[str]:
    """The texts of a tokenizer's special tokens."""
    return [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]


def special_token_in(specials: list[str], messages: Sequence[Message], tools: Tools = None) -> str | None:
    """A special token that stands as text in a message or a tool (it would forge the template's structure), or
    None."""
    return next((s for text in _texts([list(messages), list(tools or ())]) for s in specials if s in text), None)


def _texts(value: Any) -> Iterator[str]:
    """Every text in nested lists and mappings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts([key, item])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
