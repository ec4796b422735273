"""In which order rows are trained: length-bucketed micro-batches, the same for the same seed.

Bucketing keeps padding of the attention grid low; shuffling whole micro-batches keeps the order of lengths random.
"""

import random
from collections.abc import Mapping

BUCKET = 16  # rows whose lengths fall into one bucket are shuffled among each other


def micro_batches(lengths: Mapping[str, int], batch_tokens: int, seed: int) -> list[list[str]]:
    """Partition of the row ids into lists with rows * longest <= batch_tokens (a longer single row stands alone)."""
    rng = random.Random(seed)
    by_id = sorted(lengths)
    rng.shuffle(by_id)
    by_id.sort(key=lambda row_id: lengths[row_id] // BUCKET)
    batches, current, longest = [], [], 0
    for row_id in by_id:
        longest_with = max(longest, lengths[row_id])
        if current and (len(current) + 1) * longest_with > batch_tokens:
            batches.append(current)
            current, longest_with = [], lengths[row_id]
        current.append(row_id)
        longest = longest_with
    if current:
        batches.append(current)
    rng.shuffle(batches)
    return batches


def epoch_seed(seed: int, epoch: int) -> int:
    """Seed of one epoch's order."""
    return seed * 1_000_003 + epoch


def training_plan(lengths: Mapping[str, int], batch_tokens: int, accumulate: int, epochs: int, seed: int):
    """Micro-batches of every optimizer step, all epochs: list of lists of row-id lists."""
    plan = []
    for epoch in range(epochs):
        batches = micro_batches(lengths, batch_tokens, epoch_seed(seed, epoch))
        plan += [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]
    return plan
