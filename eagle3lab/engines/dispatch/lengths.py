"""Answer lengths counted in bins, so that a run of any size takes the same memory; what is at risk in each bin.

B: bins. Bin b holds the lengths k with edges[b] < k <= edges[b + 1], in tokens. Bins are one token wide up to 64 and
then grow by 4 %; every max_tokens is an edge.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

FINE, GROWTH = 64, 1.04


def bin_edges(caps: Iterable[int]) -> list[int]:
    """Edges from 0 to the largest of `caps` (each a max_tokens), each of them and the powers of two included."""
    caps = set(caps)
    longest = max(caps)
    edges = {0, *caps, *(2**n for n in range(longest.bit_length()))} | set(range(min(FINE, longest) + 1))
    edge = FINE
    while edge < longest:
        edge = max(edge + 1, int(edge * GROWTH))
        edges.add(edge)
    return sorted(edge for edge in edges if edge <= longest)


class LengthCounts:
    """How long the finished answers of one set were. `stopped_B`: those that ended by themselves, by bin;
    `cut_E`: those cut, by the edge (max_tokens) they were cut at; `tokens`: all of them together."""

    def __init__(self, edges: list[int]):
        self.edges = edges
        self.stopped_B = np.zeros(len(edges) - 1, dtype=np.int64)
        self.cut_E = np.zeros(len(edges), dtype=np.int64)
        self.tokens = 0

    def add(self, length: int, cut: bool) -> None:
        """Count one answer of `length` tokens; lengths outside the edges count as the nearest."""
        self.tokens += length
        if cut:
            self.cut_E[min(bisect_left(self.edges, length), len(self.edges) - 1)] += 1
        else:
            length = min(max(length, 1), self.edges[-1])
            self.stopped_B[bisect_left(self.edges, length) - 1] += 1

    @property
    def answers(self) -> int:
        """Finished answers."""
        return int(self.stopped_B.sum() + self.cut_E.sum())

    def histogram(self) -> tuple[list[int], list[int]]:
        """Edges 0, 1, 2, 4, 8, ... and the number of answers in each bin between them, cut ones included."""
        coarse = [0, *(2**n for n in range(math.ceil(math.log2(self.edges[-1])) + 1))]
        counts = np.zeros(len(coarse) - 1, dtype=np.int64)
        for b in np.flatnonzero(self.stopped_B):
            counts[bisect_left(coarse, self.edges[b + 1]) - 1] += self.stopped_B[b]
        for e in np.flatnonzero(self.cut_E):
            counts[bisect_left(coarse, max(1, self.edges[e])) - 1] += self.cut_E[e]
        return coarse, counts.tolist()


@dataclass(frozen=True)
class Exposure:
    """`ended_B` answers ended by themselves in bin b, of `at_risk_B` that were seen in it (a share where an
    unfinished one stands inside the bin)."""

    edges_E: np.ndarray
    ended_B: np.ndarray
    at_risk_B: np.ndarray

    def __add__(self, other: Exposure) -> Exposure:
        return Exposure(self.edges_E, self.ended_B + other.ended_B, self.at_risk_B + other.at_risk_B)


def exposure(counts: LengthCounts, tokens_so_far: Iterable[float] = ()) -> Exposure:
    """What finished answers and unfinished ones (with the tokens they have by now) say about every bin.

    An unfinished answer with t tokens is known to be longer than t, and a cut one longer than its max_tokens: both
    are at risk below and say nothing above.
    """
    edges = counts.edges
    censored_E = counts.cut_E.astype(float)
    inside_B = np.zeros(len(edges) - 1)
    for tokens in tokens_so_far:
        b = bisect_right(edges, tokens) - 1
        if b >= len(edges) - 1:
            censored_E[-1] += 1
        else:
            censored_E[b] += 1
            inside_B[b] += (tokens - edges[b]) / (edges[b + 1] - edges[b])
    ended_B = counts.stopped_B.astype(float)
    reach_B = np.cumsum(ended_B[::-1])[::-1] + np.cumsum(censored_E[:0:-1])[::-1]
    return Exposure(np.array(edges), ended_B, reach_B + inside_B)
