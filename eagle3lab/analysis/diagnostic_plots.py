"""Figures of the diagnosis: the waterfall, acceptance by kind of token, entropy against position, calibration.

Each function takes values, and `data`: the words that say on which data, model and setting they were measured. Each
returns a matplotlib Figure; nothing is shown or saved here.

Shapes: R labels, K draft positions.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator, NullLocator

from eagle3lab.analysis import style
from eagle3lab.analysis.attribution import END, VOCABULARY, Attribution
from eagle3lab.analysis.proposals import CalibrationBin, calibration_error
from eagle3lab.analysis.slices import FEW_ANSWERS, FEW_ATTEMPTS, Grid, Slice

FEW_IN_CELL = 20  # attempts below which a cell's share is drawn pale
LOSS_COLOURS = {VOCABULARY: style.PURPLE, END: style.MUTED}


def waterfall(whole: Attribution, data: str) -> Figure:
    """From the most a verification could commit, part by part, down to the accept length."""
    note = "Lines: 95 % intervals over answers. A loss is charged to the draft that stopped the chain."
    figure, axis = style.new_figure("Where accept length is lost", data, note=note)
    most = whole.num_steps + 1
    names, level = ["most\npossible"], float(most)
    axis.bar(0, most, color=style.BLUE, width=0.72)
    above = 0.02 * most
    axis.text(0, most + above, f"{most}", ha="center", va="bottom", fontsize=9)
    for place, part in enumerate(whole.parts, 1):
        colour = LOSS_COLOURS.get(part.name, style.VERMILLION)
        axis.bar(place, -part.lost, bottom=level, color=colour, width=0.72)
        axis.plot([place - 1.36, place + 0.36], [level, level], color=style.MUTED, linewidth=0.8)
        if part.interval and part.lost:
            low, high = part.interval
            axis.plot([place, place], [level - high, level - low], color=style.INK, linewidth=1.2)
        axis.text(place, level + above, f"-{part.lost:.2f}", ha="center", va="bottom", fontsize=9)
        names.append(
            {VOCABULARY: "draft\nvocabulary", END: "end of\nanswer"}.get(part.name, part.name.replace(" ", "\n"))
        )
        level -= part.lost
    last = len(whole.parts) + 1
    axis.plot([last - 1.36, last + 0.36], [level, level], color=style.MUTED, linewidth=0.8)
    axis.bar(last, whole.accept_length, color=style.BLUE, width=0.72)
    axis.text(last, whole.accept_length + above, f"{whole.accept_length:.2f}", ha="center", va="bottom", fontsize=9)
    axis.axhline(1, color=style.INK, linestyle="--", linewidth=1, label="1.00: nothing accepted")
    axis.set_xticks(range(last + 1), [*names, "accept\nlength"], fontsize=9 if last < 8 else 7.5)
    axis.grid(visible=False, axis="x")
    axis.set_ylim(0, most * 1.1)
    axis.set_xlabel(f"{whole.verifications:,} verifications of {whole.answers:,} answers")
    axis.set_ylabel("tokens per verification")
    style.legend_above(axis, 1)
    return figure


def slice_chart(slices: Mapping[str, Sequence[Slice]], data: str) -> Figure:
    """Acceptance by label, one group a dimension, with intervals; small slices are hollow."""
    note = (
        "Number right: drafts lost there per verification; within a group they add up to all that the drafter lost. "
        f"Hollow: fewer than {FEW_ANSWERS} answers or {FEW_ATTEMPTS} drafts, a direction rather than a number."
    )
    count = sum(len(group) + 1 for group in slices.values())
    figure, axis = style.new_figure("Acceptance by kind of token", data, height=0.6 + 0.19 * count, note=note)
    place, places, names, heads = 0, [], [], []
    for dimension, group in slices.items():
        heads.append((place, dimension))
        place += 1
        for one in group:
            if one.interval:
                axis.plot(one.interval, [place, place], color=style.BLUE, linewidth=1.4, alpha=0.7)
            face = "white" if one.small else style.BLUE
            axis.plot(one.acceptance, place, "o", color=style.BLUE, markerfacecolor=face)
            axis.text(1.02, place, f"{one.lost:.2f}", transform=axis.get_yaxis_transform(), va="center", fontsize=8)
            places.append(place)
            names.append(f"{one.label} ({one.attempts:,})")
            place += 1
    axis.set_yticks(places, names, fontsize=8)
    for at, dimension in heads:
        axis.text(
            -0.01,
            at,
            dimension,
            transform=axis.get_yaxis_transform(),
            ha="right",
            va="center",
            fontsize=8.5,
            weight="bold",
        )
    axis.set_ylim(place - 0.4, -0.6)
    axis.set_xlim(-0.02, 1.02)
    axis.grid(visible=False, axis="y")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axis.set_xlabel("drafts accepted, of those whose predecessors were")
    return figure


def entropy_heat_map(counted: Grid, data: str, label: str = "target entropy") -> Figure:
    """Acceptance by label (rows) and draft position (columns); every cell shows its share and its number of drafts."""
    R, K = counted.attempts_RK.shape
    note = f"Pale cells hold fewer than {FEW_IN_CELL} drafts; empty ones none. In brackets: drafts."
    figure, axis = style.new_figure(f"Acceptance by {label} and draft position", data, height=0.9 + 0.36 * R, note=note)
    scale = colormaps["viridis"]
    for row in range(R):
        for column in range(K):
            tries, accepted = int(counted.attempts_RK[row, column]), int(counted.accepted_RK[row, column])
            if not tries:
                continue
            share, few = accepted / tries, tries < FEW_IN_CELL
            colour = scale(share)
            axis.add_patch(
                Rectangle((column - 0.5, row - 0.5), 1, 1, color=colour, alpha=0.25 if few else 1, linewidth=0)
            )
            ink = style.INK if few or share > 0.55 else "white"
            axis.text(
                column, row, f"{share:.0%} ({tries:,})", ha="center", va="center", color=ink, fontsize=8 if K < 8 else 7
            )
    axis.set_xlim(-0.5, K - 0.5)
    axis.set_ylim(R - 0.5, -0.5)
    axis.set_xticks(range(K), range(1, K + 1))
    axis.set_yticks(range(R), counted.labels)
    axis.xaxis.set_minor_locator(NullLocator())
    axis.grid(visible=False)
    axis.set_xlabel("draft position")
    axis.set_ylabel(label)
    return figure


def calibration_chart(bins: Sequence[CalibrationBin], data: str) -> Figure:
    """Does a draft with probability p get accepted in p of the cases: reliability, and how many drafts had which p."""
    note = f"Mean distance from the diagonal, weighted by drafts: {calibration_error(bins):.3f}."
    figure, (left, right) = style.new_figure("Draft probability and acceptance", data, columns=2, height=3.3, note=note)
    p, share = [b.probability for b in bins], [b.acceptance for b in bins]
    error = [1.96 * np.sqrt(max(b.acceptance * (1 - b.acceptance), 1e-4) / b.drafts) for b in bins]
    left.plot([0, 1], [0, 1], "--", color=style.MUTED, linewidth=1.2, label="calibrated")
    left.errorbar(p, share, error, fmt="o-", color=style.BLUE, elinewidth=1, linewidth=1.4, label="drafts")
    left.set_xlim(-0.03, 1.03)
    left.set_ylim(-0.03, 1.03)
    left.set_ylabel("share accepted")
    style.percent_axis(left)
    left.legend(loc="upper left", frameon=False, fontsize=9)
    for b in bins:
        right.bar(b.low, b.accepted, b.high - b.low, align="edge", color=style.BLUE, edgecolor="white")
        right.bar(
            b.low,
            b.drafts - b.accepted,
            b.high - b.low,
            b.accepted,
            align="edge",
            color=style.ORANGE,
            edgecolor="white",
        )
    right.legend(
        handles=[Patch(color=style.BLUE, label="accepted"), Patch(color=style.ORANGE, label="rejected")],
        loc="upper center", frameon=False, fontsize=9, ncols=2,
    )  # fmt: skip
    right.set_ylabel("drafts")
    right.margins(y=0.2)
    style.count_axis(right.yaxis)
    for axis in (left, right):
        axis.set_xlabel("probability of the draft under the drafter")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axis.xaxis.set_major_locator(MaxNLocator(5))
    return figure
