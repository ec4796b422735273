"""Fits on points whose answer is known."""

import numpy as np
import pytest

from eagle3lab.analysis.accept import PromptCycles
from eagle3lab.analysis.scaling import ScalingPoint, fit_scaling


def exact_point(amount, committed_per_ten):
    """Ten prompts with the same ten verifications: accept length committed_per_ten / 10, no scatter."""
    accepted = [committed_per_ten // 10 - 1 + (i < committed_per_ten % 10) for i in range(10)]
    return ScalingPoint(amount, [PromptCycles(f"p{i}", accepted) for i in range(10)])


def noisy_points(amounts, slope, prompts=60, spread=0.0, seed=0):
    """Accept length 1.2 + slope * log10(amount / 1000), random verifications; `spread`: luck of training."""
    random = np.random.default_rng(seed)
    points = []
    for amount in amounts:
        mean = 0.2 + slope * np.log10(amount / 1000) + random.normal(0, spread)
        rows = [PromptCycles(f"p{i}", np.minimum(random.poisson(mean, 40), 7)) for i in range(prompts)]
        points.append(ScalingPoint(amount, rows))
    return points


def test_a_line_without_scatter_by_hand():
    # 1.2, 1.5, 1.8 at 1e3, 1e4, 1e5: 0.3 a decade; 2.3 is reached 5/3 decades above 1e5
    fit = fit_scaling([exact_point(1e3, 12), exact_point(1e4, 15), exact_point(1e5, 18)])
    assert fit.slope == pytest.approx(0.3)
    assert fit.predict(1e6) == pytest.approx(2.1)
    assert fit.scatter == pytest.approx(0, abs=1e-9)
    needed = fit.needed(2.3)
    assert needed.amount == pytest.approx(10 ** (5 + 5 / 3), rel=1e-6)
    assert needed.beyond == pytest.approx(10 ** (5 / 3), rel=1e-6)
    assert not needed.far
    assert fit.needed(2.5).far  # 7/3 decades: 215 times the data
    assert "a direction rather than a number" in str(fit.needed(2.5))
    low, high = fit.band([1e3, 1e6])
    assert low == pytest.approx([1.2, 2.1]) and high == pytest.approx([1.2, 2.1])


def test_scatter_uses_two_degrees_of_freedom():
    # 1.2, 1.8, 1.8: the line is 1.3, 1.6, 1.9, residuals -0.1, +0.2, -0.1, squares 0.06 / (3 - 2)
    fit = fit_scaling([exact_point(1e3, 12), exact_point(1e4, 18), exact_point(1e5, 18)])
    assert fit.slope == pytest.approx(0.3)
    assert fit.scatter == pytest.approx(np.sqrt(0.06))


def test_two_amounts_make_no_prediction():
    fit = fit_scaling([exact_point(1e3, 12), exact_point(1e4, 15)])
    assert "fewer than three amounts" in fit.refused
    needed = fit.needed(2.3)
    assert needed.amount is None and needed.reason == fit.refused
    again = fit_scaling([exact_point(1e3, 12), exact_point(1e4, 15), exact_point(1e4, 15)])
    assert "fewer than three amounts" in again.refused


def test_one_amount_draws_no_line():
    with pytest.raises(ValueError, match="two different amounts"):
        fit_scaling([exact_point(1e3, 12), exact_point(1e3, 13)])


def test_a_flat_curve_is_refused():
    fit = fit_scaling(noisy_points([1e3, 3e3, 1e4, 3e4], slope=0.0))
    assert "not distinguishable from 0" in fit.refused
    assert fit.slope_interval[0] < 0 < fit.slope_interval[1]
    assert fit.needed(2.3).amount is None


def test_a_falling_curve_is_refused():
    assert fit_scaling([exact_point(1e3, 18), exact_point(1e4, 15), exact_point(1e5, 12)]).refused


def test_points_off_the_line_widen_the_band_until_it_refuses():
    zigzag = fit_scaling([exact_point(1e3, 12), exact_point(1e4, 19), exact_point(1e5, 14)])
    assert "not distinguishable" in zigzag.refused


def test_a_value_below_the_curve_needs_nothing():
    fit = fit_scaling([exact_point(1e3, 12), exact_point(1e4, 15), exact_point(1e5, 18)])
    needed = fit.needed(1.1)
    assert needed.amount is None and "reached with the least data" in needed.reason


def test_prompts_must_be_the_same():
    other = ScalingPoint(1e4, [PromptCycles(f"q{i}", (1,)) for i in range(10)])
    with pytest.raises(ValueError, match="same prompts"):
        fit_scaling([exact_point(1e3, 12), other, exact_point(1e5, 18)])
    with pytest.raises(ValueError, match="must be positive"):
        ScalingPoint(0, [])


def test_interval_holds_the_true_slope_about_as_often_as_it_says():
    """40 experiments, true slope 0.3: more than 6 misses of a 95 % interval have a chance below 1 in 100."""
    held = 0
    for seed in range(40):
        fit = fit_scaling(noisy_points([1e3, 3e3, 1e4, 3e4, 1e5], 0.3, seed=seed), draws=400)
        held += fit.slope_interval[0] <= 0.3 <= fit.slope_interval[1]
    assert held >= 34


def test_needed_interval_surrounds_the_estimate_and_may_be_open():
    fit = fit_scaling(noisy_points([1e3, 1e4, 1e5], 0.3, spread=0.05, seed=4))
    assert not fit.refused
    needed = fit.needed(2.3)
    assert needed.low < needed.amount
    assert needed.high is None or needed.high > needed.amount
    assert (
        fit_scaling(noisy_points([1e3, 1e4, 1e5], 0.3, spread=0.05, seed=4)).needed(2.3) == needed
    )  # same seed
