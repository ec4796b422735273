"""The benchmark on a fake engine with a fake clock: every number can be calculated by hand."""

from dataclasses import dataclass, field

import pytest

from eagle3lab.analysis import bench
from eagle3lab.analysis.bench_row import break_even, cycle_ms

PLAIN_STEP = 0.010  # seconds


@dataclass
class Request:
    id: str
    max_tokens: int
    temperature: float = 0.0


@dataclass
class Completion:
    id: str
    output_ids: list[int]
    accepted: list[int] = field(default_factory=list)
    first_seconds: float | None = None


class FakeEngine:
    """Writes 0, 1, 2 ... and accepts `accepts` drafts whenever the chain is long enough.

    A plain step takes 10 ms (the first token is free: its prefill), a cycle 10 ms and 5 ms a draft. `slow`
    stretches
    the whole machine from some moment on. `wrong` puts another token at an index of the speculative answers.
    """

    def __init__(self, accepts=1, slow_after=float("inf"), wrong=None):
        self.now, self.accepts, self.slow_after, self.wrong, self.log = 0.0, accepts, slow_after, wrong, []

    def clock(self):
        return self.now

    def pass_time(self, seconds):
        self.now += seconds * (2 if self.now >= self.slow_after else 1)

    def generate(self, requests, batch_size, streamed):
        assert batch_size == 1 and streamed
        for request in requests:
            self.log.append((request.id, 0))
            self.pass_time(PLAIN_STEP * (request.max_tokens - 1))
            yield Completion(request.id, list(range(request.max_tokens)))

    def speculate(self, draft, requests, num_steps):
        assert draft == "the draft"
        for request in requests:
            self.log.append((request.id, num_steps))
            output, accepted = [0], []
            while len(output) < request.max_tokens:
                count = min(self.accepts, num_steps, request.max_tokens - len(output) - 1)
                output += range(len(output), len(output) + count + 1)
                accepted.append(count)
                self.pass_time(PLAIN_STEP + 0.005 * num_steps)
            if self.wrong is not None:
                output[self.wrong] = -1
            yield Completion(request.id, output, accepted)


def run(engine, lengths=(101, 41), num_steps=(1, 3), rounds=3, **more):
    requests = [Request(f"p{i}", n) for i, n in enumerate(lengths)]
    return bench.run_bench(engine, "the draft", requests, num_steps, rounds, clock=engine.clock, **more)


@pytest.mark.parametrize(("tok_s", "expected", "cycle"), [(82.3, 2.30, 25.5), (56.7, 3.33, 37.0)])
def test_break_even_of_the_case(tok_s, expected, cycle):
    """Accept length 2.1 at 82.3 and at 56.7 tok/s against 90 tok/s plain (11.1 ms a step)."""
    assert break_even(2.1, tok_s, 90) == pytest.approx(expected, abs=0.005)
    assert cycle_ms(2.1, tok_s) == pytest.approx(cycle, abs=0.05)
    assert cycle_ms(1.0, 90) == pytest.approx(11.1, abs=0.05)


def test_break_even_refuses_zero():
    with pytest.raises(ValueError, match="base_tok_s=0"):
        break_even(2.1, 82.3, 0)


def test_rows_by_hand():
    baseline, one, three = run(FakeEngine(accepts=1)).rows
    # plain: 142 tokens in 140 steps of 10 ms
    assert baseline.tok_s == pytest.approx(142 / 1.40)
    assert (baseline.accept_length, baseline.break_even, baseline.speedup) == (None, None, 1.0)
    assert (baseline.num_steps, baseline.num_draft_tokens, baseline.topk) == (0, 0, 0)
    # one draft, always right: 140 tokens in 70 cycles of 15 ms
    assert one.accept_length == 2.0
    assert one.tok_s == pytest.approx(142 / (70 * 0.015))
    assert one.speedup == pytest.approx(1.40 / 1.05)
    assert one.break_even == pytest.approx(1.5)  # 15 ms against 10 ms
    assert one.num_draft_tokens == 2
    # three drafts, one right: 70 cycles of 25 ms, slower than plain and below its break-even
    assert three.accept_length == 2.0
    assert three.break_even == pytest.approx(2.5)
    assert three.speedup == pytest.approx(0.8)
    assert (three.prompts, three.rounds, three.tokens, three.differing) == (2, 3, 3 * 142, 0)


def test_speedup_is_accept_length_over_break_even():
    for row in run(FakeEngine(accepts=2)).rows[1:]:
        assert row.speedup == pytest.approx(row.accept_length / row.break_even)


def test_cut_last_cycle_counts_its_tokens():
    # 1 + 4 tokens, 3 accepted + 1: exactly one cycle; 1 + 5: a second cycle with the last token only
    result = run(FakeEngine(accepts=3), lengths=(5, 6), num_steps=(3,), rounds=1)
    assert [row.accepted for row in result.cycles(3)] == [(3,), (3, 0)]
    assert result.rows[1].accept_length == 9 / 3


def test_settings_are_interleaved_prompt_by_prompt():
    engine = FakeEngine()
    run(engine, rounds=2)
    timed = engine.log[3:]  # one warm-up per setting
    assert engine.log[:3] == [("p0", 0), ("p0", 1), ("p0", 3)]
    assert timed == [
        ("p0", 0),
        ("p0", 1),
        ("p0", 3),
        ("p1", 1),
        ("p1", 3),
        ("p1", 0),
        ("p0", 1),
        ("p0", 3),
        ("p0", 0),
        ("p1", 3),
        ("p1", 0),
        ("p1", 1),
    ]


def test_a_machine_that_slows_down_shifts_no_ratio():
    """Half the speed from the second round on: the range shows it, the speed-up does not move."""
    warm = FakeEngine()
    run(warm, rounds=1)
    rows = run(FakeEngine(slow_after=warm.now - 1e-9), rounds=3).rows
    assert rows[0].tok_s_high == pytest.approx(2 * rows[0].tok_s_low)
    assert rows[1].speedup_low == pytest.approx(rows[1].speedup_high) == pytest.approx(1.40 / 1.05)


def test_lossy_answers_are_named():
    result = run(FakeEngine(wrong=7), num_steps=(2,), rounds=2)
    assert [(d.num_steps, d.round, d.id, d.token) for d in result.differences] == [
        (2, 0, "p0", 7),
        (2, 0, "p1", 7),
        (2, 1, "p0", 7),
        (2, 1, "p1", 7),
    ]
    assert [row.differing for row in result.rows] == [0, 4]


def test_progress_counts_every_decoded_request():
    seen = []
    run(FakeEngine(), rounds=2, on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i, 12) for i in range(1, 13)]


def test_impossible_benchmarks_are_refused():
    engine = FakeEngine()
    with pytest.raises(ValueError, match="at least one request"):
        run(engine, lengths=())
    with pytest.raises(ValueError, match="num_steps"):
        run(engine, num_steps=(0,))
    with pytest.raises(ValueError, match="num_steps"):
        run(engine, num_steps=(2, 2))
    with pytest.raises(ValueError, match="request hot is sampled"):
        bench.run_bench(engine, "the draft", [Request("hot", 5, temperature=0.7)], [1], clock=engine.clock)
