"""Simulated against served, verification by verification, and the likeliest causes where they differ.

A served greedy chain and the simulation of the same drafter on the same states accept the same drafts. Where they do
not, the suspects (see `suspects.py`) are tried one by one: each foretells what would have been accepted at the very
slots where the server verified, and is ranked by how often it is right.

Shapes: T tokens, K draft steps, C verifications.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from eagle3lab.analysis.suspects import REMEDIES, Suspect
from eagle3lab.draft.batch import predicted_token
from eagle3lab.draft.chain import first_slot, leading_hits
from eagle3lab.draft.decode import answer_hits
from eagle3lab.engines.base import SpecCompletion

NEARLY_ALL = 0.97  # agreement from which the rest is taken for rounding


class ParityError(ValueError):
    """Served answers that cannot be compared with the rows."""


@dataclass(frozen=True)
class Served:
    """Served verifications that can be compared, as columns: answer, slot, drafts accepted, drafts that could count.

    same_text: answers served token for token; other_text: answers that went another way, compared up to there;
    other_prompt: answers to other prompt tokens, not compared.
    """

    ids: tuple[str, ...]
    answer_C: np.ndarray
    slot_C: np.ndarray
    accepted_C: np.ndarray
    room_C: np.ndarray
    same_text: int
    other_text: tuple[str, ...]
    other_prompt: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.answer_C)


def served_verifications(rows: Iterable, completions: Iterable[SpecCompletion], num_steps: int) -> Served:
    """Verifications of served answers to the prompts of `rows` (AnswerRow: `id`, `n_prompt`, `input_ids_T`).

    Where the served text leaves the row's, the verifications up to there count, the one that leaves it not. Raises
    ParityError when the engine did not tell what its verifications accepted, KeyError for an answer without a row.
    """
    by_id = {row.id: row for row in rows}
    ids, columns, other_text, other_prompt, same = [], [], [], [], 0
    for completion in completions:
        row = by_id[completion.id]
        known, n_prompt = row.input_ids_T.tolist(), row.n_prompt
        if completion.accepted is None:
            raise ParityError(f"{row.id}: the engine did not tell what each verification accepted")
        if list(completion.prompt_ids) != known[:n_prompt]:
            other_prompt.append(row.id)
            continue
        served = [*completion.prompt_ids, *completion.output_ids]
        shared = _shared(known, served)
        if shared == len(known) == len(served):
            same += 1
        else:
            other_text.append(row.id)
        slot, end = first_slot(n_prompt), min(shared, len(known), len(served))
        for accepted in completion.accepted:
            start = predicted_token(slot, 0)
            if start + accepted + 1 > end:
                break
            room = min(num_steps, len(served) - start - 1)
            columns.append((len(ids), slot, accepted, room))
            slot += accepted + 1
        ids.append(row.id)
    table = np.array(columns, dtype=np.int64).reshape(-1, 4).T
    return Served(tuple(ids), *table, same, tuple(other_text), tuple(other_prompt))


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    """Tokens at the beginning that two sequences have in common."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))


@torch.no_grad()
def foretold(draft, rows: Sequence, served: Served, num_steps: int, suspect: Suspect | None = None) -> np.ndarray:
    """Drafts that would be accepted at the served slots, int [C], by the drafter as it is or with a suspect planted."""
    if suspect is not None and suspect.never:
        return np.zeros(len(served), dtype=np.int64)
    by_id = {row.id: row for row in rows}
    chosen = [by_id[id] for id in served.ids]
    chosen = chosen if suspect is None else list(suspect.rows(chosen))
    with nullcontext() if suspect is None else suspect.plant(draft):
        hits = list(answer_hits(draft, chosen, num_steps))
    leading = {row.id: leading_hits(hits_TK.numpy()) for row, hits_TK in hits}
    found_C = np.zeros(len(served), dtype=np.int64)
    for index, id in enumerate(served.ids):
        here_C = served.answer_C == index
        found_C[here_C] = leading[id][served.slot_C[here_C]]
    return np.minimum(found_C, served.room_C)


@dataclass(frozen=True)
class Difference:
    """The first verification of an answer that differs: its number (0-based), slot, and what each side accepted."""

    id: str
    verification: int
    slot: int
    simulated: int
    served: int


@dataclass(frozen=True)
class Cause:
    """A possible cause. name: in one way, or in several that would be accepted alike. agreement: share of the
    verifications it foretells; None where it was not computed because a fact shows it (`why`)."""

    cause: str
    name: str
    agreement: float | None
    why: str
    remedy: str


@dataclass(frozen=True)
class Parity:
    """The comparison. `agreement` is that of the drafter as it is; `causes` are ranked, likeliest first, and empty
    where nothing differs."""

    verifications: int
    differing: int
    same_text: int
    other_text: tuple[str, ...]
    other_prompt: tuple[str, ...]
    first: tuple[Difference, ...]
    causes: tuple[Cause, ...]

    @property
    def agreement(self) -> float:
        return 1 - self.differing / self.verifications if self.verifications else 0.0

    @property
    def equal(self) -> bool:
        """Does every verification agree, in every answer."""
        return bool(self.verifications) and not (self.differing or self.other_text or self.other_prompt)

    def __str__(self):
        words = f"{self.differing:,} of {self.verifications:,} verifications differ"
        likely = f"; likeliest cause: {self.causes[0].cause} ({self.causes[0].name})" if self.causes else ""
        return words + likely


def compare(
    draft,
    rows: Sequence,
    completions: Iterable[SpecCompletion],
    num_steps: int,
    candidates: Sequence[Suspect] = (),
    facts: Mapping[str, str] | None = None,
    excluded: Iterable[str] = (),
) -> Parity:
    """Compares simulated and served verifications of the same answers and ranks the causes of what differs.

    candidates: `suspects(draft, ...)`. facts: causes that something else shows (cause -> what shows it), e.g. a finding
    of the doctor; they come first. excluded: causes that cannot be (the server says it runs EAGLE3: not the flag).
    """
    served = served_verifications(rows, completions, num_steps)
    simulated_C = foretold(draft, rows, served, num_steps)
    differs_C = simulated_C != served.accepted_C
    facts = dict(facts or {})
    if served.other_prompt:
        facts.setdefault("template", f"{len(served.other_prompt)} answers were served to other prompt tokens")
    causes: list[Cause] = []
    if differs_C.any() or served.other_prompt or served.other_text:
        as_it_is = float((~differs_C).mean()) if len(served) else 0.0
        causes = _ranked(draft, rows, served, num_steps, candidates, facts, set(excluded), as_it_is)
    return Parity(
        len(served),
        int(differs_C.sum()),
        served.same_text,
        served.other_text,
        served.other_prompt,
        _first_differences(served, simulated_C),
        tuple(causes),
    )


def _ranked(draft, rows, served, num_steps, candidates, facts, excluded, as_it_is) -> list[Cause]:
    named = {suspect.cause: suspect.name for suspect in reversed(list(candidates))}  # the first of each cause
    alike: dict[tuple[str, bytes], list[Suspect]] = {}  # same cause, same verifications foretold: not to be told apart
    for suspect in candidates:
        if suspect.cause not in excluded and len(served):
            foretold_C = foretold(draft, rows, served, num_steps, suspect)
            alike.setdefault((suspect.cause, foretold_C.tobytes()), []).append(suspect)
    tried = []
    for (cause, foretelling), group in alike.items():
        agreement = float((np.frombuffer(foretelling, dtype=np.int64) == served.accepted_C).mean())
        if cause == "precision" and as_it_is >= NEARLY_ALL:  # rounding cannot be foretold, only be small
            agreement = max(agreement, as_it_is)
        why = f"foretells {agreement:.1%} of the verifications; the drafter as it is, {as_it_is:.1%}"
        if others := [name for name, same in alike if same == foretelling and name != cause]:
            why += f"; {', '.join(others)} would be accepted alike"
        tried.append(Cause(cause, " or ".join(one.name for one in group), agreement, why, REMEDIES[cause]))
    tried.sort(key=lambda cause: -cause.agreement)
    named |= {cause.cause: cause.name for cause in reversed(tried)}  # the way that foretells most
    proven = [Cause(cause, named.get(cause, cause), None, why, REMEDIES[cause]) for cause, why in facts.items()]
    return proven + [cause for cause in tried if cause.cause not in facts]


def _first_differences(served: Served, simulated_C: np.ndarray) -> tuple[Difference, ...]:
    found = []
    for index, id in enumerate(served.ids):
        here = np.flatnonzero(served.answer_C == index)
        differing = here[simulated_C[here] != served.accepted_C[here]]
        if len(differing):
            at = differing[0]
            counts = int(simulated_C[at]), int(served.accepted_C[at])
            found.append(Difference(id, int(at - here[0]), int(served.slot_C[at]), *counts))
    return tuple(found)
