"""Accept length against the amount of training data: fit, uncertainty, and the data needed to reach a value.

Model: accept_length = intercept + slope * log10(amount), by least squares over the points.
Two public papers found acceptance close to linear in the logarithm of the data (see the README's references).

Uncertainty: each bootstrap draw takes the held-out prompts anew (the same ones for every point, as all
drafters answered the same prompts) and adds the fit's own residual scatter, which stands for the luck of a
training run. With few points that scatter is poorly known: more points, or several seeds per amount, make the
band honest.

Shapes: N points, P prompts, B bootstrap draws.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eagle3lab.analysis.accept import PromptCycles, accept_length, bootstrap_draws
from eagle3lab.analysis.tables import human_count

FAR = 100.0  # an extrapolation beyond this multiple of the largest amount is marked


@dataclass(frozen=True)
class ScalingPoint:
    """One trained drafter: amount of data (> 0, any one unit), its verifications on the held-out prompts."""

    amount: float
    rows: tuple[PromptCycles, ...]

    def __post_init__(self):
        object.__setattr__(self, "rows", tuple(self.rows))
        if not self.amount > 0:
            raise ValueError(f"amount={self.amount} must be positive (it is taken on a log axis)")

    @property
    def accept_length(self) -> float:
        return accept_length(sum(r.committed for r in self.rows), sum(len(r.accepted) for r in self.rows))


@dataclass(frozen=True)
class Needed:
    """Data needed to reach `target`. `amount` None: not claimed, and `reason` says why.

    low, high: 95 % interval; high None = some plausible slopes never reach it. `beyond` = amount / largest
    measured.
    """

    target: float
    amount: float | None
    low: float | None
    high: float | None
    beyond: float | None
    reason: str

    @property
    def far(self) -> bool:
        """The claim lies more than 100 times beyond the data: a direction, not a number."""
        return self.beyond is not None and self.beyond > FAR

    def __str__(self):
        if self.amount is None:
            return f"accept length {self.target:.2f}: {self.reason}"
        high = "no upper bound" if self.high is None else human_count(self.high)
        far = f"; {self.beyond:,.0f}x beyond the data, a direction rather than a number" if self.far else ""
        interval = f"[{human_count(self.low)}, {high}]"
        return f"accept length {self.target:.2f} at {human_count(self.amount)} {interval}{far}"


@dataclass(frozen=True)
class ScalingFit:
    """Fitted line and its bootstrap draws. `refused` says why no prediction is made ("" = the line may be
    used).

    slope: accept length gained per tenfold data. scatter: standard deviation of the residuals (n - 2 in the
    divisor).
    """

    amounts: tuple[float, ...]
    accept_lengths: tuple[float, ...]
    intercept: float
    slope: float
    slope_interval: tuple[float, float]
    scatter: float
    intercept_B: np.ndarray
    slope_B: np.ndarray
    refused: str

    def predict(self, amount) -> np.ndarray:
        """The line's accept length at the given amounts."""
        return self.intercept + self.slope * np.log10(np.asarray(amount, dtype=float))

    def band(self, amount, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Pointwise band of the line (not of single drafters) at the given amounts: low, high."""
        log_N = np.log10(np.atleast_1d(np.asarray(amount, dtype=float)))
        lines_BN = self.intercept_B[:, None] + self.slope_B[:, None] * log_N
        low, high = np.quantile(lines_BN, [(1 - level) / 2, (1 + level) / 2], axis=0)
        return low, high

    def needed(self, target: float, level: float = 0.95) -> Needed:
        """Amount of data at which the line reaches `target`, with its interval."""
        if self.refused:
            return Needed(target, None, None, None, None, self.refused)
        if target <= self.predict(min(self.amounts)):
            least = min(self.amounts)
            return Needed(
                target, None, None, None, None, f"reached with the least data ({human_count(least)})"
            )
        log_amount = (target - self.intercept) / self.slope
        if log_amount > 300:
            return Needed(target, None, None, None, None, "out of reach of the fitted line")
        with np.errstate(divide="ignore", invalid="ignore"):
            logs_B = np.where(self.slope_B > 0, (target - self.intercept_B) / self.slope_B, np.inf)
        low, high = np.quantile(logs_B, [(1 - level) / 2, (1 + level) / 2], method="nearest")
        amount = float(10**log_amount)
        return Needed(
            target,
            amount,
            float(10**low),
            float(10**high) if high <= 300 else None,
            amount / max(self.amounts),
            "",
        )


def fit_scaling(points: Sequence[ScalingPoint], draws: int = 4000, seed: int = 0) -> ScalingFit:
    """Log-linear fit over points whose rows belong to the same prompts.

    Needs at least two different amounts to draw a line at all (ValueError); below three, or where the slope's
    95 %
    interval holds 0, the fit is returned with `refused` set and predicts no amounts.
    """
    ids = [tuple(row.id for row in point.rows) for point in points]
    if len({point.amount for point in points}) < 2:
        raise ValueError("a line needs at least two different amounts of data")
    if len(set(ids)) != 1:
        raise ValueError("all points must be measured on the same prompts, in the same order")
    log_N = np.log10([point.amount for point in points])
    tau_N = np.array([point.accept_length for point in points])
    slope, intercept = _line(log_N, tau_N[None])
    residual_N = tau_N - intercept[0] - slope[0] * log_N
    scatter = float(np.sqrt((residual_N**2).sum() / (len(points) - 2))) if len(points) > 2 else 0.0
    committed_NP = np.array([[row.committed for row in point.rows] for point in points])
    cycles_NP = np.array([[len(row.accepted) for row in point.rows] for point in points])
    draws_BP = bootstrap_draws(len(ids[0]), draws, seed)
    verifications_BN = draws_BP @ cycles_NP.T
    kept_B = (verifications_BN > 0).all(axis=1)  # answers of one token have no verification
    tau_BN = (draws_BP @ committed_NP.T)[kept_B] / verifications_BN[kept_B]
    tau_BN = tau_BN + np.random.default_rng(seed + 1).normal(0.0, scatter, tau_BN.shape)
    slope_B, intercept_B = _line(log_N, tau_BN)
    low, high = (float(v) for v in np.quantile(slope_B, [0.025, 0.975]))
    return ScalingFit(
        tuple(float(p.amount) for p in points),
        tuple(tau_N.tolist()),
        float(intercept[0]),
        float(slope[0]),
        (low, high),
        scatter,
        intercept_B,
        slope_B,
        _refusal(points, low, high),
    )


def _line(log_N, tau_BN):
    """Least squares of each row of tau_BN against log_N: slopes [B], intercepts [B]."""
    centred_N = log_N - log_N.mean()
    slope_B = tau_BN @ centred_N / (centred_N @ centred_N)
    return slope_B, tau_BN.mean(axis=1) - slope_B * log_N.mean()


def _refusal(points, low, high) -> str:
    if len({point.amount for point in points}) < 3:
        return "fewer than three amounts of data: a line through two points shows nothing"
    if len(points[0].rows) < 2:
        return "fewer than two held-out prompts: the uncertainty is unknown"
    if low <= 0:
        interval = f"95 % interval {low:+.3f} to {high:+.3f} per tenfold data"
        return f"the slope is not distinguishable from 0 ({interval})"
    return ""
