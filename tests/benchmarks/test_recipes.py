"""The comparison of recipes: seeds are paired, and an arm is held against the best SpecForge-like learning rate."""

import math

import pytest

from benchmarks.compared import compare, report
from benchmarks.recipes import ARMS, CORE


def result(arm, seed, length, **more):
    return {"arm": arm, "seed": seed, "accept_length": {"3": length}, "tokens_per_second": 100.0 + seed, **more}


THEIRS = [result("specforge 1e-4", 0, 1.2), result("specforge 1e-4", 1, 1.4)]
BETTER = [result("specforge 1e-3", 0, 1.4), result("specforge 1e-3", 1, 1.5)]
OURS = [result("ours", 0, 1.6), result("ours", 1, 1.65)]


def test_accepted_drafts_are_compared_seed_by_seed():
    best, base, other = compare(OURS + THEIRS + BETTER, 3)
    assert [one.arm for one in (best, base, other)] == ["ours", "specforge 1e-3", "specforge 1e-4"]
    assert {one.base for one in (best, base, other)} == {"specforge 1e-3"}
    # 0.6 / 0.4 and 0.65 / 0.5: 1.5 and 1.3
    assert (best.ratio, best.error) == (pytest.approx(1.4), pytest.approx(0.1))
    assert (base.ratio, base.error) == (pytest.approx(1.0), pytest.approx(0.0))
    assert other.ratio == pytest.approx((0.2 / 0.4 + 0.4 / 0.5) / 2)
    assert best.accept_length == pytest.approx(1.625) and best.rate == 100.5


def test_a_learning_rate_of_one_seed_does_not_become_what_we_compare_with():
    lucky = [result("specforge 3e-3", 0, 1.59)]
    assert {one.base for one in compare(OURS + THEIRS + BETTER + lucky, 3)} == {"specforge 1e-3"}


def test_seeds_that_only_one_of_both_has_are_left_out():
    (ours, _) = compare(OURS + BETTER[:1], 3)
    assert ours.ratio == pytest.approx(1.5) and math.isnan(ours.error)


def test_a_study_without_theirs_is_held_against_plain_eagle3():
    ours, plain = compare(OURS + [result("no norms", 0, 1.5), result("no norms", 1, 1.5)], 3)
    assert plain.base == ours.base == "no norms" and plain.ratio == 1
    assert ours.ratio == pytest.approx((0.6 + 0.65) / 2 / 0.5)


def test_a_study_without_both_is_held_against_ours():
    other, ours = compare([result("ours", 0, 1.5), result("foreign text", 0, 1.6)], 3)
    assert other.base == "ours" and other.ratio == pytest.approx(1.2) and ours.ratio == 1


def test_without_anything_to_compare_with_there_is_a_table_without_ratios():
    alone = [result("foreign text", 0, 1.6)]
    (one,) = compare(alone, 3)
    assert math.isnan(one.ratio) and "foreign text" in report(alone, 3)
    assert compare([], 3) == []


def test_their_drafter_that_accepts_nothing_gives_no_ratio():
    ours, _ = compare(OURS + [result("specforge 1e-4", 0, 1.0)], 3)
    assert math.isnan(ours.ratio)


def test_a_diverged_arm_is_told():
    text = report([*OURS, {"arm": "specforge 3e-3", "seed": 2, "diverged": "loss is nan"}], 3)
    assert text.endswith("specforge 3e-3, seed 2: diverged")


def test_an_arm_differs_from_all_others():
    assert len({repr(arm) for arm in ARMS.values()}) == len(ARMS) and set(CORE) < set(ARMS)
