"""A sample as coloured, escaped HTML: what is trained on and what is masked."""

from __future__ import annotations

from html import escape
from typing import Any

from eagle3lab.data.spans import check_spans

# Okabe-Ito colours with dark ink on them: told apart by the colour-blind, and on light and dark pages.
_STYLES = {
    True: "background:#56B4E9;color:#000;border-bottom:2px solid #000",
    False: "background:#DDDDDD;color:#333",
}
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


def sample_html(
    tokenizer: Any, input_ids: list[int], loss_spans: list[list[int]], max_tokens: int = 300
) -> str:
    """HTML of a row, each run shown to its first `max_tokens` tokens. Whole runs are decoded, so that
    characters made of several tokens show as they are; specials are shown, and everything from the data is
    escaped."""
    parts = []
    for trained, ids in segments(input_ids, loss_spans):
        text = tokenizer.decode(
            ids[:max_tokens], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        more = f" … {len(ids) - max_tokens} more tokens" if len(ids) > max_tokens else ""
        title = f"{_NAMES[trained]}: {len(ids)} tokens"
        parts.append(f'<span style="{_STYLES[trained]}" title="{title}">{escape(text)}{more}</span>')
    trained_tokens = sum(end - start for start, end in loss_spans)
    legend = " ".join(f'<span style="{_STYLES[t]};padding:0 .5em">{_NAMES[t]}</span>' for t in (True, False))
    return (
        f'<div style="font-family:monospace">'
        f"<p>{legend} {trained_tokens} of {len(input_ids)} tokens are trained</p>"
        f'<div style="white-space:pre-wrap;overflow-wrap:anywhere">{"".join(parts)}</div></div>'
    )
