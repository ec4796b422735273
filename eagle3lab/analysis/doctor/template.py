"""Checks of a target's tokenizer and chat template: what a prompt looks like here, there and tomorrow."""

from collections.abc import Iterable, Mapping
from typing import Any

from eagle3lab.analysis.doctor.commands import AGAIN
from eagle3lab.analysis.doctor.report import Check, judged
from eagle3lab.data.chat import (
    ChatError,
    check_as_served,
    render_prompt,
    render_text,
    thinking_options,
    token_ids,
)

CLOCKS = ("strftime_now", "datetime", "now()")
PROBE = [{"role": "user", "content": "Hi, what is 2+2?"}]


def check_renders_as_served(tokenizer: Any) -> Check:
    """Our prompt ids are those of the tokenizer's own apply_chat_template, which is what a server calls."""
    name, expected = "template as served", "the ids of apply_chat_template"
    try:
        check_as_served(tokenizer)
    except ChatError as error:
        return Check(
            name, str(error), expected, "fault", "set the tokenizer's own specials aside (add_bos_token=false)"
        )
    return Check(name, "a prompt has the same ids", expected, "ok")


def check_template_clock(tokenizer: Any) -> Check:
    """A template that writes today's date gives other prompts when serving than the drafter was trained on."""
    name, expected = "template without a clock", "the same prompt every day"
    clocks = [word for word in CLOCKS if word in str(tokenizer.chat_template)]
    remedy = "give the date in your own system prompt, the same in the data and in serving"
    found = f"the template reads the date ({', '.join(clocks)})" if clocks else "no date in the template"
    return judged(name, found, expected, "warning" if clocks else "ok", remedy)


def check_prompts_rendered(tokenizer: Any, rows: Iterable[Mapping], options: Mapping | None = None) -> Check:
    """Prepared prompts ({"id", "messages", "prompt_ids", "tools"?}) have the ids that the template gives today.

    A prompt may have been prepared with thinking on or off: one of the template's switches must give its ids.
    """
    name, expected = "prompts as the template renders them", "the same ids"
    remedy = "prepare the data again (01_data_prep) with this target and its template"
    count, differing = 0, []
    switches = [options or {}, *(thinking_options(way) for way in ("on", "off"))]
    for row in rows:
        count += 1
        rendered = (_rendered(tokenizer, row, way) for way in switches)
        if not any(ids == list(row["prompt_ids"]) for ids in rendered):
            differing.append(row["id"])
    if not count:
        remedy, command = "prepare the data first (01_data_prep)", f"{AGAIN} --only data_prep"
        return Check(name, "no prompts", expected, "not checked", remedy, command)
    found = f"{len(differing)} of {count} differ" + (f", e.g. {differing[0]}" if differing else "")
    return judged(name, found, expected, "fault" if differing else "ok", remedy)


def _rendered(tokenizer, row, options) -> list[int] | None:
    try:
        return render_prompt(tokenizer, row["messages"], row.get("tools"), options)
    except ChatError:
        return None


def openings(tokenizer: Any) -> list[list[int]]:
    """The ids with which the template opens the assistant's turn, which every prompt ends with: one list for each way
    that thinking can be switched. Empty where the template opens no turn."""
    found = []
    for way in ("default", "on", "off"):
        options = thinking_options(way)
        turn = token_ids(tokenizer, render_text(tokenizer, PROBE, False, options=options))
        opened = token_ids(tokenizer, render_text(tokenizer, PROBE, True, options=options))
        opening = opened[len(turn) :]
        if opened[: len(turn)] == turn and opening and opening not in found:
            found.append(opening)
    return found
