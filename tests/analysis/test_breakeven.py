"""Costs, break-even and advice: the case's arithmetic, and rows made from known costs."""

import dataclasses

import numpy as np
import pytest

from eagle3lab.analysis import breakeven, serving_plots
from eagle3lab.analysis.bench_row import NOISY_ROUNDS, BenchRow, Condition, break_even, cycle_ms, not_measurable
from eagle3lab.analysis.breakeven import CannotFit, advise, fit_cycle_cost
from eagle3lab.analysis.doctor.serving import check_break_even


def row(tok_s, accept_length=None, num_steps=0, tokens=0, base=90.0, concurrency=1, topk=1, low=None, high=None):
    """A row as run_bench makes it, from its speed."""
    spoken = accept_length is not None
    return BenchRow(
        setting=f"chain {num_steps}" if spoken else "baseline",
        num_steps=num_steps,
        topk=topk if spoken else 0,
        num_draft_tokens=tokens,
        concurrency=concurrency,
        tok_s=tok_s,
        tok_s_low=tok_s,
        tok_s_high=tok_s,
        accept_length=accept_length,
        cycle_ms=cycle_ms(accept_length or 1.0, tok_s),
        break_even=break_even(accept_length, tok_s, base) if spoken else None,
        speedup=tok_s / base,
        speedup_low=tok_s / base if low is None else low,
        speedup_high=tok_s / base if high is None else high,
        prompts=8,
        rounds=3,
        tokens=1000,
        differing=0,
    )


def made(settings, fixed=20.0, token=0.5, step=1.0, plain=10.0, accept=2.0, noise=0.0):
    """A baseline and settings (num_steps, num_draft_tokens) whose cycles cost exactly what the model says."""
    random = np.random.default_rng(3)
    base = 1000 / plain
    rows = [row(base, base=base)]
    for steps, tokens in settings:
        cost = (fixed + token * tokens + step * steps) * (1 + noise * random.standard_normal())
        rows.append(row(1000 * accept / cost, accept, steps, tokens, base))
    return rows


CASE = [row(90.0), row(82.3, 2.1, 4, 5), row(56.7, 2.1, 15, 16)]


def test_the_case():
    """25.5 and 37.0 ms against 11.1: 2.30 and 3.33 accepted tokens are needed, 2.1 are there."""
    cost = fit_cycle_cost(CASE)
    assert cost.plain_ms == pytest.approx(11.1, abs=0.05)
    assert cost.cycle_ms(4) == pytest.approx(25.5, abs=0.05)
    assert cost.cycle_ms(15) == pytest.approx(37.0, abs=0.05)
    assert cost.break_even(4, 5) == pytest.approx(2.30, abs=0.005)
    assert cost.break_even(15, 16) == pytest.approx(3.33, abs=0.005)
    # (37.04 - 25.52) / 11 a draft step, 25.52 - 4 of them fixed: exactly, as two rows have two costs
    assert cost.step_ms == pytest.approx(1.05, abs=0.005)
    assert cost.fixed_ms == pytest.approx(21.33, abs=0.01)
    assert (cost.worst_error, cost.token_ms) == (None, None)
    assert str(cost) == (
        "one cycle takes 21.3 ms + 1.0 ms for each draft step at one stream (fitted to two settings, nothing left to "
        "check it with); a plain step takes 11.1 ms"
    )
    (advice,) = advise(CASE)
    assert not advice.speculate
    assert advice.text == (
        "do not speculate: the best setting (num_steps 4, topk 1, num_draft_tokens 5) gives x0.91 at one stream "
        "(accept length 2.10, break-even 2.30)"
    )


def test_what_the_case_would_gain_from_a_better_drafter():
    cost = fit_cycle_cost(CASE)
    assert cost.speedup(2.5, 4) == pytest.approx(2.5 * 82.3 / 2.1 / 90)  # as many cycles a second, more from each
    table = breakeven.what_if(cost, [1.0, 2.30, 4.0, 6.0], [(4, 5), (15, 16)])
    assert table[0, 1] == pytest.approx(1.0, abs=0.002)
    assert np.isnan(table[0, 3]) and not np.isnan(table[1, 3])  # four drafts commit at most five tokens
    assert np.isnan(breakeven.what_if(cost, [0.9], [(4, 5)])).all()
    with pytest.raises(CannotFit, match="only chains were measured"):
        breakeven.what_if(cost, [2.0], [(4, 16)])


def test_what_if_is_a_function_of_the_draft_tokens_too():
    """20 ms, 1 a step and 0.5 a verified token: 25 ms with 4 tokens, 31 with 16; a plain step takes 10."""
    cost = fit_cycle_cost(made([(1, 2), (3, 4), (3, 8), (5, 6), (5, 16), (2, 10)]))
    table = breakeven.what_if(cost, [2.0, 3.5, 4.5], [(3, 4), (3, 16)])
    assert table[:, 0] == pytest.approx([2.0 / 2.5, 2.0 / 3.1])
    assert table[:, 1] == pytest.approx([3.5 / 2.5, 3.5 / 3.1])
    assert np.isnan(table[:, 2]).all()  # a tree is no deeper than its steps


def test_known_costs_are_found_again():
    rows = made([(1, 2), (3, 4), (3, 8), (5, 6), (5, 16), (2, 10)])
    cost = fit_cycle_cost(rows)
    assert (cost.fixed_ms, cost.token_ms, cost.step_ms) == pytest.approx((20.0, 0.5, 1.0))
    assert cost.worst_error == pytest.approx(0, abs=1e-9)
    assert cost.cycle_ms(4, 12) == pytest.approx(30.0)
    assert cost.break_even(4, 12) == pytest.approx(3.0)
    assert cost.measured(4, 12) and not cost.measured(6, 7) and not cost.measured(5, 17)
    noisy = fit_cycle_cost(made([(1, 2), (3, 4), (3, 8), (5, 6), (5, 16), (2, 10)], noise=0.01))
    assert 0 < noisy.worst_error < 0.03
    assert noisy.cycle_ms(4, 12) == pytest.approx(30.0, rel=0.03)


def test_chains_alone_say_nothing_about_trees():
    cost = fit_cycle_cost(made([(1, 2), (3, 4), (6, 7)]))
    assert cost.token_ms is None
    assert (cost.fixed_ms, cost.step_ms) == pytest.approx((20.5, 1.5))  # the token that is always there; both
    with pytest.raises(CannotFit, match="only chains were measured"):
        cost.cycle_ms(3, 16)


def test_what_cannot_be_fitted_is_said():
    with pytest.raises(CannotFit, match="0 baseline rows at 8 streams"):
        fit_cycle_cost(CASE, Condition(8))
    with pytest.raises(CannotFit, match="two different num_steps"):
        fit_cycle_cost(CASE[:2])
    with pytest.raises(CannotFit, match="cannot tell verification from draft steps"):
        fit_cycle_cost(made([(2, 8), (4, 16)]))
    with pytest.raises(CannotFit, match="cannot tell verification from draft steps"):
        fit_cycle_cost(made([(2, 4), (4, 8), (6, 12)]))  # in step with one another
    with pytest.raises(CannotFit, match="negative.*too noisy"):
        fit_cycle_cost(made([(2, 3), (4, 5)], token=0, step=-1.0))


@pytest.mark.parametrize("other", [{"concurrency": 8}, {"temperature": 0.7}, {"cuda_graphs": False}])
def test_each_condition_is_fitted_by_itself(other):
    more = [dataclasses.replace(r, cycle_ms=3 * r.cycle_ms, **other) for r in CASE]
    cost = fit_cycle_cost([*CASE, *more], Condition(**other))
    assert cost.cycle_ms(4) == pytest.approx(3 * fit_cycle_cost([*CASE, *more]).cycle_ms(4))
    assert breakeven.conditions([*more, *CASE]) == [Condition(), Condition(**other)]


def test_the_first_advice_is_of_the_benchmark_itself():
    """One stream, greedy, CUDA graphs on; the grid measured the same without them, where speculation pays more."""
    own = [dataclasses.replace(r, cuda_graphs=True) for r in CASE]
    off = [dataclasses.replace(r, cuda_graphs=False, speedup=2 * r.speedup) for r in CASE]
    warm = [dataclasses.replace(r, cuda_graphs=True, temperature=0.7) for r in CASE]
    advice = advise([*own, *off, *warm])
    assert [each.condition for each in advice] == [
        Condition(1, 0.0, True),
        Condition(1, 0.0, False),
        Condition(1, 0.7, True),
    ]
    assert advice[0].best is own[1]


def test_advice_says_in_which_condition():
    warm = [dataclasses.replace(r, concurrency=4, temperature=0.7, cuda_graphs=False) for r in CASE]
    (advice,) = advise(warm)
    assert "x0.91 at 4 streams, temperature 0.7, CUDA graphs off (accept" in advice.text


def test_the_best_chain_is_where_another_draft_no_longer_pays():
    cost = fit_cycle_cost(made([(1, 2), (8, 9)], fixed=10.0, token=0.0, step=1.0))
    joint = [0.5, 0.25, 0.125, 0.0625]
    assert breakeven.chain_accept_length(joint, 2) == 1.75
    # speed-ups 1.5/1.1, 1.75/1.2, 1.875/1.3, 1.9375/1.4 = 1.364, 1.458, 1.442, 1.384
    assert breakeven.best_chain(cost, joint) == (2, pytest.approx(1.75 / 1.2))
    with pytest.raises(ValueError, match="4 draft positions, num_steps=5"):
        breakeven.chain_accept_length(joint, 5)


def test_advice_wants_every_round_to_win():
    sure, unsure = row(120.0, 2.5, 2, 3), row(100.0, 2.5, 2, 3, low=0.97)
    (advice,) = advise([row(90.0), sure, CASE[2]])
    assert advice.speculate and advice.best is sure
    assert advice.text.startswith(
        "speculate with num_steps 2, topk 1, num_draft_tokens 3: x1.33 [1.33, 1.33] at one stream"
    )
    (advice,) = advise([row(90.0), unsure])
    assert not advice.speculate and "do not speculate yet" in advice.text and "x0.97 in its worst round" in advice.text
    many = [row(90.0, concurrency=8), row(80.0, 2.1, 3, 4, concurrency=8)]
    assert [a.speculate for a in advise([row(90.0), sure, *many])] == [True, False]
    with pytest.raises(ValueError, match="nothing to advise"):
        advise([row(90.0)])


# as a newcomer measured it beside other work
BUSY = dataclasses.replace(row(10.7), tok_s_low=5.1, tok_s_high=16.3)
WON = row(17.0, 1.37, 1, 2, base=10.7, low=1.26, high=2.65)


def test_rounds_of_a_busy_machine_are_no_advice():
    """Rounds of 5.1 and 16.3 tok/s gave a break-even of 0.86, and the advice to speculate."""
    won = WON
    assert won.break_even == pytest.approx(0.86, abs=0.005)
    (advice,) = advise([BUSY, won, row(15.0, 1.4, 3, 4, base=10.7)], "demo")
    assert (advice.speculate, advice.measurable) == (False, False)
    assert advice.text == (
        "not measurable at one stream: chain 1 x1.26 to x2.65 in its rounds, baseline rounds 5.1 to 16.3 tok/s, "
        "break-even 0.86 (impossible below 1): the machine was busy; "
        "repeat with: python -m eagle3lab run demo --only serving --force, "
        "and then for the curve: python -m eagle3lab run demo --only scaling"
    )
    with pytest.raises(CannotFit, match="not measurable at one stream: chain 1 x1.26 to x2.65"):
        fit_cycle_cost([BUSY, won, row(15.0, 1.4, 3, 4, base=10.7)])
    figure = serving_plots.break_even_chart([BUSY, won], "the case")
    assert any("not measurable: chain 1 x1.26 to x2.65" in text.get_text() for text in figure.texts)
    assert not figure.axes[0].texts and "break-even" not in str(figure.axes[0].get_legend_handles_labels())
    quiet = [row(90.0, concurrency=8), row(80.0, 2.1, 3, 4, concurrency=8)]
    assert [a.measurable for a in advise([BUSY, won, *quiet])] == [False, True]  # each condition has its own baseline


def test_either_sign_of_a_busy_machine_is_enough():
    sure = row(120.0, 2.5, 2, 3)
    noisy = row(99.0, 2.5, 3, 4, low=0.8, high=0.8 * (1 + NOISY_ROUNDS) + 0.01)
    assert not_measurable([row(90.0), sure, noisy]) == (
        "chain 3 x0.80 to x1.01 in its rounds, baseline rounds 90.0 to 90.0 tok/s, break-even 1.88: "
        "the machine was busy"
    )
    assert not_measurable([row(90.0), sure, dataclasses.replace(noisy, speedup_high=0.8 * (1 + NOISY_ROUNDS))]) == ""
    # a machine that slows down between rounds slows both sides: interleaved, their ratio stays what it is
    assert not_measurable([dataclasses.replace(row(90.0), tok_s_low=60.0, tok_s_high=120.0), sure]) == ""
    cheap = row(120.0, 1.2, 2, 3)  # 1.2 tokens a cycle, a third faster: a cycle of 0.9 plain steps
    assert "break-even 0.90 (impossible below 1): the machine was not quiet" in not_measurable([row(90.0), sure, cheap])


def test_a_fit_whose_shortest_chain_is_cheaper_than_a_plain_step_is_refused():
    rows = made([(4, 5), (8, 9)], fixed=4.0, token=0.0, step=2.0)  # 12 and 20 ms measured, 6 for a chain of one
    assert not_measurable(rows) == ""
    with pytest.raises(CannotFit, match="cheaper than a plain step"):
        fit_cycle_cost(rows)


def test_the_what_if_figure_draws_the_fit_and_the_measured_rows():
    figure = serving_plots.what_if_chart(fit_cycle_cost(CASE), CASE, [2, 4, 15, 20], "the case")
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    five = lines["num_steps 4: pays above 2.30"]
    assert np.interp(2.1, five.get_xdata(), five.get_ydata()) == pytest.approx(82.3 / 90)
    assert five.get_xdata()[-1] == 5
    styles = [line.get_linestyle() for name, line in lines.items() if name.startswith("num_steps")]
    assert styles == ["-", "-", "-", "--"]
    points = [line for line in figure.axes[0].lines if line.get_marker() == "o" and len(line.get_xdata())]
    assert [(p.get_xdata()[0], p.get_ydata()[0]) for p in points] == [(2.1, 82.3 / 90), (2.1, 56.7 / 90)]


def test_the_what_if_figure_has_a_line_for_every_tree_that_was_measured():
    rows = made([(1, 2), (3, 4), (5, 6)]) + [row(2000 / 31.0, 2.0, 3, 16, 100.0, topk=4)]
    rows[-1] = dataclasses.replace(rows[-1], setting="tree 3 x 4, 16 tokens")
    figure = serving_plots.what_if_chart(fit_cycle_cost(rows), rows, [1, 3], "the case")
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    assert [name for name in lines if "pays" in name] == [
        "num_steps 1: pays above 2.20", "num_steps 3: pays above 2.50", "tree 3 x 4, 16 tokens: pays above 3.10",
    ]  # fmt: skip
    tree = lines["tree 3 x 4, 16 tokens: pays above 3.10"]
    assert (tree.get_xdata()[-1], tree.get_ydata()[-1]) == pytest.approx((4, 4 / 3.1))
    alone = serving_plots.what_if_chart(fit_cycle_cost(CASE), CASE, [4], "the case")
    said = [" ".join(text.get_text() for text in one.texts) for one in (figure, alone)]
    assert ["Only chains were measured" in words for words in said] == [False, True]


def test_the_doctor_judges_no_break_even_of_a_busy_machine():
    busy = [dataclasses.asdict(one) for one in (BUSY, WON)]
    found = check_break_even(busy)
    assert found.verdict == "not checked" and "not measurable at one stream: chain 1 x1.26 to x2.65" in found.found
    assert "--only serving --force" in found.command
    lost = [dataclasses.asdict(row(90.0, concurrency=8)), dataclasses.asdict(row(80.0, 2.1, 3, 4, concurrency=8))]
    found = check_break_even([*busy, *lost])
    assert found.verdict == "warning" and found.found.startswith("chain 3: 2.10 of 2.36 needed; not measurable at one")
    won = [dataclasses.asdict(one) for one in (row(90.0), row(120.0, 2.5, 2, 3))]
    assert (check_break_even(won).verdict, check_break_even(won).found) == ("ok", "1 settings above break-even")
