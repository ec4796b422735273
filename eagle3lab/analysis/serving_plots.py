"""Figures of the benchmark. As in `plots.py`, `data` says what was measured on what."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from eagle3lab.analysis import style
from eagle3lab.analysis.bench_row import BenchRow, not_measurable
from eagle3lab.analysis.breakeven import CycleCost, conditions, what_if
from eagle3lab.draft.chain import chain_draft_tokens


def serving_bars(rows: Sequence[BenchRow], data: str) -> Figure:
    """Speed of every setting, with the baseline of the same run as a line."""
    baseline, settings = _split(rows)
    note = (
        f"Bars: median of {baseline.rounds} rounds over {baseline.prompts} prompts; whiskers: slowest and "
        "fastest round. In the bars: speed-up and accept length (bonus token included)."
    )
    figure, axis = style.new_figure("Decoding speed with and without speculation", data, note=note)
    speeds = np.array([row.tok_s for row in settings])
    spread = np.array(
        [[row.tok_s - row.tok_s_low for row in settings], [row.tok_s_high - row.tok_s for row in settings]]
    )
    colours = [style.BLUE if row.speedup > 1 else style.VERMILLION for row in settings]
    axis.bar(
        range(len(settings)),
        speeds,
        0.62,
        color=colours,
        yerr=spread,
        error_kw={"ecolor": style.INK, "elinewidth": 1.2, "capsize": 3},
    )
    top = 1.12 * max(row.tok_s_high for row in rows)
    for place, row in enumerate(settings):
        inside = row.tok_s > 0.25 * top  # else the words would leave the bar
        axis.annotate(
            f"{row.speedup:.2f}x\n{row.accept_length:.2f}",
            (place, 0 if inside else row.tok_s_high),
            (0, 6),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=9,
            weight="bold",
            color="white" if inside else style.INK,
        )
    axis.axhspan(baseline.tok_s_low, baseline.tok_s_high, color=style.INK, alpha=0.12, linewidth=0)
    axis.axhline(baseline.tok_s, color=style.INK, linestyle="--", linewidth=1.4)
    handles = [
        Patch(color=style.BLUE, label="faster than the baseline"),
        Patch(color=style.VERMILLION, label="slower"),
        axis.plot([], [], "--", color=style.INK, linewidth=1.4, label=f"no speculation, {baseline.tok_s:.1f} tok/s")[0],
    ]
    _setting_axis(axis, settings)
    axis.set_ylabel("output tokens per second")
    axis.set_ylim(0, top)
    style.legend_above(axis, 3, handles=handles)
    return figure


def break_even_chart(rows: Sequence[BenchRow], data: str) -> Figure:
    """Accept length of each setting against the one at which it would be as fast as the baseline; alone where the
    speeds carry no break-even."""
    baseline, settings = _split(rows)
    note = (
        f"Break-even = cost of a cycle / cost of a plain step ({baseline.cycle_ms:.1f} ms), both from this "
        "run. The number is the distance of the accept length from it."
    )
    if why := not_measurable(rows, baseline.condition):
        note = f"Break-even is not measurable: {why}."
    figure, axis = style.new_figure("Accept length against break-even", data, note=note)
    for place, row in enumerate(settings):
        if why:
            axis.plot(place, row.accept_length, "o", color=style.INK, markersize=9)
            continue
        colour = style.BLUE if row.accept_length > row.break_even else style.VERMILLION
        axis.plot(
            [place, place],
            [row.break_even, row.accept_length],
            color=colour,
            linewidth=5,
            alpha=0.45,
            solid_capstyle="butt",
        )
        axis.plot(place, row.accept_length, "o", color=colour, markersize=9)
        axis.plot(place, row.break_even, "_", color=style.INK, markersize=26, markeredgewidth=2)
        axis.annotate(
            f"{row.accept_length - row.break_even:+.2f}",
            (place, (row.accept_length + row.break_even) / 2),
            (20, 0),
            textcoords="offset points",
            va="center",
            color=style.INK,
            fontsize=9,
        )
    handles = (
        [axis.plot([], [], "o", color=style.INK, markersize=9, label="accept length")[0]]
        if why
        else [
            axis.plot([], [], "_", color=style.INK, markersize=16, markeredgewidth=2, label="break-even")[0],
            axis.plot([], [], "o", color=style.BLUE, markersize=9, label="accept length, pays")[0],
            axis.plot([], [], "o", color=style.VERMILLION, markersize=9, label="accept length, does not pay")[0],
        ]
    )
    _setting_axis(axis, settings)
    values = [row.accept_length for row in settings] + [row.break_even for row in settings if not why]
    axis.set_ylim(min(0.9, min(values) - 0.1), max(values) + 0.12 * (max(values) - 0.9) + 0.1)
    axis.set_ylabel("tokens per verification")
    style.legend_above(axis, 3, handles=handles)
    return figure


def what_if_chart(cost: CycleCost, rows: Sequence[BenchRow], num_steps: Sequence[int], data: str) -> Figure:
    """Speed-up as a function of accept length, from the fitted cost: a line for each chain of num_steps and for each
    tree that was measured. The measured settings as points."""
    measured = _split([row for row in rows if row.condition == cost.condition])[1]
    lines = {(n, chain_draft_tokens(n)): f"num_steps {n}" for n in num_steps}
    trees = [row for row in measured if row.topk > 1]
    lines |= {(row.num_steps, row.num_draft_tokens): row.setting for row in trees}
    split = "" if cost.token_ms is not None else " Only chains were measured: nothing is known of trees."
    figure, axis = style.new_figure(
        "Speed-up, if the accept length were", data, note=f"Fit: {cost}. Dashed: longer than measured.{split}"
    )
    for (setting, name), colour in zip(lines.items(), style.ordered_colours(len(lines)), strict=True):
        lengths = np.linspace(1, setting[0] + 1, 40)
        line = "-" if cost.measured(*setting) else "--"
        gains = what_if(cost, lengths, [setting])[0]
        axis.plot(lengths, gains, line, color=colour, label=f"{name}: pays above {cost.break_even(*setting):.2f}")
    for row in measured:
        axis.plot(row.accept_length, row.speedup, "o", color=style.INK, fillstyle="none")
    axis.axhline(1.0, color=style.INK, linestyle="--", linewidth=1.4)
    axis.plot([], [], "o", color=style.INK, fillstyle="none", label="measured")
    axis.set_xlabel("accept length (tokens per verification)")
    axis.set_ylabel("speed against plain decoding")
    axis.set_ylim(bottom=0)
    style.legend_above(axis, 2)
    return figure


def grid_chart(rows: Sequence[BenchRow], data: str) -> Figure:
    """Speed-up of every setting in every condition: a line a condition, with the spread of the rounds' own ratios."""
    settings = list(dict.fromkeys(row.setting for row in rows if row.accept_length is not None))
    note = "Each against plain decoding in the same condition and rounds; whiskers: lowest and highest round."
    figure, axis = style.new_figure("Speed-up by setting and condition", data, note=note)
    found = conditions(rows)
    for number, (condition, colour) in enumerate(zip(found, style.ordered_colours(len(found)), strict=True)):
        here = [row for row in rows if row.condition == condition and row.accept_length is not None]
        places = [settings.index(row.setting) + 0.08 * (number - (len(found) - 1) / 2) for row in here]
        gains = np.array([row.speedup for row in here])
        spread = np.array([[row.speedup - row.speedup_low, row.speedup_high - row.speedup] for row in here]).T
        spread = np.maximum(spread, 0)  # the ratio of the medians may lie outside the rounds' own ratios
        marker = style.MARKERS[number % len(style.MARKERS)]
        axis.errorbar(places, gains, spread, fmt=marker, color=colour, capsize=3, linewidth=1.2, label=str(condition))
    axis.axhline(1.0, color=style.INK, linestyle="--", linewidth=1.4)
    axis.set_xticks(range(len(settings)), [name.replace(", ", "\n") for name in settings])
    axis.set_xlim(-0.6, len(settings) - 0.4)
    axis.set_ylim(bottom=0)
    axis.grid(visible=False, axis="x")
    axis.set_xlabel("setting")
    axis.set_ylabel("speed against plain decoding")
    style.legend_above(axis, 2)
    return figure


def _split(rows):
    baseline = [row for row in rows if row.accept_length is None]
    settings = [row for row in rows if row.accept_length is not None]
    if len(baseline) != 1 or not settings:
        raise ValueError(f"expected one baseline row and at least one setting, got {[row.setting for row in rows]}")
    return baseline[0], settings


def _setting_axis(axis, settings):
    axis.set_xticks(range(len(settings)), [f"{row.num_steps}\n({row.num_draft_tokens})" for row in settings])
    axis.set_xlim(-0.6, len(settings) - 0.4)
    axis.set_xlabel("num_steps (num_draft_tokens)")
    axis.grid(visible=False, axis="x")
