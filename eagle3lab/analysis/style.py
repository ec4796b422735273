"""One look for all figures: colours, fonts, and a title block that names the data.

Figures are drawn on an opaque white ground, so that they read the same on light and on dark pages. Series
colours are from the Okabe-Ito palette (safe for colour-blind readers), those of it that stand out on white.
"""

import textwrap

import matplotlib.pyplot as plt
from matplotlib import colormaps
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from eagle3lab.analysis.tables import human_count

BLUE, VERMILLION, GREEN, PURPLE, ORANGE = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"
SERIES = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE)
MARKERS = ("o", "s", "^", "D", "v")
INK, MUTED, FAINT = "#1a1a1a", "#595959", "#d9d9d9"
WIDTH = 7.4  # inches
TITLE_HEIGHT, LINE_HEIGHT, MARGIN = 0.27, 0.19, 0.10  # inches

RC = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
}


def new_figure(title: str, data: str, columns: int = 1, height: float = 3.9, note: str = ""):
    """A figure with a bold title, the data it shows below it, and a small note at the foot. Returns (figure,
    axes).

    The figure is closed for pyplot at once: a notebook shows it where it is displayed, not a second time by
    itself.
    """
    data_lines, note_lines = textwrap.wrap(data, 104), textwrap.wrap(note, 124)
    head = MARGIN + TITLE_HEIGHT + LINE_HEIGHT * len(data_lines)
    foot = MARGIN / 2 + LINE_HEIGHT * len(note_lines)
    height += head + foot - TITLE_HEIGHT
    with plt.rc_context(RC):
        figure, axes = plt.subplots(1, columns, figsize=(WIDTH, height), layout="constrained")
        plt.close(figure)
        figure.get_layout_engine().set(rect=(0, foot / height, 1, 1 - (head + foot) / height))
        left = 0.10 / WIDTH
        figure.text(left, 1 - MARGIN / height, title, size=12, weight="bold", va="top")
        top = 1 - (MARGIN + TITLE_HEIGHT) / height
        figure.text(left, top, "\n".join(data_lines), size=9, color=MUTED, va="top", linespacing=1.25)
        figure.text(left, MARGIN / 2 / height, "\n".join(note_lines), size=8, color=MUTED, va="bottom")
    return figure, axes


def legend_above(axis, columns: int, **more) -> None:
    """A legend between the title block and the axes, where it hides no data."""
    axis.legend(
        loc="lower left",
        bbox_to_anchor=(-0.01, 1.0),
        ncols=columns,
        borderaxespad=0.2,
        columnspacing=1.4,
        handletextpad=0.5,
        frameon=False,
        fontsize=9,
        **more,
    )


def ordered_colours(n: int) -> list:
    """n colours of one ordered scale (draft positions, amounts), dark to light, all readable on white."""
    scale = colormaps["viridis"]
    return [scale(0.82 * i / max(1, n - 1)) for i in range(n)]


def percent_axis(axis) -> None:
    """Shares 0..1 written as percentages."""
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g}%"))


def count_axis(axis) -> None:
    """Counts on a linear axis, written as 12K, 3.4M."""
    axis.set_major_locator(MaxNLocator(5))
    axis.set_major_formatter(FuncFormatter(lambda value, _: human_count(value)))


def log_count_axis(axis, low: float, high: float) -> None:
    """Counts on a log axis from low to high; steps 1-2-5 where powers of ten would be too few."""
    axis.set_major_locator(LogLocator(subs=(1.0,) if high > 300 * low else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: human_count(value)))
    axis.set_minor_formatter(NullFormatter())
