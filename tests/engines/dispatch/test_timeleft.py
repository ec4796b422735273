"""The time left on replayed runs like the case's, and the parts of it by hand."""

import numpy as np
import pytest

from eagle3lab.engines.dispatch.lengths import LengthCounts, bin_edges
from eagle3lab.engines.dispatch.timeleft import SetState, Speed, drain_seconds, time_left
from tests.engines.dispatch.replay import TOTAL, case_run, shortest_prompts_first, ten_sets


@pytest.mark.parametrize("seed", range(6))
def test_after_a_twentieth_of_the_run_it_is_within_15_percent_where_the_naive_one_is_off_by_half(seed):
    replay = case_run(seed)
    moment, truth = 0.05 * replay.end, 0.95 * replay.end
    tally = replay.tally_at(moment)
    left = tally.time_left(moment)
    assert left.seconds == pytest.approx(truth, rel=0.15)
    assert left.low < truth < left.high
    assert 0.4 < replay.naive_seconds(tally) / truth < 0.6


@pytest.mark.slow
def test_sets_that_come_later_are_known_from_their_first_rows():
    ratios, naive, inside = [], [], 0
    for seed in range(6):
        replay = ten_sets(seed, pilot=64)
        moment, truth = 0.03 * replay.end, 0.97 * replay.end
        tally = replay.tally_at(moment)
        left = tally.time_left(moment)
        ratios.append(left.seconds / truth)
        naive.append(replay.naive_seconds(tally) / truth)
        inside += left.low < truth < left.high
    assert np.abs(np.array(ratios) - 1).max() < 0.2 and np.std(ratios) < 0.12
    assert max(naive) < 0.4  # the short sets come first
    assert inside >= 5  # of six


def test_on_a_machine_that_others_use_too_the_range_holds_the_end():
    inside, widths = [], []
    for seed in range(8):
        generator = np.random.default_rng(100 + seed)
        phases = [(generator.exponential(300), factor) for _ in range(60) for factor in (1.0, 0.6)]
        replay = case_run(seed, rows=10_000, phases=tuple(phases))
        for share in (0.05, 0.2, 0.5, 0.8):
            left, truth = (replay.tally_at(share * replay.end).time_left(share * replay.end), (1 - share) * replay.end)
            inside.append(left.low < truth < left.high)
            widths.append(left.high / left.low)
    assert np.mean(inside) > 0.9 and np.median(widths) < 1.8


@pytest.mark.parametrize("seed", range(3))
def test_prompts_that_grow_are_counted_before_their_turn_comes(seed):
    for told, lowest, highest in ((True, 0.95, 1.05), (False, 0.6, 0.85)):
        replay = shortest_prompts_first(seed, told)
        for share in (0.1, 0.3, 0.5):
            moment = share * replay.end
            left, truth = replay.tally_at(moment).time_left(moment), replay.end - moment
            assert lowest < left.seconds / truth < highest


@pytest.mark.parametrize("seed", range(3))
def test_at_the_end_it_tells_how_long_the_last_answers_take(seed):
    replay = case_run(seed, rows=3000)
    for share in (0.9, 0.97, 0.995):
        moment = share * replay.end
        left = replay.tally_at(moment).time_left(moment)
        assert left.seconds == pytest.approx(replay.end - moment, abs=0.05 * replay.end)


def test_a_little_later_it_is_that_much_less():
    left = time_left([state([10] * 500, 1000)], Speed(100.0, 0.1, 1, 100.0))
    later = left.after(30.0)
    assert (later.seconds, later.low, later.high) == (left.seconds - 30, left.low - 30, left.high - 30)
    assert left.after(1e6).seconds == 0


def test_the_same_state_gives_the_same_numbers():
    replay = case_run(0, rows=2000)
    first, second = (replay.tally_at(200.0).time_left(200.0) for _ in range(2))
    assert first == second and first.low < first.seconds < first.high


def test_speed_is_measured_with_the_answers_that_are_not_finished():
    replay = case_run(0, rows=4000)
    tally = replay.tally_at(150.0)
    finished = sum(one.lengths.tokens for one in tally.sets.values())
    assert finished / 150 < 0.6 * TOTAL
    assert tally.tokens_per_second() == pytest.approx(TOTAL, rel=0.05)
    assert tally.tokens_so_far(tally.sets["prompts"], 150.0)[0] == pytest.approx(150 * TOTAL / 150, rel=0.05)


def test_there_is_no_estimate_before_anything_ended():
    replay = case_run(0, rows=500)
    assert replay.tally_at(0.5).time_left(0.5) is None


def test_draining_by_hand():
    # 3 answers lack 10, 20 and 40 tokens; together they get 12 tok/s, one alone at most 5
    # until 10: 3 x 10 tokens at 12 tok/s = 2.5 s; until 20: 2 x 10 at 10 tok/s (2 x 5) = 2 s; until 40: 20 at 5 = 4 s
    assert drain_seconds(np.array([40.0, 10.0, 20.0]), total=12.0, stream=5.0) == pytest.approx(8.5)
    assert drain_seconds(np.array([40.0, 10.0, 20.0]), total=12.0, stream=100.0) == pytest.approx(70 / 12)


def state(lengths, to_start, so_far=(), cap=64):
    counts = LengthCounts(bin_edges([64]))
    for length in lengths:
        counts.add(length, cut=False)
    return SetState(counts, to_start, so_far, cap)


def test_rows_times_mean_length_over_speed_when_all_is_known():
    left = time_left([state([10] * 5000, 1000)], Speed(total=100.0, error=0.0, slots=1, stream=100.0))
    assert left.seconds == pytest.approx(1000 * 10 / 100, rel=0.02)
    assert left.mean_lengths[0] == pytest.approx(10, rel=0.01)
    assert left.high / left.low < 1.05


def test_an_uncertain_speed_widens_the_range():
    sets = [state([10] * 5000, 1000)]
    sure, unsure = (time_left(sets, Speed(100.0, error, 1, 100.0)) for error in (0.0, 0.2))
    assert unsure.high - unsure.low > 5 * (sure.high - sure.low)


def test_nothing_left_takes_no_time():
    left = time_left([state([10] * 50, 0)], Speed(100.0, 0.1, 1, 100.0))
    assert (left.seconds, left.low, left.high, left.tokens) == (0, 0, 0, 0)


def test_answers_at_their_cap_lack_next_to_nothing():
    left = time_left([state([10] * 500, 0, so_far=[64.0, 70.0, 63.5])], Speed(100.0, 0.0, 3, 100.0))
    assert left.tokens <= 3


def test_a_speed_of_nothing_is_refused():
    with pytest.raises(ValueError, match="must be positive"):
        time_left([state([10], 5)], Speed(0.0, 0.1, 1, 1.0))
