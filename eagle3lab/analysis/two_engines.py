"""One drafter, two engines, the same prompts: one table of what each measured, and where they did not do the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from eagle3lab.analysis.accept import disagreements
from eagle3lab.analysis.bench import BenchResult
from eagle3lab.analysis.tables import bench_table


@dataclass(frozen=True)
class Agreement:
    """Two engines' greedy answers, and the verifications of the same answers with the same chain.

    answers, alike: how many there were and how many are the same. verifications: of the answers that are alike.
    differing: ids of answers that are alike, but whose verifications accepted other drafts; None: an engine does not
    tell what each accepted, or has no answers of this chain.
    """

    num_steps: int
    answers: int
    alike: int
    verifications: int
    differing: tuple[str, ...] | None

    def __str__(self) -> str:
        same = f"chain {self.num_steps}: {self.alike} of {self.answers} answers alike"
        if self.differing is None:
            return f"{same}; what each verification accepted is not told"
        if not self.differing:
            return f"{same}, with the same drafts accepted in all {self.verifications} verifications"
        return f"{same}; in {len(self.differing)} of them other drafts were accepted: {', '.join(self.differing)}"


def agreement(left: BenchResult, right: BenchResult, num_steps: int) -> Agreement:
    """Do two engines answer alike, and accept the same drafts in a chain of num_steps. ValueError when they were not
    asked the same prompts."""
    if left.answers.keys() != right.answers.keys():
        raise ValueError("the two engines were not asked the same prompts")
    alike = {key for key, ids in left.answers.items() if ids is not None and ids == right.answers[key]}
    try:
        sides = [{c.id: c for c in one.cycles(num_steps) if c.id in alike} for one in (left, right)]
    except ValueError:
        sides = [{}, {}]
    here, there = ([c for c in one.values() if c.id in sides[0].keys() & sides[1].keys()] for one in sides)
    if not here:
        return Agreement(num_steps, len(left.answers), len(alike), 0, None)
    other = tuple(dict.fromkeys(found["id"] for found in disagreements(here, there)))
    return Agreement(num_steps, len(left.answers), len(alike), sum(len(row.accepted) for row in here), other)


def engines_table(rows: Mapping[str, Sequence]) -> pd.DataFrame:
    """Benchmark rows by engine, one engine below the other. Each engine's speed-up is that over its own baseline."""
    return pd.concat({name: bench_table(found) for name, found in rows.items()}, names=["engine"])
