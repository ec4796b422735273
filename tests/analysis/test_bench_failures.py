"""A benchmark on a fake engine in which requests and settings fail, or which is cut off."""

import dataclasses
import json

import pytest

from eagle3lab.engines.base import check_request
from tests.analysis.test_bench import FakeEngine, run
from tests.analysis.test_grid import rounded


def test_a_refused_request_is_counted_and_compared_with_nothing():
    result = run(FakeEngine(refused=[(3, "p1")]))
    baseline, one, three = result.rows
    assert (baseline.errors, one.errors, three.errors) == (0, 0, 3)
    assert (three.prompts, three.tokens, three.accept_length) == (1, 3 * 101, 2.0)
    assert three.speedup == pytest.approx(1.0 / 1.25)  # over p0 alone on both sides
    assert one.speedup == pytest.approx(1.40 / 1.05)
    without = run(FakeEngine(refused=[(0, "p1")]))
    assert [row.errors for row in without.rows] == [3, 0, 0] and [row.prompts for row in without.rows] == [1, 1, 1]
    assert without.answers == {"p0": list(range(101)), "p1": None}


def test_a_prompt_that_does_not_fit_the_context_is_counted_and_the_others_are_measured():
    """The embedded engine says so before it runs, and so of both sides."""

    class Short(FakeEngine):
        def begin(self, request, num_steps):
            check_request(request, 10, max_context=80)
            super().begin(request, num_steps)

    result = run(Short())  # p0 has 101 tokens, p1 41
    assert [(row.errors, row.prompts) for row in result.rows] == [(3, 1)] * 3
    assert result.answers["p0"] is None and result.answers["p1"]


def test_counts_that_are_not_their_answers_are_an_error():
    class Lying(FakeEngine):
        def speculate(self, draft, requests, num_steps):
            for done in super().speculate(draft, requests, num_steps):
                yield dataclasses.replace(done, accepted=[0]) if done.id == "p1" and num_steps == 3 else done

    rows = run(Lying()).rows
    assert [row.errors for row in rows] == [0, 0, 3] and rows[2].prompts == 1


@pytest.mark.parametrize("nth", [0, 4])  # it does not start; it dies in the second round
def test_a_setting_that_cannot_run_is_a_row_with_its_reason(nth):
    result = run(FakeEngine(broken={3: nth}))
    assert [row.setting for row in result.rows] == ["baseline", "chain 1"]
    assert [(str(one.cell), one.reason) for one in result.settings] == [
        ("chain 1 at one stream", ""),
        ("chain 3 at one stream", "RuntimeError: the server died: out of memory"),
    ]
    assert result.settings[0].row is result.rows[1] and result.settings[1].row is None
    assert result.settings[0].histogram == (0, 3 * 70) and result.settings[0].positions.joint == (1.0,)
    assert {run.num_steps for run in result.runs} == {0, 1} and result.rows[1].rounds == 3


def test_without_a_baseline_or_any_setting_there_is_no_benchmark():
    with pytest.raises(RuntimeError, match="the server died"):
        run(FakeEngine(broken={0: 2}))
    with pytest.raises(ValueError, match="no setting could be measured: chain 1.*RuntimeError.*chain 3.*died"):
        run(FakeEngine(broken={1: 0, 3: 0}))
    with pytest.raises(ValueError, match="no answer to compare.*RequestRefused: too long"):
        run(FakeEngine(refused=[(0, "p0"), (0, "p1")]))


def test_a_benchmark_that_was_cut_off_goes_on_with_the_next_prompt(tmp_path):
    whole, path, seen = run(FakeEngine(), rounds=2), tmp_path / "bench.jsonl", []
    cut = FakeEngine(off_after=3 + 3 + 2)  # warm-up, p0, and two settings of p1
    with pytest.raises(KeyboardInterrupt):
        run(cut, rounds=2, path=path, setting="fake")
    again = FakeEngine()
    kept = {"path": path, "setting": "fake", "rounds": 2}
    result = run(again, on_progress=lambda done, total: seen.append((done, total)), **kept)
    assert again.log == [("p0", 0), ("p0", 1), ("p0", 3), *[("p1", 1), ("p1", 3), ("p1", 0)],
                         ("p0", 1), ("p0", 3), ("p0", 0), ("p1", 3), ("p1", 0), ("p1", 1)]  # fmt: skip
    assert seen == [(i, 12) for i in range(4, 13)]
    assert rounded(result.rows) == rounded(whole.rows)  # the clock runs on
    assert result.answers == whole.answers and result.cycles(3) == whole.cycles(3)
    nothing = FakeEngine()
    assert run(nothing, **kept) == result and nothing.log == []
    with pytest.raises(ValueError, match="other rounds, num_steps"):
        run(nothing, rounds=1, num_steps=(1,), path=path, setting="fake")


def test_a_setting_that_failed_before_the_cut_is_not_tried_again(tmp_path):
    path = tmp_path / "bench.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run(FakeEngine(broken={3: 1}, off_after=9), path=path)
    whole = FakeEngine()
    result = run(whole, path=path)
    assert 3 not in {steps for _, steps in whole.log} and [row.setting for row in result.rows] == [
        "baseline",
        "chain 1",
    ]
    assert result.settings[1].reason == "RuntimeError: the server died: out of memory"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line for line in lines if "reason" in line] == [{"num_steps": 3, "reason": result.settings[1].reason}]
