"""Controls that must fail: the same drafter or training, fed something that holds no information.

A drafter that does as well on a control as on the real thing is not doing what it is believed to do, or the evaluation
leaks. The random drafter is `draft.model.random_like`.

Shapes: T tokens, A aux layers, H hidden, M slots with a teacher.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch


def shuffled_layers(rows: Iterable) -> Iterator:
    """The rows with their aux layers in another order (each moved on by one): the drafter sees the right states in the
    wrong places of `fc`. ValueError for a single layer."""
    for row in rows:
        if row.aux_TAH.shape[1] < 2:
            raise ValueError(f"{row.id}: one aux layer has no other order")
        yield replace(row, aux_TAH=row.aux_TAH.roll(1, dims=1))


def shuffled_states(rows: Iterable, seed: int = 0) -> Iterator:
    """The rows with the aux states of their tokens shuffled: right tokens, states that belong to other places."""
    for row, order_T in _orders(rows, seed, lambda row: row.aux_TAH.shape[0]):
        yield replace(row, aux_TAH=row.aux_TAH[order_T])


def shuffled_teacher(rows: Iterable, seed: int = 0) -> Iterator:
    """The rows with their teacher's states shuffled: a drafter trained on these learns which tokens are frequent, and
    nothing of when they come."""
    for row, order_M in _orders(rows, seed, lambda row: row.last_MH.shape[0]):
        yield replace(row, last_MH=row.last_MH[order_M])


def _orders(rows, seed, size) -> Iterator[tuple]:
    generator = torch.Generator().manual_seed(seed)
    for row in rows:
        yield row, torch.randperm(size(row), generator=generator)
