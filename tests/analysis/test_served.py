"""Counts of served answers: the same accept length from the order of verifications and from a server's counts."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3lab.analysis.bench import run_bench
from eagle3lab.analysis.served import add_histograms, served_counts
from eagle3lab.engines.base import Request
from eagle3lab.engines.servers.verifications import CountsDisagree
from eagle3lab.engines.sglang.stats import SpecStats
from eagle3lab.engines.sglang.wire import Answer


def answer(n_output, accepted=None, **stats):
    return Answer("p0", [1], list(range(n_output)), "length", 0.1, accepted, SpecStats(**stats))


def test_counts_by_hand():
    # 1 + (2+1) + (0+1) + (3+1) = 9 tokens; the server's own accept length would be 9 / 3
    served = served_counts(answer(9, verifications=3, accept_length=3.0, histogram=(1, 0, 1, 1)), 3)
    assert (served.committed, served.verifications, served.histogram) == (8, 3, (1, 0, 1, 1))
    assert served.accepted is None
    in_order = served_counts(answer(9, [2, 0, 3], verifications=3), 3)
    assert (in_order.committed, in_order.verifications, in_order.histogram) == (8, 3, (1, 0, 1, 1))
    assert in_order.accepted == (2, 0, 3)


def test_a_last_verification_that_ran_past_the_end_adds_no_tokens():
    served = served_counts(answer(7, verifications=3, histogram=(1, 0, 1, 1)), 3)  # two of the 8 are cut off
    assert served.committed / served.verifications == 2.0


@given(accepted=st.lists(st.integers(0, 5), max_size=12), cut=st.integers(0, 5))
def test_both_ways_give_the_same_accept_length(accepted, cut):
    cut = min(cut, accepted[-1]) if accepted else 0
    counts = tuple(accepted.count(k) for k in range(6))  # the server counts the drafts that the end cuts off, too
    n_output = 1 + sum(a + 1 for a in accepted) - cut
    ours = [*accepted[:-1], accepted[-1] - cut] if accepted else []
    told = served_counts(answer(n_output, verifications=len(accepted), histogram=counts), 5)
    known = served_counts(answer(n_output, ours), 5)
    assert (told.committed, told.verifications) == (known.committed, known.verifications)


def test_counts_that_cannot_be_true_are_refused():
    with pytest.raises(CountsDisagree, match="row 'p0'.*retracted"):
        served_counts(answer(10, verifications=3, histogram=(1, 0, 1, 1)), 3)  # only 8 tokens were committed
    with pytest.raises(CountsDisagree, match="histogram"):
        served_counts(answer(9, verifications=4, histogram=(1, 0, 1, 1)), 3)
    with pytest.raises(CountsDisagree, match="histogram"):
        served_counts(answer(5, verifications=3, histogram=(1, 0, 1, 1)), 3)  # 4 past the end, the longest has 3
    with pytest.raises(CountsDisagree, match="cannot make its 3 tokens"):
        served_counts(answer(3, verifications=3), 3)
    with pytest.raises(ValueError, match="spec_verify_ct"):
        served_counts(answer(9), 3)
    with pytest.raises(ValueError, match="the answer has 9"):
        served_counts(answer(9, [1, 1]), 3)


def test_histograms_add_up_where_all_are_known():
    assert add_histograms([(1, 2), (0, 1, 4)]) == [1, 3, 4]
    assert add_histograms([(1, 2), None]) is None


@dataclass
class FakeServers:
    """Answers as a server gives them: counts with every answer, the order of verifications for `ordered` ones only.

    A plain step takes 10 ms, a cycle 10 ms and 5 ms a draft; one draft a cycle is accepted.
    """

    ordered: tuple[str, ...] = ()
    now: float = 0.0
    asked: list = field(default_factory=list)

    def clock(self):
        return self.now

    def generate(self, requests, batch_size=64, streamed=False):
        for request in requests:
            self.now += 0.010 * (request.max_tokens - 1)
            yield answer_of(request)

    def speculate(self, draft, requests, num_steps=3, topk=1, num_draft_tokens=None, batch_size=1, ordered=True):
        for request in requests:
            self.asked.append((draft, num_steps))
            cycles = -(-(request.max_tokens - 1) // 2)
            past = 2 * cycles - (request.max_tokens - 1)
            self.now += cycles * (0.010 + 0.005 * num_steps)
            accepted = [1] * (cycles - 1) + [1 - past] if request.id in self.ordered else None
            stats = SpecStats(cycles, cycles, cycles * num_steps, request.max_tokens / cycles, None, (0, cycles))
            yield answer_of(request, accepted, stats)


def answer_of(request, accepted=None, stats=None):
    tokens = list(range(request.max_tokens))
    return Answer(request.id, request.input_ids, tokens, "length", 0.1, accepted, stats or SpecStats())


@pytest.mark.parametrize("ordered", [(), ("p0",), ("p0", "p1")])
def test_a_server_is_measured_as_the_embedded_engine_is(ordered):
    engine = FakeServers(ordered)
    requests = [Request("p0", [1, 2], 101), Request("p1", [3], 42)]
    result = run_bench(engine, "drafter/folder", requests, [1, 3], rounds=2, clock=engine.clock)
    baseline, one, three = result.rows
    # 100 + 41 tokens in 50 + 21 cycles of 15 and of 25 ms; plain: 141 steps of 10 ms
    assert one.accept_length == three.accept_length == pytest.approx(141 / 71)
    assert baseline.tok_s == pytest.approx(143 / 1.41)
    assert one.speedup == pytest.approx(1.41 / (71 * 0.015))
    assert three.break_even == pytest.approx(three.accept_length * (71 * 0.025) / 1.41)
    assert (one.differing, one.tokens) == (0, 2 * 143)
    assert set(engine.asked) == {("drafter/folder", 1), ("drafter/folder", 3)}
    assert sum(result.histogram(1)) == 2 * 71
    if len(ordered) == 2:
        assert [len(row.accepted) for row in result.cycles(1)] == [50, 21]
    else:
        with pytest.raises(ValueError, match="did not tell what each verification accepted"):
            result.cycles(1)
