"""Accept length and acceptance per draft position, from served verifications and from simulated chains.

Accept length: tokens committed per target verification, the bonus token included; 1.00 = nothing accepted.
Slots, committed tokens and the chain itself are defined in `draft/chain.py`.

Shapes: T token slots, K draft steps (num_steps), P prompts, B bootstrap draws.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from eagle3lab.draft.chain import bool_matrix, first_slot, walk


def accept_length(committed: int, verifications: int) -> float:
    """Tokens committed per verification. ValueError without a verification."""
    if verifications < 1:
        raise ValueError("accept length needs at least one verification")
    return committed / verifications


@dataclass(frozen=True)
class PromptCycles:
    """The verifications of one answer: drafts accepted by each; each commits these and one token more."""

    id: str
    accepted: tuple[int, ...]

    def __post_init__(self):
        object.__setattr__(self, "accepted", tuple(int(a) for a in self.accepted))
        if min(self.accepted, default=0) < 0:
            raise ValueError(f"{self.id}: a verification accepted {min(self.accepted)} drafts")

    @property
    def committed(self) -> int:
        """Tokens the verifications committed: the answer without its first token."""
        return sum(self.accepted) + len(self.accepted)

    @classmethod
    def served(cls, id: str, n_output: int, accepted: Sequence[int]) -> "PromptCycles":
        """From a served answer of n_output tokens. ValueError when the verifications do not add up to it."""
        cycles = cls(id, tuple(accepted))
        if n_output != 1 + cycles.committed:
            raise ValueError(
                f"{id}: the prefill's token and {len(cycles.accepted)} verifications accepting "
                f"{sum(cycles.accepted)} drafts make {1 + cycles.committed} tokens, "
                f"but the answer has {n_output}"
            )
        return cycles

    @classmethod
    def simulated(cls, id: str, hits_TK, n_prompt: int, n_tokens: int, num_steps: int | None = None):
        """From the drafter's hits along a greedy answer (see `walk`)."""
        return cls(id, tuple(walk(hits_TK, first_slot(n_prompt), n_tokens, num_steps)))


@dataclass(frozen=True)
class PositionAcceptance:
    """Acceptance of draft positions 1..K. None where nothing was observed.

    marginal     share of chains whose draft at this position is right, whatever came before (None: not
                 observable).
    joint        share of chains whose drafts up to this position are all right.
    conditional  share right at this position among the chains right at all positions before.
    """

    marginal: tuple[float | None, ...]
    joint: tuple[float | None, ...]
    conditional: tuple[float | None, ...]
    chains: int


def position_acceptance(hits_TK, valid_TK) -> PositionAcceptance:
    """Acceptance over every valid slot (each slot starts a chain; true tokens before it).

    Rows of several answers may be concatenated along T. Conditional shares are taken among the slots where
    the
    position is valid, so an answer's end does not count as a rejection; joint is the product of the
    conditionals.
    """
    hits_TK, valid_TK = bool_matrix(hits_TK), bool_matrix(valid_TK)
    if hits_TK.shape != valid_TK.shape:
        raise ValueError(f"hits are {hits_TK.shape}, valid is {valid_TK.shape}")
    joint_TK = np.logical_and.accumulate(hits_TK, axis=1)
    before_TK = np.concatenate([np.ones_like(joint_TK[:, :1]), joint_TK[:, :-1]], axis=1)
    marginal = _shares((hits_TK & valid_TK).sum(0), valid_TK.sum(0))
    conditional = _shares((joint_TK & valid_TK).sum(0), (before_TK & valid_TK).sum(0))
    return PositionAcceptance(marginal, _running_product(conditional), conditional, int(valid_TK[:, 0].sum()))


def cycle_acceptance(cycles: Iterable[int], num_steps: int) -> PositionAcceptance:
    """Acceptance over verifications, from the drafts each accepted. Marginals cannot be seen from outside.

    A chain cut by the answer's end looks rejected there (at most one verification of an answer).
    """
    counts = np.array(histogram(cycles, num_steps))
    reached = counts[::-1].cumsum()[::-1]  # reached[k]: verifications accepting at least k drafts
    joint = _shares(reached[1:], np.full(num_steps, reached[0]))
    return PositionAcceptance((None,) * num_steps, joint, _shares(reached[1:], reached[:-1]), int(reached[0]))


def histogram(cycles: Iterable[int], num_steps: int) -> list[int]:
    """Verifications by drafts accepted: index k = exactly k, for k in 0..num_steps (SGLang's order)."""
    cycles = np.fromiter(cycles, dtype=np.int64)
    if cycles.size and (cycles.min() < 0 or cycles.max() > num_steps):
        raise ValueError(f"accepted drafts lie in {cycles.min()}..{cycles.max()}, not in 0..{num_steps}")
    return np.bincount(cycles, minlength=num_steps + 1).tolist()


def bootstrap_draws(n_prompts: int, draws: int, seed: int) -> np.ndarray:
    """How often each draw takes each prompt, int [B, P]."""
    return np.random.default_rng(seed).multinomial(n_prompts, np.full(n_prompts, 1 / n_prompts), size=draws)


def bootstrap_interval(
    rows: Sequence[PromptCycles], level: float = 0.95, draws: int = 2000, seed: int = 0
) -> tuple[float, float] | None:
    """Percentile interval of the accept length when prompts are drawn anew. None with fewer than two prompts.

    Prompts are the unit: verifications of one answer are not independent.
    """
    rows = [row for row in rows if row.accepted]
    return ratio_interval([r.committed for r in rows], [len(r.accepted) for r in rows], level, draws, seed)


def ratio_interval(
    above: Sequence[float], below: Sequence[float], level: float = 0.95, draws: int = 2000, seed: int = 0
) -> tuple[float, float] | None:
    """Percentile interval of sum(above) / sum(below) when prompts, one entry each, are drawn anew.

    None with fewer than two prompts that have something below, and where more than one draw in twenty has nothing.
    """
    above_P, below_P = np.asarray(above, dtype=float), np.asarray(below, dtype=float)
    if (below_P > 0).sum() < 2:
        return None
    draws_BP = bootstrap_draws(len(below_P), draws, seed)
    above_B, below_B = draws_BP @ above_P, draws_BP @ below_P
    usable_B = below_B > 0
    if usable_B.mean() < 0.95:
        return None
    low, high = np.quantile(above_B[usable_B] / below_B[usable_B], [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def disagreements(left: Sequence[PromptCycles], right: Sequence[PromptCycles]) -> list[dict]:
    """Prompts whose verifications differ: id, first differing verification (0-based) and both counts there.

    Empty = same prompts, same verifications, same counts. None stands for a verification that one side lacks;
    a prompt that one side lacks has cycle -1 and the other side's number of verifications.
    """
    right_by_id = {row.id: row for row in right}
    found = []
    for row in left:
        other = right_by_id.pop(row.id, None)
        if other is None:
            found.append({"id": row.id, "cycle": -1, "left": len(row.accepted), "right": None})
        elif row != other:
            cycle = first_difference(row.accepted, other.accepted)
            found.append(
                {
                    "id": row.id,
                    "cycle": cycle,
                    "left": _at(row.accepted, cycle),
                    "right": _at(other.accepted, cycle),
                }
            )
    for id, other in right_by_id.items():
        found.append({"id": id, "cycle": -1, "left": None, "right": len(other.accepted)})
    return found


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """Index of the first differing element, a missing one included; None when equal."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))


@dataclass(frozen=True)
class AcceptSetting:
    """What an accept length was measured with. Never print one without it."""

    engine: str
    num_steps: int
    topk: int
    num_draft_tokens: int
    temperature: float
    set: str

    def __str__(self):
        return (
            f"{self.engine}, num_steps {self.num_steps}, topk {self.topk}, num_draft_tokens "
            f"{self.num_draft_tokens}, temperature {self.temperature:g}, {self.set}"
        )


@dataclass(frozen=True)
class AcceptSummary:
    """Accept length of one set of prompts in one setting, with its bootstrap interval over prompts."""

    setting: AcceptSetting
    prompts: int
    verifications: int
    committed: int
    accept_length: float
    interval: tuple[float, float] | None
    histogram: tuple[int, ...]
    joint: tuple[float | None, ...]
    conditional: tuple[float | None, ...]

    def __str__(self):
        interval = f" [{self.interval[0]:.2f}, {self.interval[1]:.2f}]" if self.interval else ""
        return (
            f"accept length {self.accept_length:.2f}{interval} ({self.setting}; {self.prompts} prompts, "
            f"{self.verifications:,} verifications)"
        )

    def to_dict(self) -> dict:
        """JSON values."""
        return asdict(self)


def summarise(rows: Sequence[PromptCycles], setting: AcceptSetting, seed: int = 0) -> AcceptSummary:
    """Accept length of all rows together (sum of tokens / sum of verifications, not a mean of means)."""
    cycles = [a for row in rows for a in row.accepted]
    committed = sum(row.committed for row in rows)
    positions = cycle_acceptance(cycles, setting.num_steps)
    return AcceptSummary(
        setting,
        len(rows),
        len(cycles),
        committed,
        accept_length(committed, len(cycles)),
        bootstrap_interval(rows, seed=seed),
        tuple(histogram(cycles, setting.num_steps)),
        positions.joint,
        positions.conditional,
    )


def _shares(hits, counts) -> tuple[float | None, ...]:
    return tuple(float(h / n) if n else None for h, n in zip(hits, counts, strict=True))


def _running_product(shares) -> tuple[float | None, ...]:
    product, out = 1.0, []
    for share in shares:
        if product:  # neither 0 (nothing is right any more) nor unknown
            product = None if share is None else product * share
        out.append(product)
    return tuple(out)


def _at(cycles, index):
    return cycles[index] if index < len(cycles) else None
