"""Figures of a dispatch at work: how long the answers are, how fast they come, and what the time left was taken for.

`data`: the words that say which data, model and setting are shown. E: bin edges.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from eagle3lab.analysis import style
from eagle3lab.engines.dispatch.survival import kaplan_meier, survival
from eagle3lab.engines.dispatch.view import SetView, View

MANY_SETS = 4  # above this, curves on top of one another are not readable
SHARES = (0.95, 0.75, 0.5, 0.25, 0.05)


def live_figure(view: View, history: Sequence[Mapping[str, Any]], data: str) -> Figure:
    """Left: answer lengths by set, with the unfinished answers counted as longer than they are now (Kaplan-Meier).
    Right: tokens per second over time, from the metric rows of the views so far.

    Up to four sets as curves, more as one strip a set. Raises ValueError before any answer has ended.
    """
    sets = [one for one in view.sets if one.done]
    if not sets:
        raise ValueError("no answer has ended: there is nothing to draw yet")
    note = "Lengths by Kaplan-Meier"
    if view.on_way:
        note += f": {view.on_way:,} unfinished answers count as longer than they are now"
    if len(sets) > MANY_SETS:
        note += ". Thin: 5 to 95 % of the answers; thick: 25 to 75 %; point: median; arrow: beyond what is known yet"
    title = f"Answers: {view.done:,} of {view.rows:,} rows"
    height = max(3.3, 1.0 + 0.26 * len(sets)) if len(sets) > MANY_SETS else 3.6
    figure, (left, right) = style.new_figure(title, data, columns=2, height=height, note=f"{note}.")
    (_strips if len(sets) > MANY_SETS else _curves)(left, sets)
    seconds, unit, size = _time(history)
    right.plot(seconds / size, [row["tokens_per_second"] for row in history], color=style.BLUE)
    right.set_xlabel(f"time ({unit})")
    right.set_ylabel("tokens per second")
    right.set_ylim(bottom=0)
    right.set_xlim(left=0)
    style.count_axis(right.yaxis)
    return figure


def time_left_figure(history: Sequence[Mapping[str, Any]], data: str) -> Figure:
    """The whole time of the dispatch as it was estimated at every moment, with its range, and the time passed.

    Raises ValueError when no metric row has an estimate.
    """
    seconds, unit, size = _time(history)
    known = [i for i, row in enumerate(history) if row["seconds_left"] is not None]
    if not known:
        raise ValueError("no metric row has an estimate of the time left yet")
    passed = seconds[known] / size
    told = [(history[i]["seconds_left"], *history[i]["seconds_left_range"]) for i in known]
    left, low, high = np.array(told).T / size
    note = "Estimate and time passed meet at the end. The range is meant to hold nine times of ten, at speeds as seen."
    figure, axis = style.new_figure("Time of the whole dispatch, as estimated on the way", data, note=note)
    axis.fill_between(passed, passed + low, passed + high, color=style.BLUE, alpha=0.18, linewidth=0, label="range")
    few = "o" if len(known) < 3 else None  # a line of one point is not seen
    axis.plot(passed, passed + left, color=style.BLUE, marker=few, label="estimate")
    axis.plot(passed, passed, color=style.INK, linestyle="--", linewidth=1.2, label="time passed")
    axis.set_xlabel(f"time passed ({unit})")
    axis.set_ylabel(f"time of the whole dispatch ({unit})")
    axis.set_ylim(0, 1.05 * min((passed + high).max(), 2.5 * (passed + left)[-1]))
    axis.set_xlim(left=0)
    style.legend_above(axis, 3)
    return figure


def _curves(axis, sets: Sequence[SetView]) -> None:
    for one, colour in zip(sets, style.SERIES, strict=False):
        edges_E, longer_E = _longer(one)
        axis.step(
            edges_E[1:], longer_E[1:], where="post", color=colour, label=f"{one.set}: {one.done:,} of {one.rows:,}"
        )
    axis.set_ylabel("answers longer than that")
    style.percent_axis(axis)
    axis.set_ylim(0, 1.02)
    _log_tokens(axis, sets)
    style.legend_above(axis, 1)


def _strips(axis, sets: Sequence[SetView]) -> None:
    for row, one in enumerate(sets):
        edges_E, longer_E = _longer(one)
        low, lower, middle, upper, high = (_where(edges_E, longer_E, share) for share in SHARES)
        end = edges_E[-1]
        axis.plot([low or 1, high or end], [row, row], color=style.BLUE, linewidth=1.4)
        axis.plot(
            [lower or 1, upper or end], [row, row], color=style.BLUE, linewidth=6, alpha=0.55, solid_capstyle="butt"
        )
        if middle:
            axis.plot(middle, row, "o", color=style.INK)
        if not high:
            axis.plot(end, row, ">", color=style.BLUE, markersize=4)
    axis.set_yticks(range(len(sets)), [f"{one.set} ({one.done:,})" for one in sets])
    axis.invert_yaxis()
    _log_tokens(axis, sets)


def _longer(one: SetView) -> tuple[np.ndarray, np.ndarray]:
    """Edges, and the share of answers longer than each, as far as anything is known."""
    known = int(np.flatnonzero(one.seen.at_risk_B > 0)[-1]) + 1
    return one.seen.edges_E[: known + 1], survival(kaplan_meier(one.seen))[: known + 1]


def _where(edges_E: np.ndarray, longer_E: np.ndarray, share: float) -> float | None:
    """The length that this share of the answers exceeds; None where it is beyond what is known."""
    below = np.flatnonzero(longer_E <= share + 1e-12)
    return max(1.0, float(edges_E[below[0]])) if len(below) else None


def _log_tokens(axis, sets: Sequence[SetView]) -> None:
    caps = {one.max_tokens for one in sets}
    axis.set_xscale("log")
    axis.set_xlim(1, 1.25 * max(caps))
    for cap in sorted(caps):
        axis.axvline(cap, color=style.INK, linestyle="--", linewidth=1.0)
    axis.set_xlabel("answer length (tokens); dashed: max_tokens")
    style.log_count_axis(axis.xaxis, 1, 1.25 * max(caps))


def _time(history: Sequence[Mapping[str, Any]]) -> tuple[np.ndarray, str, float]:
    """Seconds over all starts of the dispatch (each begins at 0), and the unit to show them in, in seconds."""
    seconds = np.array([row["seconds"] for row in history], dtype=float)
    steps = np.diff(seconds, prepend=0.0)
    seconds = np.where(steps < 0, seconds, steps).cumsum()
    longest = seconds[-1] if len(seconds) else 0.0
    unit, size = ("hours", 3600.0) if longest > 7200 else ("minutes", 60.0) if longest > 240 else ("seconds", 1.0)
    return seconds, unit, size
