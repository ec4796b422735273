"""What a cycle costs, what accept length it needs, and whether to speculate at all: from measured rows.

Cost of a cycle = fixed + verification of n tokens + draft steps, one fit for each condition (concurrency, temperature,
CUDA graphs):

    cycle_ms(num_steps, num_draft_tokens) = fixed_ms + token_ms * num_draft_tokens + step_ms * num_steps

A chain has num_draft_tokens = num_steps + 1, so chains alone cannot tell the last two apart: then `step_ms` is the
cost of one draft more (drafted and verified), `token_ms` is None, and nothing is said about trees. The plain step is
measured, not fitted: it runs no drafter. topk is no term of its own: where settings of several topk do not follow one
law, `worst_error` shows it.

Shapes: R measured rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eagle3lab.analysis.bench_row import ONE_STREAM, BenchRow, Condition, not_measurable
from eagle3lab.draft.chain import chain_draft_tokens

SINGULAR = 1e-9  # ratio of singular values below which two costs cannot be told apart
NOT_MEASURABLE = "not measurable"  # what such an advice begins with; status and model card look for it


class CannotFit(ValueError):
    """The measured rows do not carry a cost model; the text says which rows are missing."""


@dataclass(frozen=True)
class CycleCost:
    """Fitted costs in milliseconds in one condition. `plain_ms` is the baseline's measured step.

    token_ms     one more token to verify; None when only chains were measured.
    step_ms      one more draft step (with its verification when token_ms is None).
    worst_error  largest error of the fit over its own rows, as a share; None when no row was to spare: as many rows
                 as costs fit exactly, whatever they are.
    longest, widest   largest num_steps and num_draft_tokens measured; beyond them a cost is an extrapolation.
    """

    condition: Condition
    plain_ms: float
    fixed_ms: float
    token_ms: float | None
    step_ms: float
    worst_error: float | None
    longest: int
    widest: int

    def cycle_ms(self, num_steps: int, num_draft_tokens: int | None = None) -> float:
        """Milliseconds of one cycle (num_draft_tokens None: a chain). CannotFit for a tree when only chains were
        measured, and where the fit gives a cost that is not positive."""
        tokens = chain_draft_tokens(num_steps) if num_draft_tokens is None else num_draft_tokens
        if self.token_ms is None and tokens != chain_draft_tokens(num_steps):
            raise CannotFit(
                f"num_draft_tokens={tokens} with num_steps={num_steps} is a tree, and only chains were measured; "
                "measure one setting whose num_draft_tokens is not num_steps + 1"
            )
        cost = self.fixed_ms + (self.token_ms or 0.0) * tokens + self.step_ms * num_steps
        if cost <= 0:
            raise CannotFit(f"the fit gives {cost:.2f} ms for num_steps={num_steps}, num_draft_tokens={tokens}")
        return cost

    def break_even(self, num_steps: int, num_draft_tokens: int | None = None) -> float:
        """Accept length from which this setting is faster than plain decoding."""
        return self.cycle_ms(num_steps, num_draft_tokens) / self.plain_ms

    def speedup(self, accept_length, num_steps: int, num_draft_tokens: int | None = None) -> np.ndarray:
        """Speed against plain decoding, if the accept length were this. Below 1: slower."""
        return np.asarray(accept_length, dtype=float) / self.break_even(num_steps, num_draft_tokens)

    def measured(self, num_steps: int, num_draft_tokens: int | None = None) -> bool:
        """Whether the setting lies within the range that was measured."""
        tokens = chain_draft_tokens(num_steps) if num_draft_tokens is None else num_draft_tokens
        return num_steps <= self.longest and tokens <= self.widest

    def __str__(self):
        verify = "" if self.token_ms is None else f" + {self.token_ms:.1f} ms for each verified token"
        few = "two" if self.token_ms is None else "three"
        error = f"fitted to {few} settings, nothing left to check it with"
        if self.worst_error is not None:
            error = f"fitted to the measured settings within {self.worst_error:.0%}"
        return (
            f"one cycle takes {self.fixed_ms:.1f} ms{verify} + {self.step_ms:.1f} ms for each draft step at "
            f"{self.condition} ({error}); a plain step takes {self.plain_ms:.1f} ms"
        )


def conditions(rows: Sequence[BenchRow]) -> list[Condition]:
    """The conditions in which settings were measured: fewest streams first, greedy first, CUDA graphs first. So that of
    06's own benchmark (one stream, greedy, with the graphs where there are any) is the first."""
    found = {row.condition for row in rows if row.accept_length is not None}
    graphs = (None, True, False)
    return sorted(found, key=lambda one: (one.concurrency, one.temperature, graphs.index(one.cuda_graphs)))


def fit_cycle_cost(rows: Sequence[BenchRow], condition: Condition = ONE_STREAM) -> CycleCost:
    """Costs by least squares over the speculating rows of one condition, in relative error.

    CannotFit: no baseline there, fewer than two different chain lengths, too few settings for trees, or a cost of
    drafting that comes out negative or a cycle cheaper than a plain step (noise larger than what a draft step costs),
    speeds that are not measurable.
    """
    here = [row for row in rows if row.condition == condition]
    baselines = [row for row in here if row.accept_length is None]
    settings = [row for row in here if row.accept_length is not None]
    where = f"at {condition}"
    if len(baselines) != 1:
        raise CannotFit(f"{len(baselines)} baseline rows {where}, exactly one is needed")
    if len({row.num_steps for row in settings}) < 2:
        raise CannotFit(f"fewer than two different num_steps {where}: the cost of a draft step cannot be told")
    if why := not_measurable(rows, condition):
        raise CannotFit(f"not measurable {where}: {why}")
    steps_R = np.array([row.num_steps for row in settings], dtype=float)
    tokens_R = np.array([row.num_draft_tokens for row in settings], dtype=float)
    cost_R = np.array([row.cycle_ms for row in settings])
    chains = bool((tokens_R == chain_draft_tokens(steps_R)).all())
    columns = [np.ones_like(steps_R), steps_R] if chains else [np.ones_like(steps_R), steps_R, tokens_R]
    design = np.stack(columns, axis=1)
    values = np.linalg.svd(design, compute_uv=False)
    if len(settings) < len(columns) or values[-1] < SINGULAR * values[0]:
        raise CannotFit(
            f"{len(settings)} settings {where} cannot tell verification from draft steps; measure a num_draft_tokens "
            "twice with different num_steps, and a num_steps twice with different num_draft_tokens"
        )
    weights = 1 / cost_R  # a tenth of a long cycle is as bad as a tenth of a short one
    found, *_ = np.linalg.lstsq(design * weights[:, None], np.ones_like(cost_R), rcond=None)
    fixed, step, *rest = (float(value) for value in found)
    token = rest[0] if rest else None
    if step < 0 or (token is not None and token < 0):
        parts = f"a draft step {step:+.2f} ms" + ("" if token is None else f", a verified token {token:+.2f} ms")
        raise CannotFit(f"the fitted costs {where} are negative ({parts}): the rows are too noisy, take more rounds")
    errors = np.abs(design @ found / cost_R - 1)
    worst = float(errors.max()) if len(settings) > len(columns) else None
    longest, widest = int(steps_R.max()), int(tokens_R.max())
    cost = CycleCost(condition, baselines[0].cycle_ms, fixed, token, step, worst, longest, widest)
    if cost.fixed_ms + cost.step_ms + 2 * (cost.token_ms or 0.0) < cost.plain_ms:  # a chain of one, the cheapest cycle
        raise CannotFit(
            f"a cycle fitted {where} is cheaper than a plain step: the rows are too noisy, take more rounds"
        )
    return cost


def chain_accept_length(joint: Sequence[float | None], num_steps: int) -> float:
    """Accept length of a chain of `num_steps` from the joint acceptance of its draft positions, as measured with a
    chain at least that long (ValueError otherwise): 1 + the sum of the first num_steps."""
    if num_steps > len(joint) or any(share is None for share in joint[:num_steps]):
        raise ValueError(f"acceptance is known for {len(joint)} draft positions, num_steps={num_steps} needs as many")
    return 1.0 + sum(joint[:num_steps])


def best_chain(cost: CycleCost, joint: Sequence[float | None]) -> tuple[int, float]:
    """The chain length, within the measured ones, of the largest predicted speed-up, and that speed-up (may be < 1)."""
    lengths = [n for n in range(1, min(cost.longest, len(joint)) + 1) if joint[n - 1] is not None]
    if not lengths:
        raise ValueError("no draft position was observed")
    gains = {n: float(cost.speedup(chain_accept_length(joint, n), n)) for n in lengths}
    best = max(gains, key=gains.get)
    return best, gains[best]


def what_if(cost: CycleCost, accept_lengths: Sequence[float], settings: Sequence[tuple[int, int]]) -> np.ndarray:
    """Speed-up of (num_steps, num_draft_tokens) if the accept length were this, [len(settings), len(accept_lengths)].
    NaN where it cannot be: a chain or tree commits at most num_steps + 1 tokens a cycle, at least 1. CannotFit as
    `CycleCost.cycle_ms`."""
    lengths = np.asarray(accept_lengths, dtype=float)
    table = np.stack([cost.speedup(lengths, *setting) for setting in settings])
    possible = (lengths >= 1) & (lengths <= np.array([steps + 1 for steps, _ in settings])[:, None])
    return np.where(possible, table, np.nan)


@dataclass(frozen=True)
class Advice:
    """What the measured rows of one condition say. `speculate` only when the best setting won every round, and never
    when the speeds are not `measurable`."""

    condition: Condition
    speculate: bool
    measurable: bool
    best: BenchRow
    text: str

    def __str__(self):
        return self.text


def advise(rows: Sequence[BenchRow], profile: str = "PROFILE") -> list[Advice]:
    """One advice for each condition: the setting to run, not to speculate, or to measure `profile` again. ValueError
    without a setting."""
    settings = [row for row in rows if row.accept_length is not None]
    if not settings:
        raise ValueError("no speculating setting was measured, so there is nothing to advise")
    found = []
    for condition in conditions(settings):
        best = max((row for row in settings if row.condition == condition), key=lambda row: row.speedup)
        why = not_measurable(rows, condition)
        text = f"{NOT_MEASURABLE} at {condition}: {why}; repeat with: {measure_anew(profile)}" if why else _words(best)
        found.append(Advice(condition, not why and best.speedup_low > 1, not why, best, text))
    return found


def measure_anew(profile: str) -> str:
    """The command that measures a profile's speeds anew, and what its curve needs then."""
    run = f"python -m eagle3lab run {profile}"
    return f"{run} --only serving --force, and then for the curve: {run} --only scaling"


def _words(best: BenchRow) -> str:
    setting = f"num_steps {best.num_steps}, topk {best.topk}, num_draft_tokens {best.num_draft_tokens}"
    facts = f"accept length {best.accept_length:.2f}, break-even {best.break_even:.2f}"
    if best.speedup_low > 1:
        return f"speculate with {setting}: {best.gain} at {best.condition} ({facts})"
    if best.speedup > 1:
        low = f"x{best.speedup_low:.2f} in its worst round"
        return f"do not speculate yet: {setting} gives x{best.speedup:.2f} at {best.condition}, but {low} ({facts})"
    return f"do not speculate: the best setting ({setting}) gives x{best.speedup:.2f} at {best.condition} ({facts})"
