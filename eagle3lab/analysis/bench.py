"""Speed of speculation against plain decoding, from one interleaved run.

Every prompt is decoded by every setting before the next prompt begins, in a rotating order, so that a machine that
warms up, throttles or is shared slows all settings alike. Speeds are end to end (prefill included), one stream.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from eagle3lab.analysis.accept import PromptCycles, accept_length, first_difference
from eagle3lab.analysis.bench_row import BASELINE, BenchRow, Condition, make_row, percentiles
from eagle3lab.analysis.served import ServedCounts, add_histograms, served_counts


@dataclass(frozen=True)
class BenchRun:
    """One prompt decoded once. `num_steps` 0 = plain decoding, which verifies nothing (`served` None).
    first_seconds: up to the first token, by the engine's own clock; None: not observed."""

    num_steps: int
    round: int
    id: str
    tokens: int
    seconds: float
    served: ServedCounts | None
    first_seconds: float | None = None


@dataclass(frozen=True)
class Difference:
    """An answer that is not the baseline's: first differing output token (0-based)."""

    num_steps: int
    round: int
    id: str
    token: int


@dataclass(frozen=True)
class BenchResult:
    """Rows (baseline first), the single runs they come from, and every answer that is not the baseline's.
    answers: id -> output tokens of the baseline's first round."""

    rows: list[BenchRow]
    runs: list[BenchRun]
    differences: list[Difference]
    answers: dict[str, list[int]] = field(default_factory=dict)

    def cycles(self, num_steps: int) -> list[PromptCycles]:
        """The first round's verifications of a setting, one entry per prompt.

        ValueError where the engine did not tell what each verification of an answer accepted.
        """
        runs = [run for run in self.runs if run.num_steps == num_steps and run.round == 0]
        for run in runs:
            if run.served is None or run.served.accepted is None:
                raise ValueError(f"row {run.id!r}: the engine did not tell what each verification accepted")
        return [PromptCycles(run.id, run.served.accepted) for run in runs]

    def histogram(self, num_steps: int) -> list[int] | None:
        """Verifications of a chain by drafts accepted, over all rounds; None where the engine does not tell."""
        return add_histograms([run.served.histogram for run in self.runs if run.num_steps == num_steps])


def run_bench(
    engine,
    draft,
    requests: Sequence,
    num_steps: Sequence[int],
    rounds: int = 3,
    cuda_graphs: bool | None = None,
    clock: Callable[[], float] = time.perf_counter,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> BenchResult:
    """Decode every request plainly and with every chain length, `rounds` times, interleaved.

    engine    `generate(requests, batch_size, streamed)` and `speculate(draft, requests, num_steps)`, both yielding
              completions; one whose answers tell counts only (`served_counts`) is measured like the others. Both are
              streamed, so that the client costs both the same.
    draft     what the engine's `speculate` takes: a loaded drafter, or a drafter's folder.
    requests  at least one; temperature 0, so that every answer can be compared with the baseline's.
    num_steps chain lengths, each at least 1. One untimed request per setting warms up first.
    cuda_graphs   of the engine, for the record.
    clock         seconds. on_progress(done, total) is called after every decoded request.
    """
    if not requests:
        raise ValueError("a benchmark needs at least one request")
    sampled = [r.id for r in requests if r.temperature != 0]
    if sampled:
        raise ValueError(f"request {sampled[0]} is sampled; comparing with the baseline needs temperature 0")
    if len(set(num_steps)) != len(num_steps) or min(num_steps, default=0) < 1 or rounds < 1:
        raise ValueError(f"num_steps={list(num_steps)} must be distinct and >= 1, rounds={rounds} >= 1")
    settings = [BASELINE, *num_steps]
    for setting in settings:
        _decode(engine, draft, requests[0], setting)
    runs, outputs = [], {}
    total = rounds * len(requests) * len(settings)
    for round in range(rounds):
        for position, request in enumerate(requests):
            for setting in _rotated(settings, round + position):
                start = clock()
                completion = _decode(engine, draft, request, setting)
                seconds = clock() - start
                outputs[setting, round, request.id] = list(completion.output_ids)
                runs.append(_run(setting, round, completion, seconds))
                on_progress(len(runs), total)
    differences = _differences(outputs)
    rows = [_row(setting, runs, differences, cuda_graphs) for setting in settings]
    answers = {request.id: outputs[BASELINE, 0, request.id] for request in requests}
    return BenchResult(rows, runs, differences, answers)


def _rotated(settings, by):
    by %= len(settings)
    return settings[by:] + settings[:by]


def _decode(engine, draft, request, setting):
    if setting == BASELINE:
        completions = list(engine.generate([request], batch_size=1, streamed=True))
    else:
        completions = list(engine.speculate(draft, [request], num_steps=setting))
    if len(completions) != 1:
        raise ValueError(f"the engine gave {len(completions)} completions for request {request.id}")
    return completions[0]


def _run(setting, round, completion, seconds) -> BenchRun:
    tokens = len(completion.output_ids)
    served = None if setting == BASELINE else served_counts(completion, setting)
    return BenchRun(setting, round, completion.id, tokens, seconds, served, completion.first_seconds)


def _differences(outputs) -> list[Difference]:
    """Answers that are not the first round's plain answer (later plain answers included: the control)."""
    found = []
    for (setting, round, id), ids in outputs.items():
        token = first_difference(ids, outputs[BASELINE, 0, id])
        if token is not None:
            found.append(Difference(setting, round, id, token))
    return found


def _row(setting, runs, differences, cuda_graphs) -> BenchRow:
    speeds, base_speeds = _round_speeds(runs, setting), _round_speeds(runs, BASELINE)
    mine = [run for run in runs if run.num_steps == setting]
    tau = None
    if setting != BASELINE:
        tau = accept_length(sum(r.served.committed for r in mine), sum(r.served.verifications for r in mine))
    return make_row(
        setting,
        speeds,
        base_speeds,
        tau,
        prompts=len({run.id for run in mine}),
        tokens=sum(run.tokens for run in mine),
        differing=sum(d.num_steps == setting for d in differences),
        condition=Condition(cuda_graphs=cuda_graphs),
        request_s=percentiles([run.seconds for run in mine]),
        first_s=percentiles([run.first_seconds for run in mine]),
        request_tok_s=median(run.tokens / run.seconds for run in mine),
    )


def _round_speeds(runs, setting) -> list[float]:
    """Tokens per second of each round, all prompts together."""
    totals = {}
    for run in runs:
        if run.num_steps == setting:
            tokens, seconds = totals.get(run.round, (0, 0.0))
            totals[run.round] = (tokens + run.tokens, seconds + run.seconds)
    return [tokens / seconds for tokens, seconds in totals.values()]
