"""Where accept length is lost: what every verification lacks, charged to the draft that stopped its chain.

Shapes: C verifications, K draft steps (num_steps), P answers, T tokens of a row, V target vocabulary.

A verification of a chain of K drafts could commit K + 1 tokens and commits accepted + 1. The K - accepted that are
missing are charged to
    draft vocabulary   its first wrong draft stands where a token without a draft id belongs
    position k         its first wrong draft is the k-th, and the token has a draft id
    end of answer      the answer is over: no drafter gets these
so the parts add up, to the token, to (K + 1) * verifications - committed. `room` is how many drafts can count before
the answer ends; slots and ends are those of `draft/chain.py`. Only tokens and accepted counts are needed: simulated and
served verifications are treated alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eagle3lab.analysis.accept import PromptCycles, accept_length, ratio_interval
from eagle3lab.draft.batch import predicted_token
from eagle3lab.draft.chain import first_slot, walk

VOCABULARY, END = "draft vocabulary", "end of answer"


def position_name(position: int) -> str:
    """Name of the part of draft position 1, 2, ..."""
    return f"position {position}"


@dataclass(frozen=True)
class Walked:
    """One answer and its verifications. Raises ValueError when they do not add up to the answer."""

    id: str
    set: str
    n_prompt: int
    input_ids_T: np.ndarray  # prompt and answer
    accepted: tuple[int, ...]

    def __post_init__(self):
        object.__setattr__(self, "input_ids_T", np.asarray(self.input_ids_T))
        PromptCycles.served(self.id, len(self.input_ids_T) - self.n_prompt, self.accepted)


def walked(rows, cycles: Sequence[PromptCycles]) -> list[Walked]:
    """Rows (`id`, `set`, `n_prompt`, `input_ids_T`) with their verifications, in the order of the cycles; rows without
    any are left out. KeyError for cycles of an unknown row."""
    by_id = {row.id: row for row in rows}
    found = [(by_id[c.id], c) for c in cycles if c.accepted]
    return [Walked(r.id, r.set, r.n_prompt, np.asarray(r.input_ids_T), c.accepted) for r, c in found]


@dataclass(frozen=True)
class Verifications:
    """Columns, one entry a verification, answer after answer in their order.

    answer_C index of the answer; slot_C slot of its chain; accepted_C; room_C drafts that could count (0..K).
    stopped_C: a wrong draft ended it (not the answer, nor the chain). unknown_C: that draft's token has no draft id.
    """

    num_steps: int
    answers: tuple[Walked, ...]
    answer_C: np.ndarray
    slot_C: np.ndarray
    accepted_C: np.ndarray
    room_C: np.ndarray
    stopped_C: np.ndarray
    unknown_C: np.ndarray

    def __len__(self) -> int:
        return len(self.answer_C)

    def per_answer(self, values_C) -> np.ndarray:
        """Sum of a column over the verifications of each answer, [P]."""
        return np.bincount(self.answer_C, np.asarray(values_C, dtype=float), minlength=len(self.answers))


def verifications(answers: Sequence[Walked], num_steps: int, in_vocab_V) -> Verifications:
    """The verifications of all answers as columns. in_vocab_V: bool, has this target id a draft id.

    Raises ValueError when a verification accepted more than it could, or a token that has no draft id: the counts are
    of another chain or the map is of another drafter.
    """
    in_vocab_V, columns = np.asarray(in_vocab_V, dtype=bool), []
    for index, answer in enumerate(answers):
        ids_T, slot = answer.input_ids_T, first_slot(answer.n_prompt)
        for accepted in answer.accepted:
            start = predicted_token(slot, 0)
            room = min(num_steps, len(ids_T) - start - 1)  # the last token is the bonus token's place
            if accepted > room:
                raise ValueError(f"{answer.id}: {accepted} drafts accepted at slot {slot}, at most {room} could be")
            if not in_vocab_V[ids_T[start : start + accepted]].all():
                raise ValueError(f"{answer.id}: an accepted draft at slot {slot} has no draft id: whose map?")
            stopped = accepted < room
            unknown = stopped and not in_vocab_V[ids_T[start + accepted]]
            columns.append((index, slot, accepted, room, stopped, unknown))
            slot += accepted + 1
    if not columns:
        raise ValueError("no verification: every answer is of its first token alone")
    return Verifications(num_steps, tuple(answers), *(np.array(column) for column in zip(*columns, strict=True)))


@dataclass(frozen=True)
class Part:
    """One part of the loss. tokens: drafts lost to it, in all; lost: the same per verification, with its bootstrap
    interval over answers; gain: what the accept length would grow by without it, if later positions accepted as now."""

    name: str
    verifications: int  # that it stopped or cut
    tokens: int
    lost: float
    interval: tuple[float, float] | None
    gain: float


@dataclass(frozen=True)
class Position:
    """Drafts at one position whose predecessors were all accepted, and that could count."""

    position: int
    reached: int
    accepted: int
    unknown: int  # wrong, and the token has no draft id

    @property
    def conditional(self) -> float | None:
        """Share accepted."""
        return self.accepted / self.reached if self.reached else None

    @property
    def conditional_known(self) -> float | None:
        """Share accepted of those whose token has a draft id."""
        known = self.reached - self.unknown
        return self.accepted / known if known else None


@dataclass(frozen=True)
class Attribution:
    """The waterfall: `num_steps + 1 - sum(part.lost) = accept_length`, exact in tokens."""

    num_steps: int
    answers: int
    verifications: int
    committed: int
    parts: tuple[Part, ...]
    positions: tuple[Position, ...]

    @property
    def accept_length(self) -> float:
        return accept_length(self.committed, self.verifications)

    def part(self, name: str) -> Part:
        """The part of this name."""
        return next(part for part in self.parts if part.name == name)


def attribute(v: Verifications, seed: int = 0) -> Attribution:
    """The parts in the order draft vocabulary, position 1..K, end of answer; parts that lose nothing are there too."""
    K = v.num_steps
    lost_C = v.room_C - v.accepted_C
    columns = {VOCABULARY: np.where(v.unknown_C, lost_C, 0)}
    for k in range(1, K + 1):
        here_C = v.stopped_C & ~v.unknown_C & (v.accepted_C == k - 1)
        columns[position_name(k)] = np.where(here_C, lost_C, 0)
    columns[END] = K - v.room_C
    positions = tuple(_position(v, k) for k in range(1, K + 1))
    gains = _gains(v, positions)
    ones_P = v.per_answer(np.ones(len(v)))
    parts = []
    for name, tokens_C in columns.items():
        interval = ratio_interval(v.per_answer(tokens_C), ones_P, seed=seed)
        total = int(tokens_C.sum())
        parts.append(Part(name, int((tokens_C > 0).sum()), total, total / len(v), interval, gains[name]))
    committed = int(v.accepted_C.sum()) + len(v)
    return Attribution(K, len(v.answers), len(v), committed, tuple(parts), positions)


def _position(v: Verifications, k: int) -> Position:
    reached_C = (v.accepted_C >= k - 1) & (v.room_C >= k)
    accepted_C, unknown_C = reached_C & (v.accepted_C >= k), reached_C & v.unknown_C & (v.accepted_C == k - 1)
    return Position(k, int(reached_C.sum()), int(accepted_C.sum()), int(unknown_C.sum()))


def _gains(v: Verifications, positions: Sequence[Position]) -> dict[str, float]:
    """Growth of the accept length 1 + sum over k of product over j <= k of the conditional shares, for each part."""
    now = [p.conditional or 0.0 for p in positions]
    endless = _chain_length(now)
    gains = {VOCABULARY: _chain_length([p.conditional_known or 0.0 for p in positions]) - endless}
    for index, p in enumerate(positions):
        mended = (p.reached - p.unknown) / p.reached if p.reached else 0.0
        gains[position_name(p.position)] = _chain_length([*now[:index], mended, *now[index + 1 :]]) - endless
    gains[END] = endless - accept_length(int(v.accepted_C.sum()) + len(v), len(v))
    return gains


def _chain_length(conditionals: Sequence[float]) -> float:
    return 1 + float(np.cumprod(conditionals).sum())


def best_possible(rows, num_steps: int, in_vocab_V) -> float:
    """Accept length on these rows (`n_prompt`, `input_ids_T`) of a drafter that is right wherever a draft id exists:
    less than num_steps + 1 by what vocabulary and ends take. ValueError where no row has a verification."""
    in_vocab_V, committed, count = np.asarray(in_vocab_V, dtype=bool), 0, 0
    for row in rows:
        ids_T, T = np.asarray(row.input_ids_T), len(row.input_ids_T)
        token_TK = predicted_token(np.arange(T)[:, None], np.arange(num_steps))
        accepted = walk(in_vocab_V[ids_T[np.minimum(token_TK, T - 1)]], first_slot(row.n_prompt), T)
        committed, count = committed + sum(accepted) + len(accepted), count + len(accepted)
    return accept_length(committed, count)
