"""Accept length, positions, bootstrap and comparison against hand calculations."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3lab.analysis import accept
from eagle3lab.analysis.accept import AcceptSetting, PromptCycles

SETTING = AcceptSetting("embedded", 3, 1, 4, 0.0, "sharegpt")


def test_accept_length_counts_the_bonus():
    assert accept.accept_length(8, 8) == 1.0  # nothing accepted
    assert accept.accept_length(21, 10) == 2.1
    with pytest.raises(ValueError):
        accept.accept_length(0, 0)


def test_served_leaves_out_the_first_token():
    row = PromptCycles.served("a", n_output=9, accepted=[2, 0, 3])  # 1 + (3 + 1 + 4)
    assert row.committed == 8
    assert PromptCycles.served("b", n_output=1, accepted=[]).committed == 0
    with pytest.raises(ValueError, match="prompt-7: .* make 9 tokens, but the answer has 10"):
        PromptCycles.served("prompt-7", n_output=10, accepted=[2, 0, 3])
    with pytest.raises(ValueError, match="prompt-7"):
        PromptCycles("prompt-7", (-1, 2))


def test_simulated_equals_served_by_hand():
    hits = np.zeros((9, 3), bool)
    hits[1, :2] = True
    hits[5] = True
    row = PromptCycles.simulated("a", hits, n_prompt=2, n_tokens=9)
    assert row == PromptCycles.served("a", n_output=7, accepted=[2, 0, 1])
    assert row.committed == 6  # x3 .. x8


def test_histogram_by_hand():
    assert accept.histogram([2, 0, 2, 3], 4) == [1, 0, 2, 1, 0]
    with pytest.raises(ValueError, match=r"0\.\.3"):
        accept.histogram([1, 4], 3)


def test_cycle_acceptance_by_hand():
    # accepted 2 0 3 1: at least one 3/4, at least two 2/4, three 1/4
    positions = accept.cycle_acceptance([2, 0, 3, 1], 3)
    assert positions.joint == (0.75, 0.5, 0.25)
    assert positions.conditional == pytest.approx((3 / 4, 2 / 3, 1 / 2))
    assert positions.marginal == (None, None, None)
    assert positions.chains == 4


def test_cycle_acceptance_where_nothing_is_accepted():
    positions = accept.cycle_acceptance([0, 0], 2)
    assert positions.joint == (0.0, 0.0)
    assert positions.conditional == (0.0, None)
    assert accept.cycle_acceptance([], 2).joint == (None, None)


def test_position_acceptance_by_hand():
    hits = np.array([[1, 1], [1, 0], [0, 1], [1, 1], [1, 1]], bool)
    valid = np.array([[1, 1], [1, 1], [1, 1], [1, 0], [0, 0]], bool)
    positions = accept.position_acceptance(hits, valid)
    assert positions.marginal == pytest.approx((3 / 4, 2 / 3))  # step 2 valid in rows 0..2, right in 0 and 2
    assert positions.conditional == pytest.approx((3 / 4, 1 / 2))  # rows 0, 1 got there, row 0 right
    assert positions.joint == pytest.approx((3 / 4, 3 / 8))
    assert positions.chains == 4


def test_joint_is_zero_after_a_certain_miss():
    hits = np.array([[0, 1], [0, 1]], bool)
    positions = accept.position_acceptance(hits, np.ones_like(hits))
    assert positions.marginal == (0.0, 1.0)
    assert positions.joint == (0.0, 0.0)
    assert positions.conditional == (0.0, None)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_accept_length_is_one_plus_the_joint_shares(cycles):
    """sum over k of P(at least k accepted) is the mean number accepted."""
    joint = accept.cycle_acceptance(cycles, 3).joint
    assert 1 + sum(joint) == pytest.approx(accept.accept_length(sum(cycles) + len(cycles), len(cycles)))


def test_bootstrap_of_identical_prompts_has_no_width():
    rows = [PromptCycles(str(i), (1, 2)) for i in range(6)]
    assert accept.bootstrap_interval(rows) == (2.5, 2.5)


def test_bootstrap_interval_matches_the_normal_theory():
    """Prompts of one verification each: accept length is a mean, its interval mean +- 1.96 s / sqrt(n)."""
    random = np.random.default_rng(3)
    accepted = random.integers(0, 4, 400)
    rows = [PromptCycles(str(i), (int(a),)) for i, a in enumerate(accepted)]
    low, high = accept.bootstrap_interval(rows, draws=4000)
    half = 1.96 * accepted.std() / np.sqrt(400)
    assert (low, high) == pytest.approx((1 + accepted.mean() - half, 1 + accepted.mean() + half), abs=0.015)


def test_bootstrap_needs_two_prompts():
    assert accept.bootstrap_interval([PromptCycles("a", (1, 2))]) is None


def test_bootstrap_takes_prompts_not_verifications():
    """Two long prompts, one always right and one always wrong: the interval spans both."""
    rows = [PromptCycles("right", (3,) * 50), PromptCycles("wrong", (0,) * 50)]
    assert accept.bootstrap_interval(rows) == (1.0, 4.0)


def test_disagreements():
    left = [PromptCycles("a", (1, 2)), PromptCycles("b", (0, 1)), PromptCycles("c", (2,))]
    assert accept.disagreements(left, list(reversed(left))) == []
    right = [PromptCycles("a", (1, 2, 0)), PromptCycles("b", (0, 2, 1)), PromptCycles("d", (1,))]
    assert accept.disagreements(left, right) == [
        {"id": "a", "cycle": 2, "left": None, "right": 0},
        {"id": "b", "cycle": 1, "left": 1, "right": 2},
        {"id": "c", "cycle": -1, "left": 1, "right": None},
        {"id": "d", "cycle": -1, "left": None, "right": 1},
    ]


def test_first_difference():
    assert accept.first_difference([1, 2, 3], [1, 2, 3]) is None
    assert accept.first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert accept.first_difference([1, 2], [1, 2, 3]) == 2
    assert accept.first_difference([], []) is None


def test_summary_by_hand():
    rows = [PromptCycles("a", (2, 0, 1)), PromptCycles("b", (3, 1))]
    summary = accept.summarise(rows, SETTING)
    assert summary.accept_length == 12 / 5  # not the mean of 2.0 and 3.0
    assert (summary.prompts, summary.verifications, summary.committed) == (2, 5, 12)
    assert summary.histogram == (1, 2, 1, 1)
    assert summary.interval == (2.0, 3.0)
    line = str(summary)
    assert line == (
        "accept length 2.40 [2.00, 3.00] (embedded, num_steps 3, topk 1, num_draft_tokens 4, "
        "temperature 0, sharegpt; 2 prompts, 5 verifications)"
    )
    assert json.loads(json.dumps(summary.to_dict()))["setting"]["num_steps"] == 3
