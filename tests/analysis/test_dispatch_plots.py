"""Figures of a dispatch: they show the state they were given, at any time of a run, and every word can be read."""

import numpy as np
import pytest

from eagle3lab.analysis.dispatch_plots import live_figure, time_left_figure
from eagle3lab.engines.dispatch.view import view_of
from eagle3lab.engines.dispatch.work import Partition
from tests.analysis.figures import readable_words
from tests.engines.dispatch.replay import Replay, case_run, lognormal_lengths

DATA = "replayed run (simulation), 150 at a time, max_tokens 10240, 830 tok/s shared"


def eight_sets():
    generator = np.random.default_rng(0)
    part = Partition("short", 150, 10240)
    means = (120, 300, 500, 800, 900, 1000, 1500, 6000)
    sets = [(f"B{i} of a kind", part, lognormal_lengths(60, m, 1.0, 10240, generator)) for i, m in enumerate(means)]
    return Replay(sets, pilot=16)


def followed(replay, shares):
    views, history = [], []
    for share in shares:
        moment = share * replay.end
        tally = replay.tally_at(moment)
        views.append(view_of(tally, moment, tally.time_left(moment)))
        history.append(views[-1].metric())
    return views, history


SHARES = (0.02, 0.1, 0.3, 0.7, 1.0)
RUNS = {"one set": followed(case_run(0, rows=1500), SHARES), "eight sets": followed(eight_sets(), SHARES)}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("place", [0, 2, 4])
def test_at_any_time_every_word_can_be_read(name, place):
    views, history = RUNS[name]
    figures = [live_figure(views[place], history[: place + 1], DATA), time_left_figure(history[: place + 1], DATA)]
    for figure in figures:
        boxes = readable_words(figure)
        assert all(axes.get_xlabel() and (axes.get_ylabel() or axes.get_yticklabels()) for axes in figure.axes)
        assert any(DATA in text.replace("\n", " ") for text, _ in boxes)


def test_the_curve_is_the_share_of_longer_answers():
    replay = case_run(0, rows=1500)
    views, history = RUNS["one set"]
    figure = live_figure(views[-1], history, DATA)
    line = figure.axes[0].get_lines()[0]
    lengths = replay.sets[0][2]
    for length, share in zip(*line.get_data(), strict=True):
        if length == 10240:  # those that were cut are longer
            assert share == pytest.approx((lengths == 10240).mean())
            continue
        assert share == pytest.approx((lengths > length).mean(), abs=1e-9)
    rates = figure.axes[1].get_lines()[0].get_ydata()
    assert list(rates) == [row["tokens_per_second"] for row in history]


def test_eight_sets_have_a_strip_each_with_their_median():
    views, history = RUNS["eight sets"]
    figure = live_figure(views[-1], history, DATA)
    axis = figure.axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == [f"B{i} of a kind (60)" for i in range(8)]
    points = [line.get_xdata()[0] for line in axis.get_lines() if line.get_marker() == "o"]
    medians = [np.median(lengths) for _, _, lengths in eight_sets().sets]
    np.testing.assert_allclose(points, medians, rtol=0.06)


def test_the_estimate_ends_where_the_work_does():
    _, history = RUNS["one set"]
    estimate, passed = time_left_figure(history, DATA).axes[0].get_lines()
    assert estimate.get_ydata()[-1] == pytest.approx(passed.get_ydata()[-1])
    assert estimate.get_ydata()[1] == pytest.approx(passed.get_ydata()[-1], rel=0.35)


def test_a_dispatch_that_was_begun_again_goes_on_in_time():
    _, history = RUNS["one set"]
    twice = [*history[:3], *history[:3]]
    times = live_figure(RUNS["one set"][0][2], twice, DATA).axes[1].get_lines()[0].get_xdata()
    assert list(times) == sorted(times) and times[-1] == pytest.approx(2 * times[2])


def test_nothing_to_draw_is_said():
    views, history = followed(case_run(0, rows=200), (1e-6,))
    with pytest.raises(ValueError, match="no answer has ended"):
        live_figure(views[0], history, DATA)
    with pytest.raises(ValueError, match="no metric row"):
        time_left_figure(history, DATA)
