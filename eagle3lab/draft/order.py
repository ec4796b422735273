"""In which order rows are trained: length-bucketed micro-batches, the same for the same seed.

Bucketing keeps padding of the attention grid low; shuffling whole micro-batches keeps the order of lengths random.

A store that is larger than the disk cache is best read shard after shard. Then rows are shuffled within windows: shards
in a random order, as many at a time as the window's tokens allow. What a window holds is what the cache has to hold.
"""

import random
from collections.abc import Callable, Mapping

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


def shard_windows(
    lengths: Mapping[str, int], shard_of: Callable[[str], str], window_tokens: int, seed: int
) -> list[list[str]]:
    """The row ids in groups of whole shards, at most `window_tokens` tokens a group (a larger shard stands alone)."""
    if window_tokens < 1:
        raise ValueError(f"window_tokens={window_tokens}, at least 1 is needed")
    by_shard: dict[str, list[str]] = {}
    for row_id in sorted(lengths):
        by_shard.setdefault(shard_of(row_id), []).append(row_id)
    shards = sorted(by_shard)
    random.Random(seed).shuffle(shards)
    windows, room = [], 0
    for shard in shards:
        tokens = sum(lengths[row_id] for row_id in by_shard[shard])
        if not windows or tokens > room:
            windows.append([])
            room = window_tokens
        windows[-1] += by_shard[shard]
        room -= tokens
    return windows


def training_plan(
    lengths: Mapping[str, int],
    batch_tokens: int,
    accumulate: int,
    epochs: int,
    seed: int,
    shard_of: Callable[[str], str] | None = None,
    window_tokens: int | None = None,
):
    """Micro-batches of every optimizer step, all epochs: list of lists of row-id lists.

    With `window_tokens` the rows are read window by window, see above, and the order depends on the shards too
    (`shard_of` a row id); without, it depends on the ids, their lengths and the seed alone. Either way the processes
    that share a step's micro-batches see the same plan, however many they are. Raises ValueError for `window_tokens`
    without `shard_of`.
    """
    if window_tokens is not None and shard_of is None:
        raise ValueError(
            f"window_tokens={window_tokens}, but these rows lie in no shards (they are captured when they are read): "
            "set window_tokens=None, or extract a feature store"
        )
    plan = []
    for epoch in range(epochs):
        order_seed = epoch_seed(seed, epoch)
        windows = [lengths] if window_tokens is None else shard_windows(lengths, shard_of, window_tokens, order_seed)
        batches = [
            batch
            for window in windows
            for batch in micro_batches({row_id: lengths[row_id] for row_id in window}, batch_tokens, order_seed)
        ]
        plan += [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]
    return plan
