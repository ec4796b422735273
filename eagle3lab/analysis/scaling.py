"""Accept length against the amount of training data: fit, uncertainty, and the data needed to reach a value.

Laws (`laws.py`): linear in log10(amount), or a power law that saturates; the one that foretells amounts it has not seen
better is taken. Two public papers found acceptance close to linear in the logarithm of the data (see the README's
references).

Uncertainty: each bootstrap draw takes the held-out prompts anew (the same ones for every point, as all
drafters answered the same prompts), adds the scatter about the fit, which stands for the luck of a training run
(several seeds at one amount are several points), and chooses and fits the law anew. The scatter is itself an estimate
from a few points: its own uncertainty is drawn along, so that few points make a wide band.

Shapes: N points, P prompts, B bootstrap draws.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eagle3lab.analysis.accept import PromptCycles, accept_length, bootstrap_draws
from eagle3lab.analysis.bench_row import BenchRow, not_measurable
from eagle3lab.analysis.laws import BENDS, BENDS_FROM, DRAWN_BENDS, Law, choose_bend, fit_bends
from eagle3lab.analysis.tables import human_count

FAR = 100.0  # an extrapolation beyond this multiple of the largest amount is marked
LOG_REACH = 300  # powers of ten beyond which nothing is reached


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
    """Data needed to reach `target` (NaN: not known). `amount` None: not claimed, and `reason` says why.

    low, high: 95 % interval; high None = some plausible curves never reach it. `beyond` = amount / largest
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
        if np.isnan(self.target):
            return self.reason
        if self.amount is None:
            return f"accept length {self.target:.2f}: {self.reason}"
        high = "no upper bound" if self.high is None else human_count(self.high)
        far = f"; {self.beyond:,.0f}x beyond the data, a direction rather than a number" if self.far else ""
        interval = f"[{human_count(self.low)}, {high}]"
        return f"accept length {self.target:.2f} at {human_count(self.amount)} {interval}{far}"


@dataclass(frozen=True)
class ScalingFit:
    """Fitted curve and its bootstrap draws. `refused` says why no prediction is made ("" = it may be used).

    law         the fitted curve; draws: the curves of the bootstrap.
    slope       accept length gained per tenfold data, at the middle of the amounts (everywhere, for the line).
    scatter     standard deviation of the residuals (points - coefficients in the divisor).
    left_out    mean absolute error at amounts that were left out, by law; empty with too few amounts to compare.
    values      what was fitted, a point each: accept lengths, or acceptance shares of a draft position.
    """

    amounts: tuple[float, ...]
    values: tuple[float, ...]
    law: Law
    draws: Law
    slope_interval: tuple[float, float]
    scatter: float
    left_out: dict[str, float]
    refused: str

    @property
    def slope(self) -> float:
        return float(self.law.slope[0])

    def predict(self, amount) -> np.ndarray:
        """The curve's value at the given amounts."""
        values = self.law.at(np.atleast_1d(np.asarray(amount, dtype=float)))[0]
        return values if np.ndim(amount) else values[0]

    def band(self, amount, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Pointwise band of the curve (not of single drafters) at the given amounts: low, high."""
        curves_BN = self.draws.at(np.atleast_1d(np.asarray(amount, dtype=float)))
        low, high = np.quantile(curves_BN, [(1 - level) / 2, (1 + level) / 2], axis=0)
        return low, high

    def needed(self, target: float, most: float = np.inf, level: float = 0.95) -> Needed:
        """Amount of data at which the curve reaches `target`, with its interval. most: what no drafter exceeds, the
        num_steps + 1 tokens that a verification can commit."""
        return self.needed_between(target, target, target, most, level)

    def needed_between(
        self, low_target: float, target: float, high_target: float, most: float = np.inf, level: float = 0.95
    ) -> Needed:
        """As `needed`, for a target known as a range only: the interval's ends are those of the range's ends."""
        if not low_target <= target <= high_target:
            raise ValueError(f"target {target} is not within its range {low_target} to {high_target}")
        if target > most:
            never = f"out of reach: a verification commits at most {most:g} tokens"
            return Needed(target, None, None, None, None, never)
        if self.refused:
            return Needed(target, None, None, None, None, self.refused)
        least = min(self.amounts)
        if target <= self.predict(least):
            return Needed(target, None, None, None, None, f"reached with the least data ({human_count(least)})")
        log_amount = float(self.law.log_amount(target)[0])
        if log_amount > LOG_REACH:
            return Needed(target, None, None, None, None, self._out_of_reach(target))
        low = np.quantile(self.draws.log_amount(low_target), (1 - level) / 2, method="nearest")
        high = np.quantile(self.draws.log_amount(high_target), (1 + level) / 2, method="nearest")
        amount = float(10**log_amount)
        high = float(10**high) if high <= LOG_REACH else None
        return Needed(target, amount, float(10**low), high, amount / max(self.amounts), "")

    def _out_of_reach(self, target: float) -> str:
        """Why no amount is named, and how sure that is."""
        ceiling, logs_B = float(self.law.ceiling[0]), self.draws.log_amount(target)
        line = "line" if np.isinf(ceiling) else f"curve, which saturates at {ceiling:.2f}"
        reached_B = logs_B <= LOG_REACH
        others = "no plausible curve reaches it"
        if reached_B.any():
            least = human_count(float(10 ** np.quantile(logs_B[reached_B], 0.025)))
            others = f"{reached_B.mean():.0%} of the plausible curves reach it, hardly any before {least}"
        return f"out of reach of the fitted {line}; {others}"

    def needed_to_pay(self, row, why: str = "") -> Needed:
        """Data from which the setting of a benchmark row (`BenchRow`) is faster than its baseline.

        why: what speaks against its break-even (`not_measurable`): then no amount is named.

        The break-even is as uncertain as the row's speed-up: its range over the rounds widens the interval.
        """
        if why:
            return Needed(np.nan, None, None, None, None, f"not measurable: {why}")
        low, high = (row.accept_length / gain for gain in (row.speedup_high, row.speedup_low))
        ends = min(low, row.break_even), row.break_even, max(high, row.break_even)
        return self.needed_between(*ends, most=row.num_steps + 1)


def served_chain(rows: Sequence[BenchRow], num_steps: int) -> tuple[BenchRow | None, str]:
    """The served chain of that length, one greedy stream, and why its break-even is not measurable ("": it is)."""
    for row in rows:
        if (row.num_steps, row.topk, row.concurrency, row.temperature) == (num_steps, 1, 1, 0.0):
            return row, not_measurable(rows, row.condition)
    return None, f"notebook 06 served no chain of {num_steps} (add it to its num_steps)"


def fit_scaling(
    points: Sequence[ScalingPoint], position: int | None = None, draws: int = 4000, seed: int = 0
) -> ScalingFit:
    """Fit over points whose rows belong to the same prompts; several points may have one amount (seeds).

    position  None: accept length. k >= 1: acceptance of draft position k, among the verifications that accepted all
              drafts before it.

    Needs at least two different amounts to draw a line at all (ValueError); below three, or where the slope's 95 %
    interval holds 0, the fit is returned with `refused` set and predicts no amounts. The saturating law is tried from
    five different amounts on.
    """
    ids = [tuple(row.id for row in point.rows) for point in points]
    if len({point.amount for point in points}) < 2:
        raise ValueError("a line needs at least two different amounts of data")
    if len(set(ids)) != 1:
        raise ValueError("all points must be measured on the same prompts, in the same order")
    if position is not None and position < 1:
        raise ValueError(f"position={position}: draft positions count from 1")
    log_N = np.log10([point.amount for point in points])
    above_NP, below_NP = _counts(points, position)
    if not (below_NP.sum(axis=1) > 0).all():
        raise ValueError(f"a point has no verification to measure {'position ' + str(position) if position else ''}")
    value_N = above_NP.sum(axis=1) / below_NP.sum(axis=1)
    enough = len(np.unique(log_N)) >= BENDS_FROM
    bend, left_out = choose_bend(log_N, value_N[None], BENDS if enough else BENDS[:1])
    law = fit_bends(log_N, value_N[None], bend)
    residual_N = value_N - law.at(10**log_N)[0]
    spare = len(points) - (2 if bend[0] == 0 else 3)
    scatter = float(np.sqrt((residual_N**2).sum() / spare)) if spare > 0 else 0.0
    draws_BP = bootstrap_draws(len(ids[0]), draws, seed)
    below_BN = draws_BP @ below_NP.T
    kept_B = (below_BN > 0).all(axis=1)  # answers of one token have no verification
    value_BN = (draws_BP @ above_NP.T)[kept_B] / below_BN[kept_B]
    random = np.random.default_rng(seed + 1)
    if spare > 0:
        # the scatter's own uncertainty: with it the band of a line is Student's, not the normal's
        scale_B = scatter * np.sqrt(spare / random.chisquare(spare, len(value_BN)))
        value_BN = value_BN + scale_B[:, None] * random.normal(0.0, 1.0, value_BN.shape)
    bend_B, _ = choose_bend(log_N, value_BN, DRAWN_BENDS if enough else BENDS[:1])
    drawn = fit_bends(log_N, value_BN, bend_B)
    low, high = (float(v) for v in np.quantile(drawn.slope, [0.025, 0.975]))
    amounts = tuple(float(p.amount) for p in points)
    refused = _refusal(points, low, high)
    return ScalingFit(amounts, tuple(value_N.tolist()), law, drawn, (low, high), scatter, left_out, refused)


def fit_positions(points: Sequence[ScalingPoint], num_steps: int, **options) -> dict[int, ScalingFit]:
    """`fit_scaling` of every draft position from 1 to num_steps that each point has verifications of."""
    reached = [k for k in range(1, num_steps + 1) if (_counts(points, k)[1].sum(axis=1) > 0).all()]
    return {k: fit_scaling(points, position=k, **options) for k in reached}


def _counts(points, position):
    """What is divided by what, for each point and prompt: two arrays [N, P]."""
    if position is None:
        above = [[row.committed for row in point.rows] for point in points]
        below = [[len(row.accepted) for row in point.rows] for point in points]
    else:
        above = [[sum(a >= position for a in row.accepted) for row in point.rows] for point in points]
        below = [[sum(a >= position - 1 for a in row.accepted) for row in point.rows] for point in points]
    return np.array(above), np.array(below)


def _refusal(points, low, high) -> str:
    if len({point.amount for point in points}) < 3:
        return "fewer than three amounts of data: a line through two points shows nothing"
    if len(points[0].rows) < 2:
        return "fewer than two held-out prompts: the uncertainty is unknown"
    if low <= 0:
        interval = f"95 % interval {low:+.3f} to {high:+.3f} per tenfold data"
        return f"the slope is not distinguishable from 0 ({interval})"
    return ""
