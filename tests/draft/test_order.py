"""The order of rows: windows of whole shards, and a plan that does not depend on how it is shared out."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3lab.draft.order import epoch_seed, micro_batches, shard_windows, training_plan
from eagle3lab.draft.team import Team

LENGTHS = {f"r{i}": 5 + (7 * i) % 50 for i in range(101)}
SHARD_OF = {row_id: f"shard-{i // 9}" for i, row_id in enumerate(LENGTHS)}


def test_windows_hold_whole_shards_and_no_more_tokens_than_allowed():
    windows = shard_windows(LENGTHS, SHARD_OF.__getitem__, 600, seed=3)
    assert sorted(row_id for window in windows for row_id in window) == sorted(LENGTHS)
    assert len(windows) > 3
    for window in windows:
        shards = {SHARD_OF[row_id] for row_id in window}
        assert set(window) == {row_id for row_id in LENGTHS if SHARD_OF[row_id] in shards}
        assert sum(LENGTHS[row_id] for row_id in window) <= 600
    shuffled = list(LENGTHS.items())
    random.Random(0).shuffle(shuffled)
    assert windows == shard_windows(dict(shuffled), SHARD_OF.__getitem__, 600, seed=3)
    assert windows != shard_windows(LENGTHS, SHARD_OF.__getitem__, 600, seed=4)


def test_a_shard_larger_than_the_window_stands_alone():
    windows = shard_windows({"a": 50, "b": 60, "c": 5}, {"a": "1", "b": "1", "c": "2"}.__getitem__, 20, seed=0)
    assert sorted(windows) == [["a", "b"], ["c"]]
    with pytest.raises(ValueError, match="window_tokens=0"):
        shard_windows({"a": 5}, str, 0, seed=0)


def test_a_plan_reads_window_after_window():
    plan = training_plan(LENGTHS, 128, 2, 2, 5, SHARD_OF.__getitem__, 600)
    per_epoch = len(plan) // 2
    for epoch, steps in enumerate((plan[:per_epoch], plan[per_epoch:])):
        order = [row_id for step in steps for batch in step for row_id in batch]
        assert sorted(order) == sorted(LENGTHS)
        for window in shard_windows(LENGTHS, SHARD_OF.__getitem__, 600, epoch_seed(5, epoch)):
            assert set(order[: len(window)]) == set(window)
            order = order[len(window) :]
    for batch in (batch for step in plan for batch in step):
        assert len(batch) * max(LENGTHS[row_id] for row_id in batch) <= 128
    assert plan[:per_epoch] != plan[per_epoch:]


def test_without_windows_shards_do_not_matter():
    plan = training_plan(LENGTHS, 128, 3, 1, 5)
    batches = micro_batches(LENGTHS, 128, epoch_seed(5, 0))
    assert plan == [batches[i : i + 3] for i in range(0, len(batches), 3)]
    assert plan == training_plan(LENGTHS, 128, 3, 1, 5, SHARD_OF.__getitem__, 10**9)  # one window of everything


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 7), st.integers(1, 7), st.integers(0, 9))
def test_any_number_of_processes_trains_the_same_rows_in_each_step(lengths, size, accumulate, seed):
    """The plan knows nothing of processes. Their shares of a step are the step, and differ by a micro-batch at most."""
    rows = {f"r{i}": length for i, length in enumerate(lengths)}
    plan = training_plan(rows, 64, accumulate, 2, seed)
    assert sorted(row_id for step in plan for batch in step for row_id in batch) == sorted([*rows, *rows])
    for step in plan:
        shares = [Team(rank, size).share(step) for rank in range(size)]
        assert sorted(batch for share in shares for batch in share) == sorted(step)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1 and len(shares[0]) == max(map(len, shares))
