"""Figures: what they draw is what they were given, and no word lies on another or outside the figure."""

from dataclasses import replace

import matplotlib
import numpy as np
import pandas as pd
import pytest

from eagle3lab.analysis import plots, scaling_plots, serving_plots, style, training_plots
from eagle3lab.analysis.accept import PromptCycles, cycle_acceptance, histogram, position_acceptance
from eagle3lab.analysis.bench_row import BenchRow, break_even, cycle_ms
from eagle3lab.analysis.breakeven import fit_cycle_cost
from eagle3lab.analysis.scaling import ScalingPoint, fit_positions, fit_scaling
from tests.analysis.figures import assert_named, readable_words

matplotlib.use("agg")

DATA = "SmolLM2-135M-Instruct, 64 held-out ShareGPT prompts, greedy, embedded engine, 2 CPU cores"
CYCLES = [0] * 58 + [1] * 25 + [2] * 10 + [3] * 5 + [4] * 2


def bench_row(num_steps, tok_s, accept_length, base=21.4):
    plain = accept_length is None
    return BenchRow(
        "baseline" if plain else f"chain {num_steps}",
        num_steps,
        0 if plain else 1,
        0 if plain else num_steps + 1,
        1,
        tok_s,
        tok_s * 0.97,
        tok_s * 1.03,
        accept_length,
        cycle_ms(accept_length or 1, tok_s),
        None if plain else break_even(accept_length, tok_s, base),
        tok_s / base,
        tok_s / base,
        tok_s / base,
        64,
        3,
        9000,
        0,
    )


ROWS = [
    bench_row(0, 21.4, None),
    bench_row(1, 26.1, 1.42),
    bench_row(3, 26.2, 1.58),
    bench_row(7, 17.7, 1.62),
]


WARM = [replace(r, concurrency=8, temperature=0.7, speedup=0.8 * r.speedup, speedup_low=0.7) for r in ROWS]
TREE = replace(ROWS[2], setting="tree 3 x 4, 16 tokens", topk=4, num_draft_tokens=16, concurrency=8, temperature=0.7)


def metrics(n, positions):
    tokens = np.arange(1, n + 1) * 1800.0
    final_K = 0.45 - 0.05 * np.arange(positions)
    return pd.DataFrame(
        {
            "tokens": tokens,
            "seconds": tokens / 1900,
            "loss": 2.2 + 3.5 * np.exp(-tokens / 1.5e5),
            "acceptance": [list(final_K * (1 - np.exp(-t / 2e5))) for t in tokens],
        }
    )


def measured(table):
    """Every hundredth step and the last one were measured; the third time was the best."""
    steps = np.arange(1, len(table) + 1)
    lengths = 1.5 - 0.4 * np.abs(steps / 300 - 1)
    return table.assign(heldout_accept_length=np.where((steps % 100 == 0) | (steps == len(table)), lengths, np.nan))


def scaling_points(slope, amounts=(2e4, 5e4, 1.3e5, 3.2e5)):
    random = np.random.default_rng(1)
    return [
        ScalingPoint(
            amount,
            [
                PromptCycles(f"p{i}", np.minimum(random.poisson(0.15 + slope * np.log10(amount / 2e4), 60), 5))
                for i in range(40)
            ],
        )
        for amount in amounts
    ]


def scaling(slope, target, *amounts):
    points = scaling_points(slope, *amounts)
    fit = fit_scaling(points)
    return scaling_plots.scaling_curve(points, fit, DATA, needed=[("break-even", fit.needed(target))])


def wanted(*targets):
    points = scaling_points(0.28)
    fit = fit_scaling(points)
    needed = [("break-even", fit.needed(1.65)), *(("wanted", fit.needed(target)) for target in targets)]
    return scaling_plots.scaling_curve(points, fit, DATA, needed=needed)


def figures():
    random = np.random.default_rng(0)
    lengths = {name: random.lognormal(4.2, 0.9, 500).astype(int) + 1 for name in ("chat", "bench", "code")}
    many = {f"B{i} a set with a long name": lengths["chat"] * (i + 1) for i in range(8)}
    hits = random.random((500, 4)) < np.array([0.42, 0.35, 0.3, 0.27])
    positions = {
        "simulated": cycle_acceptance(CYCLES, 4),
        "served": cycle_acceptance(CYCLES, 4),
        "all slots": position_acceptance(hits, np.ones_like(hits)),
        "random draft": cycle_acceptance([0] * 40, 4),
    }
    return {
        "lengths": plots.length_histogram(lengths, DATA, limit=1024),
        "many lengths": plots.length_histogram(many, DATA, limit=16384),
        "training": training_plots.training_curves(metrics(600, 7), DATA),
        "short training": training_plots.training_curves(metrics(3, 1), DATA),
        "one step": training_plots.training_curves(metrics(1, 1), DATA),
        "gained": training_plots.acceptance_gained(metrics(600, 7), DATA),
        "gained, held-out rows": training_plots.acceptance_gained(measured(metrics(600, 3)), DATA),
        "gained in one step": training_plots.acceptance_gained(measured(metrics(1, 1)), DATA),
        "positions": plots.acceptance_by_position(positions, DATA),
        "nothing accepted": plots.acceptance_by_position({"random draft": positions["random draft"]}, DATA),
        "histogram": plots.accept_histogram({"simulated": histogram(CYCLES, 4), "served": histogram(CYCLES, 4)}, DATA),
        "serving": serving_plots.serving_bars(ROWS, DATA),
        "break-even": serving_plots.break_even_chart(ROWS, DATA),
        "scaling": scaling(0.28, 1.65),
        "flat scaling": scaling(0.0, 1.65),
        "far scaling": scaling(0.2, 2.3),
        "three points": scaling(0.28, 1.65, (2e4, 8e4, 3.2e5)),
        "wanted": wanted(1.4, 1.75),
        "two laws": scaling(0.2, 1.5, (2e4, 4e4, 8e4, 1.6e5, 3.2e5, 6.4e5)),
        "positions of a study": scaling_plots.position_curves(fit_positions(scaling_points(0.4), 3), DATA),
        "grid": serving_plots.grid_chart([*ROWS, *WARM, TREE], DATA),
        "what if": serving_plots.what_if_chart(fit_cycle_cost(ROWS), ROWS, [1, 3, 7, 15], DATA),
        "long data": serving_plots.serving_bars(ROWS, f"{DATA}; {DATA}"),
    }


FIGURES = figures()


@pytest.mark.parametrize("name", FIGURES)
def test_no_word_overlaps_another_or_leaves_the_figure(name):
    assert len(readable_words(FIGURES[name])) > 5


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_names_its_data_and_its_axes(name):
    assert_named(FIGURES[name], DATA)


def luminance(colour):
    rgb = np.array(matplotlib.colors.to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_colours_stand_out_on_white():
    """Contrast of WCAG: 4.5 for words, 3 for the lines of a figure."""
    for colour in (style.INK, style.MUTED):
        assert 1.05 / (luminance(colour) + 0.05) >= 4.5
    for colour in (style.BLUE, style.VERMILLION, style.GREEN):
        assert 1.05 / (luminance(colour) + 0.05) >= 3


def test_serving_bars_show_the_rows():
    axes = FIGURES["serving"].axes[0]
    assert [bar.get_height() for bar in axes.patches[:3]] == [26.1, 26.2, 17.7]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1\n(2)", "3\n(4)", "7\n(8)"]
    assert "no speculation, 21.4 tok/s" in [t.get_text() for t in axes.get_legend().get_texts()]
    colours = [matplotlib.colors.to_hex(bar.get_facecolor()).upper() for bar in axes.patches[:3]]
    assert colours == [style.BLUE, style.BLUE, style.VERMILLION]  # the last one is slower than the baseline


def test_training_draws_one_line_a_position():
    acceptance = FIGURES["training"].axes[1]
    assert [line.get_label() for line in acceptance.lines] == list("1234567")
    first, last = metrics(600, 7)["acceptance"].tolist()[0], metrics(600, 7)["acceptance"].tolist()[-15:]
    assert acceptance.lines[1].get_ydata()[0] == pytest.approx(first[1])
    assert acceptance.lines[6].get_ydata()[-1] == pytest.approx(np.mean([row[6] for row in last]))  # mean of 15


def test_the_gain_is_that_of_the_first_and_the_last_tenth():
    table = metrics(600, 7)
    acceptance = np.array(table["acceptance"].tolist())
    first, last = FIGURES["gained"].axes[0].lines
    assert first.get_ydata() == pytest.approx(acceptance[:60].mean(0))
    assert last.get_ydata() == pytest.approx(acceptance[540:].mean(0))


def test_the_best_heldout_accept_length_is_marked():
    course, best = FIGURES["gained, held-out rows"].axes[1].lines
    assert course.get_xdata() == pytest.approx([100 * n * 1800 for n in range(1, 7)])
    assert (best.get_xdata()[0], best.get_ydata()[0]) == (pytest.approx(300 * 1800), pytest.approx(1.5))


def test_a_resumed_training_goes_on_where_it_stopped():
    whole = metrics(10, 1)
    resumed = whole.copy()
    resumed.loc[6:, ["tokens", "seconds"]] -= whole.loc[5, ["tokens", "seconds"]]
    lines = [training_plots.training_curves(table, DATA).axes[0].lines[0] for table in (whole, resumed)]
    assert lines[1].get_xdata() == pytest.approx(lines[0].get_xdata())


def test_the_footnote_tells_of_a_dotted_line_only_where_there_is_one():
    counted = cycle_acceptance(CYCLES, 4)  # verifications do not show what was right after a wrong draft
    dotted = replace(counted, marginal=(0.4, 0.3, 0.2, 0.1))
    for shares, drawn in ((counted, False), (dotted, True)):
        figure = plots.acceptance_by_position({"served": shares}, DATA)
        lines = [line.get_linestyle() for line in figure.axes[1].lines]
        assert ((":" in lines), any("dotted" in text.get_text() for text in figure.texts)) == (drawn, drawn)


def test_a_break_even_that_is_not_known_is_not_drawn():
    points = scaling_points(0.28)
    fit = fit_scaling(points)
    needed = fit.needed_to_pay(ROWS[1], "the machine was busy")
    figure = scaling_plots.scaling_curve(points, fit, DATA, needed=[("break-even", needed)])
    assert not any("break-even" in line.get_label() for line in figure.axes[0].lines)
    assert any("not measurable: the machine was busy" in text.get_text() for text in figure.texts)


def test_every_wanted_accept_length_is_a_line_and_a_mark_on_the_curve():
    axes = FIGURES["wanted"].axes[0]
    lines = {line.get_label(): line.get_ydata()[0] for line in axes.lines}
    assert (lines["wanted, 1.40"], lines["break-even, 1.65"], lines["wanted, 1.75"]) == (1.4, 1.65, 1.75)
    marks = {line.get_ydata()[0]: line.get_xdata()[0] for line in axes.lines if line.get_marker() == "D"}
    assert list(marks) == [1.65, 1.4, 1.75]
    fit = fit_scaling(scaling_points(0.28))
    assert [fit.predict(amount) for amount in marks.values()] == pytest.approx(list(marks))
    note = " ".join(text.get_text() for text in FIGURES["wanted"].texts).replace("\n", " ")
    assert all(f"accept length {target:.2f} at " in note for target in (1.4, 1.65, 1.75))


def test_break_even_shows_the_distance():
    distances = [text.get_text() for text in FIGURES["break-even"].axes[0].texts]
    assert distances == ["+0.26", "+0.29", "-0.34"]  # 1.62 - 1.62 * 21.4 / 17.7


def test_histogram_legend_holds_the_accept_length():
    labels = [t.get_text() for t in FIGURES["histogram"].axes[0].get_legend().get_texts()]
    assert labels[1] == "served: 100 verifications, accept length 1.68"  # (25 + 20 + 15 + 8) / 100 drafts


def test_scaling_says_when_it_makes_no_prediction():
    note = " ".join(text.get_text() for text in FIGURES["flat scaling"].texts).replace("\n", " ")
    assert "No prediction: the slope is not distinguishable from 0" in note
    assert "a direction rather than a number" in " ".join(
        text.get_text() for text in FIGURES["far scaling"].texts
    ).replace("\n", " ")


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="every set is empty"):
        plots.length_histogram({"sharegpt": []}, DATA)
    with pytest.raises(ValueError, match="one baseline row"):
        serving_plots.serving_bars(ROWS[1:], DATA)
