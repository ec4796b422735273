"""Samples as coloured, escaped HTML, and masks in numbers: what is trained on and what is masked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from html import escape
from itertools import chain, islice
from pathlib import Path
from typing import Any

from eagle3lab.data.prepare import read_prompts, read_tokenized
from eagle3lab.data.quality import loop_of
from eagle3lab.data.spans import check_spans
from eagle3lab.data.summary import quantiles

# Okabe-Ito colours with dark ink on them: told apart by the colour-blind, and on light and dark pages.
_STYLES = {
    True: "background:#56B4E9;color:#000;border-bottom:2px solid #000",
    False: "background:#DDDDDD;color:#333",
}
_APART = "unicode-bidi:isolate"
_NAMES = {True: "trained", False: "masked"}


def segments(input_ids: list[int], loss_spans: list[list[int]]) -> list[tuple[bool, list[int]]]:
    """The row as runs of (trained?, ids), in order; every token is in exactly one run."""
    check_spans(len(input_ids), loss_spans)
    runs, at = [], 0
    for start, end in loss_spans:
        runs += [(False, input_ids[at:start]), (True, input_ids[start:end])]
        at = end
    runs.append((False, input_ids[at:]))
    return [(trained, ids) for trained, ids in runs if ids]


def sample_html(tokenizer: Any, input_ids: list[int], loss_spans: list[list[int]], max_tokens: int = 300) -> str:
    """HTML of a row, each run shown to its first `max_tokens` tokens. Whole runs are decoded, so that
    characters made of several tokens show as they are; specials are shown. Everything from the data is escaped, and
    kept apart from the page around it: a character that turns the writing direction turns its own run only."""
    parts = []
    for trained, ids in segments(input_ids, loss_spans):
        text = tokenizer.decode(ids[:max_tokens], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        more = f" … {len(ids) - max_tokens} more tokens" if len(ids) > max_tokens else ""
        title = f"{_NAMES[trained]}: {len(ids)} tokens"
        parts.append(f'<span style="{_STYLES[trained]};{_APART}" title="{title}">{escape(text)}{more}</span>')
    trained_tokens = sum(end - start for start, end in loss_spans)
    legend = " ".join(f'<span style="{_STYLES[t]};padding:0 .5em">{_NAMES[t]}</span>' for t in (True, False))
    return (
        f'<div style="font-family:monospace">'
        f"<p>{legend} {trained_tokens} of {len(input_ids)} tokens are trained</p>"
        f'<div style="white-space:pre-wrap;overflow-wrap:anywhere">{"".join(parts)}</div></div>'
    )


def first_samples(prepared: str | Path, names: Iterable[str]) -> list[dict[str, Any]]:
    """The first row with an answer of each prepared set, in the shape of a corpus row: a sample of the target's own, or
    a prompt with the data's answer. Sets whose answers are still to be written have none."""
    found = []
    for name in names:
        rows = chain(read_tokenized(Path(prepared) / name), map(_with_reference, read_prompts(Path(prepared) / name)))
        found += islice(filter(None, rows), 1)
    return found


def _with_reference(prompt: Mapping[str, Any]) -> dict[str, Any] | None:
    if not prompt.get("reference_ids"):
        return None
    ids = [*prompt["prompt_ids"], *prompt["reference_ids"]]
    row = {"id": f"{prompt['id']}-reference", "set": prompt["set"], "split": prompt["split"], "origin": "reference"}
    finish = "length" if prompt["reference_cut"] else "stop"
    return row | {"input_ids": ids, "loss_spans": [[prompt["n_prompt"], len(ids)]], "finish_reason": finish}


def normal_and_looping(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The first corpus row whose last answer ended by itself, without a loop (where there is none, the first cut one),
    and the first whose last answer ends in a loop; those of the two that there are."""
    first: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        start, end = row["loss_spans"][-1]
        finish = "stop" if row["finish_reason"] == "stop" else "length"
        loop = loop_of({"output_ids": row["input_ids"][start:end], "finish_reason": finish})
        first.setdefault("loop" if loop else finish, row)
        if "stop" in first and "loop" in first:
            break
    return [row for row in (first.get("stop", first.get("length")), first.get("loop")) if row]


def samples_html(tokenizer: Any, rows: Iterable[Mapping[str, Any]], max_tokens: int = 300) -> str:
    """HTML of several corpus rows, each under its id, its set and its finish reason."""
    parts = []
    for row in rows:
        about = " · ".join(str(row[name]) for name in ("id", "set", "split", "finish_reason") if name in row)
        body = sample_html(tokenizer, list(row["input_ids"]), row["loss_spans"], max_tokens)
        parts.append(f"<details open><summary>{escape(about)}</summary>{body}</details>")
    return "".join(parts)


def mask_statistics(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """set -> {"rows", "tokens", "trained", "trained_share", "answers", "answer_tokens", "open_end"} of corpus rows,
    streaming.

    trained: tokens with loss; answers: loss spans; answer_tokens: quantiles of their lengths; open_end: rows whose last
    answer was cut off (finish_reason other than "stop"), so that its end is not learned. MaskError for a bad mask.
    """
    counts: dict[str, Counter] = {}
    lengths: dict[str, list[int]] = {}
    for row in rows:
        check_spans(len(row["input_ids"]), row["loss_spans"], row["id"])
        found = [end - start for start, end in row["loss_spans"]]
        count = counts.setdefault(row["set"], Counter())
        count.update(rows=1, tokens=len(row["input_ids"]), trained=sum(found), answers=len(found))
        count["open_end"] += row["finish_reason"] != "stop"
        lengths.setdefault(row["set"], []).extend(found)
    return {
        name: {key: count[key] for key in ("rows", "tokens", "trained", "answers", "open_end")}
        | {"trained_share": count["trained"] / count["tokens"], "answer_tokens": quantiles(lengths[name])}
        for name, count in counts.items()
    }
