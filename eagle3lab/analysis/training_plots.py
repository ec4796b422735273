"""Figures of a training: drawn again while it runs, and at its end. Arguments as in plots.py.

Shapes: L logged steps, K TTT steps (draft positions).
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing

import numpy as np
import pandas as pd
from IPython.display import display
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from eagle3lab.analysis import style

LEAST_GAP = 5.0  # seconds between two drawings of a live figure
SHARE = 0.02  # of the time that drawing may take


class LiveFigure:
    """One figure in a notebook, drawn again now and then while metric rows come.

    draw: makes the figure from all rows so far. rows: those of an earlier start. Without a notebook nothing is shown;
    in one that runs unattended the last drawing stays.
    """

    def __init__(self, draw: Callable[[list[dict]], Figure], rows: Sequence[dict] = ()):
        self._draw, self._rows, self._handle = draw, list(rows), None
        self._next = time.monotonic() + LEAST_GAP

    def follow(self, rows: Generator[dict]) -> Iterator[dict]:
        """Passes the rows on, and closes their source with itself."""
        with closing(rows):
            for row in rows:
                self._rows.append(row)
                yield row
                if time.monotonic() >= self._next:
                    self.show()
        if self._rows:
            self.show()

    def show(self) -> Figure:
        """Draws now. The next time is chosen so that drawing stays a small part of the whole."""
        began = time.monotonic()
        figure = self._draw(self._rows)
        if self._handle is None:
            self._handle = display(figure, display_id=True)
        else:
            self._handle.update(figure)
        took = time.monotonic() - began
        self._next = began + max(LEAST_GAP, took / SHARE)
        return figure


def training_curves(metrics: pd.DataFrame, data: str) -> Figure:
    """Loss, and acceptance per draft position, against training tokens (lower axis) and time (upper axis).

    metrics: one row a logged step with the columns tokens (trained so far), seconds (elapsed), loss, and
    acceptance (a list: share of right drafts per position, first position first). tokens and seconds may
    begin
    anew where training was resumed.
    """
    figure, (left, right) = style.new_figure("Training", data, columns=2, height=3.6)
    tokens, seconds = _running(metrics["tokens"]), _running(metrics["seconds"])
    window = max(1, len(metrics) // 40)
    if window > 1:
        left.plot(tokens, metrics["loss"], color=style.BLUE, alpha=0.3, linewidth=1, label="each logged step")
    label = f"mean of {window} steps" if window > 1 else "each logged step"
    left.plot(tokens, _smooth(metrics["loss"], window), color=style.BLUE, label=label)
    left.set_ylabel("loss")
    left.legend(loc="upper right", frameon=False, fontsize=9)
    acceptance_LK = np.array(metrics["acceptance"].tolist(), dtype=float)  # L logged steps, K positions
    for position, colour in enumerate(style.ordered_colours(acceptance_LK.shape[1])):
        shares_L = _smooth(acceptance_LK[:, position], window)
        right.plot(tokens, shares_L, color=colour, label=str(position + 1))
    right.set_ylabel("drafts equal to the target's token")
    right.set_ylim(bottom=0)
    style.percent_axis(right)
    right.legend(title="draft\nposition", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
    for axis in (left, right):
        axis.set_xlabel("training tokens")
        style.count_axis(axis.xaxis)
        axis.set_xlim(-0.01 * tokens[-1], 1.02 * tokens[-1])
        _time_axis(axis, tokens, seconds)
    return figure


def _running(values) -> np.ndarray:
    """Totals over all starts of a counter that begins at 0 with every start."""
    values = np.asarray(values, dtype=float)
    steps = np.diff(values, prepend=0.0)
    return np.where(steps < 0, values, steps).cumsum()


def _smooth(values, window):
    return pd.Series(values).rolling(window, min_periods=1).mean()


def _time_axis(axis, tokens, seconds):
    """An upper axis in minutes (or hours) at the measured pace, outside the range at the mean pace."""
    scale, unit = (3600, "hours") if seconds[-1] >= 2 * 3600 else (60, "minutes")
    pace, far = max(seconds[-1], 1e-9) / max(tokens[-1], 1), 2 * max(tokens[-1], 1)
    steps = np.arange(len(tokens) + 2) * 1e-9  # strictly increasing, as an inverse needs
    tokens_T = np.concatenate([[tokens[0] - far], tokens, [tokens[-1] + far]]) + steps
    times_T = np.concatenate([[seconds[0] - far * pace], seconds, [seconds[-1] + far * pace]]) / scale + steps
    upper = axis.secondary_xaxis(
        "top",
        functions=(lambda x: np.interp(x, tokens_T, times_T), lambda t: np.interp(t, times_T, tokens_T)),
    )
    upper.set_xlabel(f"time ({unit})", fontsize=9)
    upper.xaxis.set_major_locator(MaxNLocator(4))


def acceptance_gained(metrics: pd.DataFrame, data: str) -> Figure:
    """Left: share of right drafts by position, in the first and in the last tenth of the training. Right, where the
    accept length was measured on held-out rows: its course over the training tokens, the best one marked.

    metrics: as for `training_curves`; optional column heldout_accept_length (NaN where it was not measured).
    """
    measured = "heldout_accept_length" in metrics and bool(metrics["heldout_accept_length"].notna().any())
    figure, axes = style.new_figure("What the training gained", data, columns=2 if measured else 1, height=3.5)
    left = axes[0] if measured else axes
    acceptance_LK = np.array(metrics["acceptance"].tolist(), dtype=float)
    tenth, K = max(1, len(acceptance_LK) // 10), acceptance_LK.shape[1]
    for name, part_LK, colour, marker in (
        ("first tenth", acceptance_LK[:tenth], style.MUTED, "s"),
        ("last tenth", acceptance_LK[-tenth:], style.BLUE, "o"),
    ):
        left.plot(range(1, K + 1), part_LK.mean(0), color=colour, marker=marker, label=f"{name} of the training")
    left.set_xlabel("draft position (TTT step)")
    left.set_ylabel("drafts equal to the target's token")
    left.set_xticks(range(1, K + 1))
    left.set_xlim(0.7, K + 0.3)
    left.set_ylim(bottom=0)
    style.percent_axis(left)
    style.legend_above(left, 1)
    if measured:
        _heldout_course(axes[1], metrics)
    return figure


def _heldout_course(axis, metrics):
    tokens = _running(metrics["tokens"])
    known = metrics["heldout_accept_length"].notna().to_numpy()
    tokens, lengths = tokens[known], metrics["heldout_accept_length"].to_numpy()[known]
    best = int(np.argmax(lengths))
    axis.plot(tokens, lengths, color=style.GREEN, marker="o", label="held-out rows")
    label = f"best: {lengths[best]:.2f}, its weights are kept"
    axis.plot(tokens[best], lengths[best], "*", color=style.VERMILLION, markersize=13, label=label)
    axis.set_xlabel("training tokens")
    axis.set_ylabel("accept length")
    style.count_axis(axis.xaxis)
    axis.margins(x=0.06, y=0.12)
    style.legend_above(axis, 1)
