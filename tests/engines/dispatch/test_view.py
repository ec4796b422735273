"""What is shown of a dispatch, and when."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from eagle3lab.engines.base import Completion
from eagle3lab.engines.dispatch.journal import Journal
from eagle3lab.engines.dispatch.run import dispatch
from eagle3lab.engines.dispatch.tally import Tally
from eagle3lab.engines.dispatch.timeleft import TimeLeft
from eagle3lab.engines.dispatch.view import ServerView, ViewClock, spoken, view_of
from eagle3lab.engines.dispatch.work import Partition, Prompts, Work
from eagle3lab.engines.servers.errors import RequestRefused
from tests.engines.dispatch.fakes import QUICK, FakeServer, answer_to, answers, run, work

PART = Partition("short", 8, 64)


def counted():
    """Set a: 10 rows, 3 done (5 + 64 cut + 7 tokens), 1 set aside, 1 on its way; set b: 4 rows, nothing yet."""
    tally = Tally([Work("a", PART, []), Work("b", PART, [])], {"a": 10, "b": 4}, 100.0)
    for row, tokens, reason in (("r1", 5, "stop"), ("r2", 64, "length"), ("r3", 7, "stop")):
        tally.start("a", row, 100.0)
        tally.finish("a", row, tokens, reason, 110.0)
    tally.start("a", "r4", 105.0)
    tally.give_up("a", "refused")
    tally.sample(110.0)
    return tally


def test_a_view_holds_the_counts():
    view = view_of(counted(), 110.0, None, retries=2)
    assert (view.rows, view.done, view.set_aside, view.waiting, view.on_way) == (14, 3, 1, 10, 1)
    assert (view.tokens, view.finish, view.errors, view.retries) == (76, {"stop": 2, "length": 1}, {"refused": 1}, 2)
    a, b = view.sets
    assert (a.rows, a.done, a.set_aside, a.waiting, a.on_way, a.tokens) == (10, 3, 1, 6, 1, 76)
    assert (b.rows, b.done, b.waiting) == (4, 0, 4)
    assert dict(zip(a.edges[1:], a.histogram, strict=True)) == {1: 0, 2: 0, 4: 0, 8: 2, 16: 0, 32: 0, 64: 1}
    assert a.seen.at_risk_B[0] == pytest.approx(4, abs=1)  # the unfinished one is at risk


def test_its_lines_say_what_matters():
    left = TimeLeft(51_000.0, 45_400.0, 59_000.0, 4e7, (100.0, 100.0))
    servers = [ServerView("http://a", True, 3, 5), ServerView("http://b", False, 0, 0)]
    view = view_of(counted(), 110.0, left, servers=servers)
    rate = f"{view.tokens_per_second:,.0f} tok/s"
    note = f"{rate} · 12.6 h to 16.4 h left · 33% cut · 1 set aside · waiting for http://b"
    assert view.note() == note
    assert view.line() == f"4/14 rows · 14.2 h left · {note}"
    assert view.seconds_left == 51_000.0 and view_of(counted(), 110.0, None).seconds_left is None


@pytest.mark.parametrize("seconds, words", [(40, "40 s"), (89, "89 s"), (1500, "25 min"), (77_040, "21.4 h")])
def test_times_are_spoken(seconds, words):
    assert spoken(seconds) == words


def test_a_metric_row_is_small_plain_json():
    left = TimeLeft(100.0, 80.0, 130.0, 1000.0, (1.0, 1.0))
    row = view_of(counted(), 110.0, left).metric()
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert row["seconds_left"] == 100 and row["seconds_left_range"] == [80, 130]
    assert [one["set"] for one in row["sets"]] == ["a"]  # sets that have not begun are left out
    assert len(json.dumps(row)) < 800


def test_views_come_often_at_first_and_seldom_in_a_long_run():
    clock = SimpleNamespace(now=0.0)
    views = ViewClock(lambda: clock.now)
    gaps, count = {}, 0
    while clock.now < 55 * 3600:
        gaps[clock.now] = views.gap()
        clock.now += views.gap()
        count += 1
    assert gaps[0.0] == 1.0 and views.gap() == 60.0
    assert count < 5000


def test_the_estimate_costs_a_bounded_share_of_the_time():
    clock, asked = SimpleNamespace(now=0.0), []

    def estimate(now, stream):
        asked.append(now)
        clock.now += 0.1
        return TimeLeft(1000.0 - now, 900.0 - now, 1100.0 - now, 5.0, ())

    tally = SimpleNamespace(sample=lambda now: None, time_left=estimate, waiting=5)
    views = ViewClock(lambda: clock.now)
    while clock.now < 100:
        before = clock.now
        left = views.time_left(tally)
        assert left.seconds == pytest.approx(1000 - before)  # in between it runs down with the clock
        clock.now += 1.0
    assert len(asked) * 0.1 <= 0.03 * clock.now
    tally.waiting = 0
    asked.clear()
    views.time_left(tally)
    assert asked  # at the end it is asked whatever it costs


def test_a_second_dispatch_shows_what_the_first_one_did(tmp_path):
    works = [work(40)]
    refused = FakeServer(trouble=lambda row, n: RequestRefused("no") if row == "set-4" else None)
    first = run(works, [refused], tmp_path)[-1]
    second = run([*works, work(10, "more")], [FakeServer()], tmp_path)[-1]
    before, after = first.sets[0], second.sets[0]
    assert (after.done, after.set_aside, after.tokens, after.finish, after.histogram) == (
        before.done, before.set_aside, before.tokens, before.finish, before.histogram,
    )  # fmt: skip
    assert (second.rows, second.done, second.errors) == (50, 49, {"refused": 1})


def test_rows_of_sets_that_are_not_asked_for_now_are_left_out_of_the_counts(tmp_path):
    run([work(10, "a")], [FakeServer()], tmp_path)
    last = run([work(5, "b")], [FakeServer()], tmp_path)[-1]
    assert (last.rows, last.done) == (5, 5)
    assert len(answers(tmp_path)) == 15


def test_prompts_are_read_again_and_again_and_limited(tmp_path):
    read = []

    def rows():
        read.append(1)
        return ({"id": f"p{i}", "prompt_ids": [i, 7]} for i in range(9))

    prompts = Prompts(rows, limit=4)
    assert list(prompts) == list(prompts) == [(f"p{i}", [i, 7]) for i in range(4)]
    assert dispatch([Work("a", PART, prompts)], [FakeServer()], tmp_path, "t", QUICK)
    last = run([Work("a", PART, prompts)], [FakeServer()], tmp_path)[-1]
    assert last.done == 4 and len(read) > 3


@pytest.mark.slow
def test_memory_stays_flat_over_a_long_run(tmp_path):
    """What Python holds does not grow with the rows that are done (benchmarks/dispatch.py: over 83,288)."""
    import tracemalloc

    class Many:
        def __iter__(self):
            return ((f"row-{i}", [5] * 20) for i in range(40_000))

    class Forgetful(FakeServer):
        async def generate(self, request):
            await asyncio.sleep(0)
            return Completion(request.id, request.input_ids, *answer_to(request.id, 64), 0.0)

    used = []
    tracemalloc.start()
    try:
        for view in dispatch([Work("a", Partition("short", 150, 64), Many())], [Forgetful()], tmp_path, "t"):
            used.append((view.done, tracemalloc.get_traced_memory()[0]))
    finally:
        tracemalloc.stop()
    early = max(size for done, size in used if 1_000 < done < 16_000)  # all structures are there, whatever the speed
    # the least of the late ones: half a megabyte is collected before it is written, and a view may come at any point of
    # that. 12,000 rows lie between, so ids alone would be 750 KB and answers 20 MB
    late = min(size for done, size in used if done > 28_000)
    assert late < early + 2**19
    with Journal(tmp_path, {}) as journal:
        assert len(journal.done) == 40_000
