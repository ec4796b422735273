"""Curves of a value against an amount of data: the line in log10(amount) and the saturating power law, as one family.

    value(amount) = middle + slope * g(log10(amount) - centre),   g(x) = (1 - 10^(-bend x)) / (bend ln 10)

bend 0 is the limit g(x) = x, the log-linear law. With bend > 0 it is ceiling - a * amount^-bend, with
ceiling = middle + slope / (bend ln 10). In both, `slope` is the gain per tenfold amount at the centre.

The bend is chosen from a fixed list by leave-one-out error: every amount (with all its seeds) is left out in turn and
foretold by the rest. A bend must do clearly better than the line (`CLEARLY`). Bootstrap draws may also bend up a
little: were they allowed to bend down only, the band of a true line would lie too low where it is extrapolated.

Shapes: N points, B curves, K bends.
"""

from dataclasses import dataclass

import numpy as np

BENDS = np.array([0.0, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0, 1.3, 1.7])
DRAWN_BENDS = np.append(BENDS, -0.1)
BENDS_FROM = 5  # different amounts needed for the saturating law: three coefficients, one amount out, one to spare
CLEARLY = 0.8  # share of the line's leave-one-out error below which a bent law is taken
LOG_LINEAR, SATURATING = "log-linear", "saturating"


@dataclass(frozen=True)
class Law:
    """B curves over the same centre (log10 of an amount): middle_B, slope_B, bend_B."""

    centre: float
    middle: np.ndarray
    slope: np.ndarray
    bend: np.ndarray

    @property
    def name(self) -> str:
        """Of the first curve."""
        return LOG_LINEAR if self.bend[0] == 0 else SATURATING

    @property
    def ceiling(self) -> np.ndarray:
        """Value never exceeded, [B]; infinite for a line that rises."""
        with np.errstate(divide="ignore", invalid="ignore"):
            rise_B = np.where(self.bend > 0, self.slope / (self.bend * np.log(10)), np.inf)
        return self.middle + rise_B

    def at(self, amount_N: np.ndarray) -> np.ndarray:
        """Values [B, N] at amounts > 0."""
        x_N = np.log10(amount_N) - self.centre
        return self.middle[:, None] + self.slope[:, None] * _bent(x_N, self.bend[:, None])

    def log_amount(self, value: float) -> np.ndarray:
        """log10 of the amount at which each curve reaches the value, [B]; inf where it never does."""
        with np.errstate(divide="ignore", invalid="ignore"):
            g_B = np.where(self.slope > 0, (value - self.middle) / self.slope, np.inf)
            room_B = 1 - self.bend * np.log(10) * np.where(self.bend != 0, g_B, 0.0)
            x_B = np.where(self.bend != 0, -np.log10(np.maximum(room_B, 0)) / self.bend, g_B)
        return x_B + self.centre


def fit_bends(log_N: np.ndarray, value_BN: np.ndarray, bend_B: np.ndarray) -> Law:
    """Least squares of each row of values with its own bend."""
    centre = float(log_N.mean())
    middle_B, slope_B = _lines(_bent(log_N - centre, np.asarray(bend_B)[:, None]), value_BN)
    return Law(centre, middle_B, slope_B, np.asarray(bend_B))


def choose_bend(log_N: np.ndarray, value_BN: np.ndarray, bends_K: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
    """The bend of each row of values by leave-one-out error, and the first row's error by law.

    The error of an amount is that of its mean over seeds. With one bend nothing is compared.
    """
    if len(bends_K) == 1:
        return np.full(len(value_BN), bends_K[0]), {}
    centre, amounts = float(log_N.mean()), np.unique(log_N)
    errors_KB = np.zeros((len(bends_K), len(value_BN)))
    for index, bend in enumerate(bends_K):
        g_N = _bent(log_N - centre, np.array(bend))
        for amount in amounts:
            out_N = log_N == amount
            middle_B, slope_B = _lines(np.broadcast_to(g_N[~out_N], value_BN[:, ~out_N].shape), value_BN[:, ~out_N])
            foretold_B = middle_B + slope_B * g_N[out_N][0]
            errors_KB[index] += np.abs(foretold_B - value_BN[:, out_N].mean(axis=1)) / len(amounts)
    judged_KB = np.where((bends_K == 0)[:, None], CLEARLY * errors_KB, errors_KB)
    best_B = np.argmin(np.where(judged_KB < 1e-9, 0.0, judged_KB), axis=0)
    by_law = {LOG_LINEAR: float(errors_KB[bends_K == 0, 0][0]), SATURATING: float(errors_KB[bends_K > 0, 0].min())}
    return bends_K[best_B], by_law


def _bent(x, bend):
    """g of the module's docstring."""
    bend = np.asarray(bend, dtype=float)
    safe = np.where(bend != 0, bend, 1.0)
    with np.errstate(over="ignore"):  # at the inverse, of curves that never get there
        return np.where(bend != 0, (1 - 10.0 ** (-safe * x)) / (safe * np.log(10)), x)


def _lines(g_BN: np.ndarray, value_BN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least squares of each row of values against its row of g: value at g = 0, slope."""
    centred_BN = g_BN - g_BN.mean(axis=1, keepdims=True)
    slope_B = (value_BN * centred_BN).sum(axis=1) / (centred_BN**2).sum(axis=1)
    return value_BN.mean(axis=1) - slope_B * g_BN.mean(axis=1), slope_B
