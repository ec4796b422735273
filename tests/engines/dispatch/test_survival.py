"""Kaplan-Meier against hand calculation, the log-normal behind it against scipy, and what both give together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from eagle3lab.engines.dispatch.lengths import Exposure, LengthCounts, bin_edges, exposure
from eagle3lab.engines.dispatch.survival import (
    draw_hazards,
    fit,
    kaplan_meier,
    lognormal_hazards,
    shrunk,
    survival,
    tokens_ahead,
)


def counted(lengths, cut=(), cap=20):
    counts = LengthCounts(bin_edges([cap]))
    for length in lengths:
        counts.add(length, cut=False)
    for length in cut:
        counts.add(length, cut=True)
    return counts


def test_kaplan_meier_by_hand():
    # ended at 2, 5, 5, 9; unfinished with 3 and 6 tokens; one cut at 20 (the limit)
    # length 2: 7 at risk, 1 ends; the one with 3 tokens leaves; length 5: 5 at risk, 2 end; the one with 6 leaves;
    # length 9: 2 at risk, 1 ends; the last is longer than 20
    seen = exposure(counted([2, 5, 5, 9], cut=[20]), tokens_so_far=[3, 6])
    hazard_B = kaplan_meier(seen)
    assert {k + 1: h for k, h in enumerate(hazard_B) if h} == {2: 1 / 7, 5: 2 / 5, 9: 1 / 2}
    longer_E = survival(hazard_B)
    assert longer_E[0] == longer_E[1] == 1
    assert longer_E[2] == longer_E[4] == pytest.approx(6 / 7)
    assert longer_E[5] == longer_E[8] == pytest.approx(6 / 7 * 3 / 5)
    assert longer_E[9] == longer_E[20] == pytest.approx(6 / 7 * 3 / 5 / 2)
    # mean, cut at 20: the area under that staircase
    area = 2 * 1 + 3 * 6 / 7 + 4 * 18 / 35 + 11 * 9 / 35
    assert tokens_ahead(seen.edges_E, hazard_B, 20)[0] == pytest.approx(area)


def test_an_unfinished_answer_is_at_risk_up_to_its_tokens_and_a_share_of_a_bin():
    edges = [0, 1, 2, 4, 8]
    counts = LengthCounts(edges)
    counts.add(8, cut=False)
    assert exposure(counts, [2]).at_risk_B.tolist() == [2, 2, 1, 1]
    assert exposure(counts, [5]).at_risk_B.tolist() == [2, 2, 2, 1.25]
    assert exposure(counts, [0]).at_risk_B.tolist() == [1, 1, 1, 1]
    assert exposure(counts, [8.0]).at_risk_B.tolist() == exposure(counts, [99]).at_risk_B.tolist() == [2, 2, 2, 2]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.lists(st.integers(0, 60), max_size=40))
def test_kaplan_meier_equals_that_of_scipy(ended, so_far):
    seen = exposure(counted(ended, cap=64), so_far)
    # an answer with t tokens so far is longer than t: censored at t, after the events of that length
    data = stats.CensoredData(uncensored=ended, right=so_far)
    theirs = stats.ecdf(data).sf
    ours = survival(kaplan_meier(seen))
    last = max(ended)
    np.testing.assert_allclose(ours[: last + 1], theirs.evaluate(np.arange(last + 1)), atol=1e-12)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=60))
def test_without_unfinished_answers_the_mean_is_the_mean(lengths):
    seen = exposure(counted(lengths, cap=5000))
    mean = tokens_ahead(seen.edges_E, kaplan_meier(seen), 5000)[0]
    assert mean == pytest.approx(np.mean(lengths), rel=0.021)  # bins are 4 % wide
    if max(lengths) <= 64:
        assert mean == pytest.approx(np.mean(lengths))


def test_a_lower_cap_cuts_the_mean():
    counts = LengthCounts(bin_edges([10, 20]))
    for length in (4, 8, 16, 20):
        counts.add(length, cut=False)
    seen = exposure(counts)
    hazard_B = kaplan_meier(seen)
    assert tokens_ahead(seen.edges_E, hazard_B, 20)[0] == pytest.approx(12)
    assert tokens_ahead(seen.edges_E, hazard_B, 10)[0] == pytest.approx((4 + 8 + 10 + 10) / 4)


def test_answers_cut_at_a_short_limit_say_nothing_about_longer_ones():
    counts = LengthCounts(bin_edges([10, 40]))
    counts.add(10, cut=True)
    counts.add(30, cut=False)
    seen = exposure(counts)
    assert seen.at_risk_B[9] == 2 and seen.at_risk_B[10] == 1


@pytest.mark.parametrize("mu, sigma", [(3.0, 0.5), (5.5, 1.8), (8.0, 1.0)])
def test_lognormal_hazards_are_those_of_scipy(mu, sigma):
    edges_E = np.array(bin_edges([10240]))
    theirs = stats.lognorm(sigma, scale=np.exp(mu)).sf(edges_E)
    ours = survival(lognormal_hazards(edges_E, np.array([mu]), np.array([sigma])))[0]
    np.testing.assert_allclose(ours, theirs, atol=2e-6)


def test_the_fit_finds_the_lognormal_behind_censored_data():
    generator = np.random.default_rng(3)
    lengths = np.ceil(np.exp(5.5 + 1.2 * generator.standard_normal(4000)))
    so_far = generator.uniform(0, 600, 4000)
    counts = LengthCounts(bin_edges([10240]))
    for length in lengths[lengths <= so_far]:
        counts.add(int(length), cut=False)
    seen = exposure(counts, so_far[lengths > so_far])
    hazard_B = fit([seen])[0].mean()
    truth = np.minimum(np.ceil(np.exp(5.5 + 1.2 * generator.standard_normal(400_000))), 10240).mean()
    seen_mean = lengths[lengths <= so_far].mean()
    assert seen_mean < 0.35 * truth  # what ended is short
    assert tokens_ahead(seen.edges_E, hazard_B, 10240)[0] == pytest.approx(truth, rel=0.1)


def test_few_data_lean_on_the_other_sets_and_many_do_not():
    generator = np.random.default_rng(0)
    long = counted(np.ceil(np.exp(6 + 0.5 * generator.standard_normal(500))).astype(int), cap=10240)
    none, one = counted([], cap=10240), counted([5], cap=10240)
    many = counted(np.ceil(np.exp(3 + 0.5 * generator.standard_normal(500))).astype(int), cap=10240)
    seen = [exposure(counts) for counts in (long, none, one, many)]
    means = [
        tokens_ahead(data.edges_E, shrunk(data, fitted.mean()), 10240)[0]
        for data, fitted in zip(seen, fit(seen), strict=True)
    ]
    assert means[0] == pytest.approx(long.tokens / 500, rel=0.05)
    assert means[3] == pytest.approx(many.tokens / 500, rel=0.05)
    assert means[3] < means[2] < means[1]  # none: in between, like the others together; one short answer: shorter
    assert many.tokens / 500 < means[1] < 2 * long.tokens / 500


def test_much_data_leave_plain_kaplan_meier():
    lengths = [3] * 4000 + [50] * 6000  # nothing like a log-normal
    seen = exposure(counted(lengths, cap=64))
    behind_B = fit([seen])[0].mean()
    np.testing.assert_allclose(survival(shrunk(seen, behind_B))[[3, 40, 50]], [0.6, 0.6, 0], atol=0.01)


def test_draws_spread_as_the_data_are_few():
    edges_E = np.array(bin_edges([64]))
    spread = []
    for n in (20, 2000):
        ended_B = np.full(64, n / 64)
        at_risk_B = np.cumsum(ended_B[::-1])[::-1]
        seen = Exposure(edges_E, ended_B, at_risk_B)
        draws = draw_hazards(seen, fit([seen])[0], 200, np.random.default_rng(1))
        means = tokens_ahead(edges_E, draws, 64)[:, 0]
        spread.append(means.std() / (18.5 / np.sqrt(n)))  # standard error of the mean of a uniform length
    assert 0.6 < spread[0] < 1.5 and 0.6 < spread[1] < 1.5


def test_edges_hold_every_cap_and_the_powers_of_two_and_grow_by_four_percent():
    edges = bin_edges([10240, 16384])
    assert edges[:66] == [*range(65), 66]
    assert {10240, 16384, 128, 256, 4096} <= set(edges) and len(edges) < 230
    assert all(after <= max(before + 2, before * 1.0401) for before, after in zip(edges, edges[1:], strict=False))
    assert bin_edges([1]) == [0, 1]


def test_the_histogram_counts_every_answer_in_its_power_of_two():
    counts = counted([1, 2, 3, 4, 5, 8, 9, 100], cut=[100, 100], cap=100)
    edges, numbers = counts.histogram()
    assert edges == [0, 1, 2, 4, 8, 16, 32, 64, 128]
    assert numbers == [1, 1, 2, 2, 1, 0, 0, 3]
    assert counts.answers == 10 and counts.tokens == 332
