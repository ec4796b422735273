"""A figure that is drawn again while rows come: rarely, with all rows, and with the source closed behind it."""

import pytest

from eagle3lab.analysis import training_plots
from eagle3lab.analysis.training_plots import LEAST_GAP, SHARE, LiveFigure


class Clock:
    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(training_plots, "time", clock)
    return clock


@pytest.fixture
def shown(monkeypatch):
    """What a notebook shows: (how, figure)."""
    seen = []

    class Handle:
        def update(self, figure):
            seen.append(("update", figure))

    def display(figure, display_id):
        assert display_id is True
        seen.append(("display", figure))
        return Handle()

    monkeypatch.setattr(training_plots, "display", display)
    return seen


def rows(clock, count, seconds, closed):
    try:
        for step in range(count):
            clock.now += seconds
            yield {"step": step}
    finally:
        closed.append(True)


def test_drawing_takes_a_small_share_of_the_time(clock, shown):
    def draw(rows):
        clock.now += 1.0  # a slow machine
        return len(rows)

    live = LiveFigure(draw, [{"step": -1}])
    assert [row["step"] for row in live.follow(rows(clock, 1000, 1.0, []))] == list(range(1000))
    assert shown[0] == ("display", 1 + LEAST_GAP) and {how for how, _ in shown[1:]} == {"update"}
    assert len(shown) * 1.0 <= SHARE * clock.now + 2  # the first and the last drawing are free
    assert shown[-1] == ("update", 1001)  # the earlier start's row too


def test_a_short_training_is_drawn_once_at_its_end(clock, shown):
    live = LiveFigure(len)
    assert len(list(live.follow(rows(clock, 3, 0.1, [])))) == 3
    assert shown == [("display", 3)]


def test_nothing_to_train_draws_nothing(clock, shown):
    assert list(LiveFigure(len).follow(rows(clock, 0, 1.0, []))) == [] and not shown


def test_leaving_early_closes_the_source(clock, shown):
    closed = []
    following = LiveFigure(len).follow(rows(clock, 10, 1.0, closed))
    next(following)
    following.close()
    assert closed == [True]
