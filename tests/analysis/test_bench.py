"""The benchmark on a fake engine with a fake clock: every number can be calculated by hand."""

from dataclasses import dataclass, field

import pytest

from eagle3lab.analysis import bench
from eagle3lab.analysis.bench_row import break_even, cycle_ms, make_row, percentiles
from eagle3lab.engines.servers.errors import RequestRefused

PLAIN_STEP = 0.010  # seconds


@dataclass
class Request:
    id: str
    max_tokens: int
    temperature: float = 0.0
    input_ids: tuple[int, ...] = (1, 2)


@dataclass
class Completion:
    id: str
    output_ids: list[int]
    accepted: list[int] = field(default_factory=list)
    first_seconds: float | None = None


class FakeEngine:
    """Writes 0, 1, 2 ... and accepts `accepts` drafts whenever the chain is long enough.

    A plain step takes 10 ms (the first token is free: its prefill), a cycle 10 ms and 5 ms a draft. `slow_after`
    stretches the whole machine from some moment on, `slowness` those answers of a setting: {(num_steps, nth): factor}.
    `wrong` puts another token at an index of the speculative answers. `refused`: (num_steps, id) that are refused;
    `broken`: a setting whose server dies at its nth request, {num_steps: nth}; `off_after`: requests until Ctrl-C.
    """

    def __init__(self, accepts=1, slow_after=float("inf"), wrong=None, **more):
        self.now, self.accepts, self.slow_after, self.wrong, self.log = 0.0, accepts, slow_after, wrong, []
        self.slowness, self.refused, self.broken = (more.get(name, {}) for name in ("slowness", "refused", "broken"))
        self.off_after = more.get("off_after", float("inf"))

    def clock(self):
        return self.now

    def pass_time(self, seconds):
        num_steps = self.log[-1][1]
        nth = sum(steps == num_steps for _, steps in self.log) - 1
        self.now += seconds * (2 if self.now >= self.slow_after else 1) * self.slowness.get((num_steps, nth), 1)

    def begin(self, request, num_steps):
        if len(self.log) >= self.off_after:
            raise KeyboardInterrupt
        self.log.append((request.id, num_steps))
        if (num_steps, request.id) in self.refused:
            raise RequestRefused("too long", row_id=request.id)
        if sum(steps == num_steps for _, steps in self.log) > self.broken.get(num_steps, float("inf")):
            raise RuntimeError("the server died:\n  out of memory")

    def generate(self, requests, batch_size, streamed):
        assert batch_size == 1 and streamed
        for request in requests:
            self.begin(request, 0)
            self.pass_time(PLAIN_STEP * (request.max_tokens - 1))
            yield Completion(request.id, list(range(request.max_tokens)), first_seconds=PLAIN_STEP)

    def speculate(self, draft, requests, num_steps):
        assert draft == "the draft"
        for request in requests:
            self.begin(request, num_steps)
            output, accepted = [0], []
            while len(output) < request.max_tokens:
                count = min(self.accepts, num_steps, request.max_tokens - len(output) - 1)
                output += range(len(output), len(output) + count + 1)
                accepted.append(count)
                self.pass_time(PLAIN_STEP + 0.005 * num_steps)
            if self.wrong is not None:
                output[self.wrong] = -1
            yield Completion(request.id, output, accepted, first_seconds=2 * PLAIN_STEP)


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
    assert (baseline.errors, one.errors, three.errors) == (0, 0, 0)
    # of the six answers, three took 1 s and three 0.4: the middle, and 95 and 99 % of the way to the longest
    assert baseline.request_s == pytest.approx((0.7, 1.0, 1.0))
    assert one.request_s == pytest.approx((0.525, 0.75, 0.75))
    assert baseline.first_s == pytest.approx((0.01,) * 3) and one.first_s == pytest.approx((0.02,) * 3)
    assert one.request_tok_s == pytest.approx((101 / 0.75 + 41 / 0.3) / 2)


def test_percentiles_by_hand():
    # between the ranks 0..99 of a hundred values: 49.5, 94.05 and 98.01
    assert percentiles(range(1, 101)) == pytest.approx((50.5, 95.05, 99.01))
    assert percentiles([]) is None and percentiles([0.1, None]) is None


def test_a_speed_is_the_median_of_its_rounds():
    row = make_row(3, [40.0, 10.0, 20.0], [10.0, 30.0, 20.0], 2.0, prompts=1, tokens=9, differing=0)
    assert (row.tok_s, row.tok_s_low, row.tok_s_high) == (20.0, 10.0, 40.0)
    assert (row.speedup, row.break_even) == (1.0, 2.0)  # 20 against 20; in the rounds x4, x1/3, x1
    assert (row.speedup_low, row.speedup_high) == (pytest.approx(1 / 3), 4.0)


def test_unequal_rounds_give_their_median():
    """One prompt, three rounds: 1, 4 and 2 times as slow, after the warm-up."""
    slow = {(3, nth): factor for nth, factor in enumerate((1, 1, 4, 2))}
    baseline, three = run(FakeEngine(slowness=slow), lengths=(41,), num_steps=(3,)).rows
    whole = 20 * 0.025  # 40 tokens in 20 cycles
    assert three.tok_s == pytest.approx(41 / (2 * whole)) and three.request_tok_s == pytest.approx(41 / (2 * whole))
    assert (three.tok_s_low, three.tok_s_high) == pytest.approx((41 / (4 * whole), 41 / whole))
    assert three.speedup == pytest.approx(0.4 / (2 * whole)) and baseline.tok_s == pytest.approx(41 / 0.4)


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
