"""A finished conversation -> samples: token ids with loss spans over what the assistant generated, end token included.

Where every answer can be shown in one rendering, one sample holds them all. Where the template rewrites history or
drops the reasoning of finished turns, as Kimi's does, each answer is a sample of its own: the prompt that the server
saw, then what the target generated. Which of the two is found out by rendering, not by the name of the model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3lab.data.borders import token_borders
from eagle3lab.data.chat import ChatError, Message, Tools, end_token_ids, render_text
from eagle3lab.data.spans import check_spans

# A prompt that ends by opening a block (`<think>`), and a rendered answer that begins by closing it.
_OPENED = re.compile(r"<([\w|-]+)>\s*\Z")
_MARK = "qzmark"
_PROBE = [{"role": "user", "content": "Hi"}]


class HistoryRewritten(ChatError):
    """The rendering of a longer conversation does not go on from the shorter one's, or has lost a part of an answer."""


@dataclass(frozen=True)
class Sample:
    """One row to train on. `turn` is the message that is trained, None when all answers are."""

    input_ids: list[int]
    loss_spans: list[list[int]]
    turn: int | None = None


def render_samples(
    tokenizer: Any,
    messages: Sequence[Message],
    end_ids: set[int] | None = None,
    tools: Tools = None,
    options: Mapping[str, Any] | None = None,
) -> list[Sample]:
    """All answers of a finished conversation as samples; ChatError or MaskError when one cannot be shown whole."""
    ends = end_ids or end_token_ids(tokenizer)
    try:
        return [Sample(*render_conversation(tokenizer, messages, ends, tools, options))]
    except HistoryRewritten:
        turns = [turn for turn, message in enumerate(messages) if message["role"] == "assistant"]
        return [render_answer(tokenizer, messages, turn, ends, tools, options) for turn in turns]


def render_conversation(
    tokenizer: Any,
    messages: Sequence[Message],
    end_ids: set[int] | None = None,
    tools: Tools = None,
    options: Mapping[str, Any] | None = None,
) -> tuple[list[int], list[list[int]]]:
    """(input_ids, loss_spans) of a finished conversation in one rendering; a span covers one answer with its end.

    `end_ids` default to `end_token_ids(tokenizer)`. Raises HistoryRewritten when a rendering is no prefix of the
    next, or an answer's thought or calls are missing from it; ChatError when a token runs across an answer's border
    or an answer does not hold exactly one end token; MaskError for a mask that is all zero or all one.
    """
    ends = end_ids or end_token_ids(tokenizer)
    whole = render_text(tokenizer, messages, False, tools, options)
    borders = []
    for turn, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before, after = _around(tokenizer, messages, turn, tools, options)
        if not (after.startswith(before) and whole.startswith(after)):
            raise HistoryRewritten(f"message {turn}: the template rewrites earlier messages; make one sample an answer")
        if lost := _lost(tokenizer, messages[: turn + 1], tools, options):
            raise HistoryRewritten(f"message {turn}: the template leaves out its {lost}")
        borders += [len(before), len(after)]
    ids, found = token_borders(tokenizer, whole, borders)
    turns = [turn for turn, message in enumerate(messages) if message["role"] == "assistant"]
    starts_ends = zip(turns, found[::2], found[1::2], strict=True)
    spans = [_span(ids, start, end, ends, turn) for turn, start, end in starts_ends]
    check_spans(len(ids), spans, "conversation")
    return ids, spans


def render_answer(
    tokenizer: Any,
    messages: Sequence[Message],
    turn: int,
    end_ids: set[int],
    tools: Tools = None,
    options: Mapping[str, Any] | None = None,
) -> Sample:
    """The sample of one answer: the prompt as the server renders it, then the answer as it was generated.

    ChatError when the template cannot show the answer whole, or it does not hold exactly one end token.
    """
    message, shown = messages[turn], messages[: turn + 1]
    before, after = _around(tokenizer, messages, turn, tools, options)
    opening = before
    if not after.startswith(before):
        # The answer changes how the messages before it are rendered; by itself it is rendered the same.
        shown = [*_PROBE, message]
        opening, after = _around(tokenizer, shown, len(_PROBE), tools, options)
        if not after.startswith(opening):
            raise ChatError(f"message {turn}: the template does not render an answer after its own prompt")
    answer = after[len(opening) :]
    lost = _lost(tokenizer, shown, tools, options)
    if lost == "reasoning" and _closes(before, answer):
        answer = message["reasoning_content"] + answer  # the prompt opens the block that the finished answer closes
    elif lost:
        raise ChatError(f"message {turn}: the template leaves out its {lost}")
    ids, (start,) = token_borders(tokenizer, before + answer, [len(before)])
    span = _span(ids, start, len(ids), end_ids, turn)
    check_spans(len(ids), [span], f"message {turn}")
    return Sample(ids, [span], turn)


def _around(
    tokenizer: Any, messages: Sequence[Message], turn: int, tools: Tools, options: Mapping[str, Any] | None
) -> tuple[str, str]:
    """(the prompt that answer `turn` was generated from, the conversation up to that answer)."""
    if turn == 0:
        raise ChatError("message 0 is an answer without a prompt")
    before = render_text(tokenizer, messages[:turn], True, tools, options)
    return before, render_text(tokenizer, messages[: turn + 1], False, tools, options)


def _closes(before: str, answer: str) -> bool:
    opened = _OPENED.search(before)
    return bool(opened) and answer.lstrip().startswith(f"</{opened[1]}>")


def _lost(tokenizer: Any, messages: Sequence[Message], tools: Tools, options: Mapping[str, Any] | None) -> str | None:
    """The part of the last message, an answer, that its rendering does not show, or None.

    Found by rendering marks in place of its parts: a short text may stand in a rendering by chance. The reasoning is
    looked for last, because it alone can be restored.
    """
    answer, marks = dict(messages[-1]), {}
    if calls := answer.get("tool_calls"):
        answer["tool_calls"] = [_renamed(call, f"{_MARK}call{number}") for number, call in enumerate(calls)]
        marks = {f"{_MARK}call{n}": f"call of {call['function']['name']}" for n, call in enumerate(calls)}
    for part, name in (("content", "content"), ("reasoning_content", "reasoning")):
        if (answer.get(part) or "").strip():
            answer[part] = f"{_MARK}{name}"
            marks[answer[part]] = name
    rendered = render_text(tokenizer, [*messages[:-1], answer], False, tools, options)
    return next((told for mark, told in marks.items() if mark not in rendered), None)


def _renamed(call: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The call under another name, in its id too: some templates show the id alone."""
    function = call["function"]
    renamed = {"function": {**function, "name": name}}
    if isinstance(call.get("id"), str):
        renamed["id"] = call["id"].replace(function["name"], name)
    return {**call, **renamed}


def _span(ids: list[int], start: int, end: int, end_ids: set[int], turn: int) -> list[int]:
    found = [i for i in range(start, end) if ids[i] in end_ids]
    if len(found) != 1:
        raise ChatError(f"message {turn}: the answer holds {len(found)} end tokens, expected 1")
    return [start, found[0] + 1]
