"""Figures. Each function takes values, and `data`: the words that say on which data, model and setting they
were measured (shown under the title). Each returns a matplotlib Figure; nothing is shown or saved here.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from eagle3lab.analysis import style
from eagle3lab.analysis.accept import PositionAcceptance

MANY_SETS = 4  # above this, histograms on top of one another are not readable


def length_histogram(
    lengths: Mapping[str, Sequence[int]], data: str, unit: str = "tokens", limit: int | None = None
) -> Figure:
    """Distribution of row lengths per set, on a log axis. `limit` marks the longest length that is kept.

    Up to four sets as histograms, more as one strip a set (5 to 95 %, 25 to 75 %, median).
    """
    lengths = {name: np.asarray(values) for name, values in lengths.items() if len(values)}
    if not lengths:
        raise ValueError("no lengths to draw: every set is empty")
    if len(lengths) > MANY_SETS:
        figure, axis = _length_strips(lengths, data)
    else:
        figure, axis = _length_steps(lengths, data)
    axis.set_xscale("log")
    axis.set_xlabel(f"length ({unit})")
    if limit is not None:
        axis.axvline(limit, color=style.INK, linestyle="--", linewidth=1.2, label=f"limit {limit:,} {unit}")
    if axis.get_legend_handles_labels()[0]:
        style.legend_above(axis, 2)
    style.log_count_axis(axis.xaxis, *axis.get_xlim())
    return figure


def _length_steps(lengths, data):
    figure, axis = style.new_figure("Length distribution", data)
    least = max(1, min(v.min() for v in lengths.values()))
    bins = np.geomspace(least, max(v.max() for v in lengths.values()) + 1, 41)
    for (name, values), colour in zip(lengths.items(), style.SERIES, strict=False):
        label = f"{name}: {len(values):,} rows, median {np.median(values):,.0f}"
        weights = np.full(len(values), 1 / len(values))
        axis.hist(values, bins, weights=weights, histtype="stepfilled", color=colour, alpha=0.15)
        axis.hist(values, bins, weights=weights, histtype="step", color=colour, linewidth=1.8, label=label)
    axis.set_ylabel("share of the set's rows")
    style.percent_axis(axis)
    return figure, axis


def _length_strips(lengths, data):
    note = "Thin line: 5 to 95 % of the rows; thick line: 25 to 75 %; point: median."
    figure, axis = style.new_figure("Length distribution", data, height=1.2 + 0.3 * len(lengths), note=note)
    for row, values in enumerate(lengths.values()):
        low, lower, middle, upper, high = np.maximum(np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95]), 1)
        axis.plot([low, high], [row, row], color=style.BLUE, linewidth=1.4)
        axis.plot([lower, upper], [row, row], color=style.BLUE, linewidth=6, alpha=0.55, solid_capstyle="butt")
        axis.plot(middle, row, "o", color=style.INK)
    axis.set_yticks(range(len(lengths)), [f"{name} ({len(v):,})" for name, v in lengths.items()])
    axis.invert_yaxis()
    return figure, axis


def acceptance_by_position(positions: Mapping[str, PositionAcceptance], data: str) -> Figure:
    """Acceptance by draft position, one series a name: joint; conditional and marginal beside it."""
    dotted = any(share is not None for shares in positions.values() for share in shares.marginal)
    note = f"Right: {'solid = ' if dotted else ''}among the chains whose drafts before it are all right"
    note += "; dotted = whatever came before." if dotted else "."
    figure, (left, right) = style.new_figure("Acceptance by draft position", data, columns=2, height=3.4, note=note)
    longest, highest = max(len(shares.joint) for shares in positions.values()), 0.0
    for index, (name, shares) in enumerate(positions.items()):
        look = {
            "color": style.SERIES[index],
            "marker": style.MARKERS[index],
            "markersize": max(4, 10 - 2 * index),
        }
        _share_line(left, shares.joint, "-", **look)
        _share_line(right, shares.conditional, "-", label=f"{name}\n{shares.chains:,} chains", **look)
        if dotted:
            _share_line(right, shares.marginal, ":", **look)
        seen = (*shares.joint, *shares.conditional, *shares.marginal)
        highest = max([highest, *(share for share in seen if share is not None)])
    left.set_title("this draft and all before it right", fontsize=10, loc="left")
    right.set_title("this draft right", fontsize=10, loc="left")
    for axis in (left, right):
        axis.set_xlabel("draft position")
        axis.set_ylim(-0.02 * highest, min(1.02, 1.12 * highest) or 1)
        axis.set_xlim(0.7, longest + 0.3)
        axis.set_xticks(range(1, longest + 1))
        style.percent_axis(axis)
    left.set_ylabel("share of chains")
    right.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), labelspacing=1.0, frameon=False, fontsize=9)
    return figure


def _share_line(axis, shares, line, **look):
    values = [np.nan if share is None else share for share in shares]
    axis.plot(range(1, len(values) + 1), values, line, fillstyle="none", **look)


def accept_histogram(histograms: Mapping[str, Sequence[int]], data: str) -> Figure:
    """Share of verifications by drafts accepted; a histogram counts those accepting exactly 0, 1, 2 ..."""
    figure, axis = style.new_figure("Drafts accepted by one verification", data)
    width = 0.8 / len(histograms)
    for index, (name, counts) in enumerate(histograms.items()):
        counts = np.asarray(counts)
        share = counts / counts.sum()
        accept_length = 1 + float(share @ np.arange(len(share)))
        place = np.arange(len(share)) + (index - (len(histograms) - 1) / 2) * width
        label = f"{name}: {counts.sum():,} verifications, accept length {accept_length:.2f}"
        bars = axis.bar(place, share, width * 0.92, color=style.SERIES[index], label=label)
        if len(histograms) <= 2:
            axis.bar_label(bars, [f"{s:.0%}" for s in share], padding=2, fontsize=8)
    axis.set_xlabel("drafts accepted")
    axis.set_ylabel("share of verifications")
    axis.grid(visible=False, axis="x")
    axis.margins(y=0.1)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.percent_axis(axis)
    style.legend_above(axis, 1)
    return figure
