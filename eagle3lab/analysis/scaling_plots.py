"""Figures of a scaling study. As in `plots.py`, `data` says what was measured on what."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from eagle3lab.analysis import style
from eagle3lab.analysis.accept import bootstrap_interval
from eagle3lab.analysis.scaling import FAR, Needed, ScalingFit, ScalingPoint
from eagle3lab.analysis.tables import human_count


def scaling_curve(
    points: Sequence[ScalingPoint],
    fit: ScalingFit,
    data: str,
    unit: str = "training tokens",
    needed: Sequence[tuple[str, Needed]] = (),
) -> Figure:
    """Accept length against the amount of data (log axis): points, fit, band, and where those needed, each with its
    name ("break-even", "wanted"), are reached."""
    low, high = fit.slope_interval
    note = f"Slope {fit.slope:+.2f} [{low:+.2f}, {high:+.2f}] per tenfold {unit}. "
    if fit.left_out:
        errors = ", ".join(f"{name} {error:.3f}" for name, error in fit.left_out.items())
        note += f"Error at amounts left out: {errors}. "
    foretold = "; ".join(str(one) for _, one in needed)
    note += f"No prediction: {fit.refused}." if fit.refused else f"Prediction: {foretold}." if needed else ""
    figure, axis = style.new_figure(f"Accept length against {unit}", data, height=4.1, note=note)
    least, most = min(fit.amounts), max(fit.amounts)
    shown = _reach([one.amount for _, one in needed if one.amount is not None], most)
    inside, beyond = np.geomspace(least, most, 50), np.geomspace(most, shown, 50)
    grid = np.geomspace(least, shown, 120)
    axis.fill_between(grid, *fit.band(grid), color=style.BLUE, alpha=0.16, linewidth=0, label="95 % band of the fit")
    axis.plot(inside, fit.predict(inside), color=style.BLUE, label=f"fit, {fit.law.name}")
    if shown > most:
        axis.plot(beyond, fit.predict(beyond), "--", color=style.BLUE, label="extrapolated")
    lengths = np.array([point.accept_length for point in points])
    spans = np.array([bootstrap_interval(point.rows) or (y, y) for point, y in zip(points, lengths, strict=True)])
    errors = np.abs(spans.T - lengths)
    axis.errorbar(
        [point.amount for point in points],
        lengths,
        errors,
        fmt="o",
        color=style.INK,
        capsize=3,
        linewidth=1.2,
        label="trained drafters, 95 % over prompts",
    )
    targets = sorted({one.target for _, one in needed if not np.isnan(one.target)})
    for (name, one), colour in zip(needed, itertools.cycle(style.SERIES[1:]), strict=False):
        if one.target in targets:
            axis.axhline(one.target, color=colour, linestyle=":", label=f"{name}, {one.target:.2f}")
            _mark_needed(axis, one, shown, colour, above=targets.index(one.target) % 2 == 1)
    seen = [*spans.ravel(), *fit.predict(grid), *targets]
    room = 0.15 * (max(seen) - min(seen)) or 0.1
    axis.set_ylim(min(seen) - room, max(seen) + room)  # the band of few points may be wider than any figure
    _amount_axis(axis, least, shown, unit)
    axis.set_ylabel("accept length (tokens per verification)")
    style.legend_above(axis, 2)
    return figure


def position_curves(fits: Mapping[int, ScalingFit], data: str, unit: str = "training tokens") -> Figure:
    """Acceptance of each draft position against the amount of data, with the fits of `fit_positions`."""
    note = f"Of the verifications that accepted all drafts before it. Slope per tenfold {unit}, 95 % interval. "
    note += "Dashed: no slope that could be told from zero."
    figure, axis = style.new_figure(f"Acceptance by draft position against {unit}", data, note=note)
    least, most = (edge(amount for fit in fits.values() for amount in fit.amounts) for edge in (min, max))
    grid = np.geomspace(least, most, 50)
    for (position, fit), colour in zip(fits.items(), style.ordered_colours(len(fits)), strict=True):
        low, high = fit.slope_interval
        label = f"draft {position}: {fit.slope:+.3f} [{low:+.3f}, {high:+.3f}]"
        axis.plot(fit.amounts, fit.values, "o", color=colour)
        axis.plot(grid, fit.predict(grid), "--" if fit.refused else "-", color=colour, label=label)
        if not fit.refused:
            axis.fill_between(grid, *fit.band(grid), color=colour, alpha=0.12, linewidth=0)
    _amount_axis(axis, least, most, unit)
    seen = [value for fit in fits.values() for value in (*fit.values, *fit.predict(grid))]
    axis.set_ylim(max(0.0, min(seen) - 0.08), min(1.0, max(seen) + 0.08))
    style.percent_axis(axis)
    axis.set_ylabel("drafts accepted")
    style.legend_above(axis, 2)
    return figure


def _amount_axis(axis, least: float, most: float, unit: str) -> None:
    axis.set_xscale("log")
    style.log_count_axis(axis.xaxis, least, most)
    axis.set_xlim(least / 1.4, most * 1.4)
    axis.set_xlabel(unit)


def _reach(amounts, most):
    """How far right the curve is drawn: past the claims, but never beyond 100 times the data."""
    return float(np.clip(1.6 * max(amounts), most, FAR * most)) if amounts else most


def _mark_needed(axis, needed, shown, colour, above):
    """`above`: the amount is written above the mark, not below it (neighbours alternate)."""
    if needed.amount is None or needed.amount > shown:
        return
    high = shown if needed.high is None else min(needed.high, shown)
    axis.plot([needed.low, high], [needed.target] * 2, color=colour, linewidth=4, alpha=0.5)
    axis.plot(needed.amount, needed.target, "D", color=colour, markersize=8)
    axis.annotate(
        human_count(needed.amount),
        (needed.amount, needed.target),
        (-8, 7) if above else (8, -7),
        textcoords="offset points",
        ha="right" if above else "left",
        va="bottom" if above else "top",
        color=style.INK,
        fontsize=9,
    )
