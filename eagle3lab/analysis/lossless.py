"""Is a sampled answer distributed alike with and without speculation? A chi-square test on one prompt's answers.

Greedy answers are compared token by token (`bench.Difference`); sampled ones differ from draw to draw, so the
frequencies of their tokens are compared, place by place after the first, which comes from the prefill. Tokens too rare
for the test are taken together as one group.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import torch

from eagle3lab.engines.base import Request

LEVEL = 0.001  # chance of a false alarm
RARE = 10  # of both sides together; below it a token is put to the rare ones: five are expected of each side


@dataclass(frozen=True)
class SameDistribution:
    """Chi-square test of two samples of `answers` answers each, in `groups` groups: p is the chance of a difference at
    least as large if both are distributed alike. With one group there is nothing to compare, and p is 1."""

    answers: int
    groups: int
    chi_square: float
    p: float

    @property
    def different(self) -> bool:
        return self.p < LEVEL

    def __str__(self) -> str:
        verdict = "NOT distributed alike" if self.different else "no difference found"
        if self.groups < 2:
            return f"nothing can be told from {self.answers} answers: take more of them, or another temperature"
        return (
            f"{verdict}: chi-square {self.chi_square:.1f} with {self.groups - 1} degrees of freedom, p {self.p:.3g} "
            f"(level {LEVEL}), {self.answers} answers with and without speculation"
        )


def same_distribution(plain: Sequence[Hashable], speculated: Sequence[Hashable]) -> SameDistribution:
    """The test on two samples of equal size (ValueError for others)."""
    if len(plain) != len(speculated):
        raise ValueError(f"{len(plain)} plain answers and {len(speculated)} others: take as many of each")
    sides = Counter(plain), Counter(speculated)
    seen = {answer: sides[0][answer] + sides[1][answer] for answer in {*plain, *speculated}}
    groups: dict[Hashable, list[int]] = {}
    for answer, count in seen.items():
        group = groups.setdefault(answer if count >= RARE else "rare", [0, 0])
        for side in (0, 1):
            group[side] += sides[side][answer]
    chi_square = sum((a - b) ** 2 / (a + b) for a, b in groups.values())
    if len(groups) < 2:
        return SameDistribution(len(plain), len(groups), 0.0, 1.0)
    half = torch.tensor([(len(groups) - 1) / 2, chi_square / 2], dtype=torch.float64)
    return SameDistribution(len(plain), len(groups), chi_square, float(torch.special.gammaincc(*half)))


def sampled_alike(
    engine, draft, input_ids: Sequence[int], temperature: float, answers: int, num_steps: int
) -> SameDistribution:
    """Samples `answers` answers to one prompt plainly, as many with other seeds speculatively, and compares them.

    An answer is as long as its first verification can make it. The place that differs most is given back, its p
    multiplied by the number of places that were looked at.
    """
    shape = {"input_ids": list(input_ids), "max_tokens": num_steps + 2, "temperature": temperature}
    plain = [Request(f"plain-{i}", **shape, seed=i) for i in range(answers)]
    speculated = [Request(f"speculated-{i}", **shape, seed=answers + i) for i in range(answers)]
    samples = (engine.generate(plain, batch_size=32), engine.speculate(draft, speculated, num_steps=num_steps))
    rows = [[[*done.output_ids, *[None] * shape["max_tokens"]] for done in sample] for sample in samples]
    places = range(1, shape["max_tokens"])
    found = [same_distribution(*([ids[place] for ids in side] for side in rows)) for place in places]
    worst = min(found, key=lambda one: one.p)
    return replace(worst, p=min(1.0, worst.p * len(places)))
