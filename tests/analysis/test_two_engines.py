"""One drafter behind two engines: what the table holds, and what counts as not the same."""

import pytest

from eagle3lab.analysis.bench import run_bench
from eagle3lab.analysis.two_engines import agreement, engines_table
from tests.analysis.test_bench import FakeEngine, Request

REQUESTS = [Request("a", 9), Request("b", 7)]


def measured(requests=REQUESTS, **engine):
    fake = FakeEngine(**engine)
    return run_bench(fake, "the draft", requests, [2], rounds=1, clock=fake.clock)


def test_engines_that_accept_the_same_drafts_agree():
    found = agreement(measured(accepts=1), measured(accepts=1), 2)
    assert (found.answers, found.alike, found.verifications, found.differing) == (2, 2, 7, ())
    assert str(found) == "chain 2: 2 of 2 answers alike, with the same drafts accepted in all 7 verifications"


def test_engines_that_accept_other_drafts_are_told_apart_by_answer():
    found = agreement(measured(accepts=1), measured(accepts=2), 2)
    assert found.alike == 2 and found.differing == ("a", "b")
    assert str(found).endswith("in 2 of them other drafts were accepted: a, b")


def test_verifications_of_answers_that_differ_are_not_compared():
    left, right = measured(accepts=1), measured(accepts=2)
    right.answers["a"] = [7, 7]
    found = agreement(left, right, 2)
    assert (found.alike, found.differing) == (1, ("b",))


def test_answers_that_one_engine_refused_are_not_compared():
    left = measured(refused=[(2, "a")])
    found = agreement(left, measured(), 2)
    assert (found.answers, found.alike, found.verifications, found.differing) == (2, 2, 3, ())
    found = agreement(measured(refused=[(0, "a")]), measured(), 2)
    assert (found.answers, found.alike) == (2, 1)
    found = agreement(measured(refused=[(0, "a")]), measured(refused=[(0, "a")]), 2)  # no answer is not the same answer
    assert (found.answers, found.alike) == (2, 1)
    assert "is not told" in str(agreement(left, measured(), 3))  # a chain that neither has


def test_other_prompts_are_refused():
    with pytest.raises(ValueError, match="not asked the same prompts"):
        agreement(measured(), measured(requests=REQUESTS[:1]), 2)


def test_the_table_holds_both_engines_each_against_its_own_baseline():
    table = engines_table({"sglang": measured(accepts=1).rows, "vllm": measured(accepts=2).rows})
    assert list(table.index) == [(name, row) for name in ("sglang", "vllm") for row in ("baseline", "chain 2")]
    assert table.loc[("vllm", "baseline"), "speedup"] == "1.00x"
    lengths = [float(table.loc[(name, "chain 2"), "accept_length"]) for name in ("sglang", "vllm")]
    assert lengths[0] == 2.0 < lengths[1]
