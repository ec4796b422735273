"""Speed of speculation against plain decoding, from one interleaved run.

Every prompt is decoded by every setting before the next prompt begins, in a rotating order, so that a machine that
warms up, throttles or is shared slows all settings alike. Speeds are end to end (prefill included), one stream.

As in the grid, a request without a usable answer is counted, a setting that cannot run is a row with its reason, and a
benchmark that was cut off goes on from its file, a line of which is one prompt in one round, decoded by every setting.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from eagle3lab.analysis.accept import PromptCycles, accept_length, first_difference
from eagle3lab.analysis.bench_row import BASELINE, BenchRow, make_row, percentiles
from eagle3lab.analysis.cell import Cell, ask_all
from eagle3lab.analysis.grid import GridRow
from eagle3lab.analysis.journal import begun, reason
from eagle3lab.analysis.served import ServedCounts, add_histograms, served_counts
from eagle3lab.draft.chain import chain_draft_tokens
from eagle3lab.workbench.files import append_jsonl


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
    answers: id -> output tokens of the baseline's first answer; None: it never got one. settings: what became of every
    chain length, those that could not be measured among them."""

    rows: list[BenchRow]
    runs: list[BenchRun]
    differences: list[Difference]
    answers: dict[str, list[int] | None] = field(default_factory=dict)
    settings: list[GridRow] = field(default_factory=list)

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
    path: str | Path | None = None,
    setting: str = "",
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
    path, setting   as in `run_grid`; None: nothing is kept.
    clock         seconds. on_progress(done, total) counts the requests of all settings.

    Raises whatever plain decoding raises, and ValueError where no setting could be measured.
    """
    _check(requests, num_steps, rounds)
    cells = [Cell(1, n, 1, chain_draft_tokens(n), 0.0, cuda_graphs) for n in (BASELINE, *num_steps)]
    more = {"rounds": rounds, "num_steps": list(num_steps), "cuda_graphs": cuda_graphs}
    lines = [] if path is None else begun(path, setting, requests, **more)
    bench = _Bench(engine, draft, path, clock)
    bench.failed = {line["num_steps"]: line["reason"] for line in lines if "reason" in line}
    groups = {(group.round, group.id): group for group in map(_read, lines) if group is not None}
    todo = [(n, position, r) for n in range(rounds) for position, r in enumerate(requests) if (n, r.id) not in groups]
    for cell in cells if todo else []:
        bench.ask(cell, requests[0])
    for round, position, request in todo:
        order = _rotated(cells, round + position)
        before = (round * len(requests) + position) * len(cells)
        group = _Group(round, request.id)
        for place, cell in enumerate(order, 1):
            bench.decode(cell, request, group)
            on_progress(before + place, rounds * len(requests) * len(cells))
        bench.keep(asdict(group))
        groups[round, request.id] = group
    result = _result(requests, cells, list(groups.values()), bench.failed)
    if len(result.rows) == 1:
        again = "" if path is None else f" (to measure them again, remove {path})"
        told = "; ".join(f"{one.cell}: {one.reason}" for one in result.settings)
        raise ValueError(f"no setting could be measured{again}: {told}")
    return result


def _check(requests, num_steps, rounds) -> None:
    if not requests:
        raise ValueError("a benchmark needs at least one request")
    sampled = [r.id for r in requests if r.temperature != 0]
    if sampled:
        raise ValueError(f"request {sampled[0]} is sampled; comparing with the baseline needs temperature 0")
    if len(set(num_steps)) != len(num_steps) or min(num_steps, default=0) < 1 or rounds < 1:
        raise ValueError(f"num_steps={list(num_steps)} must be distinct and >= 1, rounds={rounds} >= 1")


@dataclass
class _Group:
    """One prompt in one round, decoded by every setting. outputs: the tokens of each of `runs`. errors: (num_steps,
    reason) of the settings without a usable answer."""

    round: int
    id: str
    runs: list[BenchRun] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)
    errors: list[tuple[int, str]] = field(default_factory=list)


def _read(line: dict[str, Any]) -> _Group | None:
    """A line of the journal; None: it tells of a setting that failed."""
    if "reason" in line:
        return None
    runs = [BenchRun(**{**run, "served": run["served"] and ServedCounts.read(run["served"])}) for run in line["runs"]]
    return _Group(line["round"], line["id"], runs, line["outputs"], [tuple(error) for error in line["errors"]])


class _Bench:
    """The settings that still run: the first failure of one is its last."""

    def __init__(self, engine, draft, path, clock):
        self.engine, self.draft, self.path, self.clock = engine, draft, path, clock
        self.failed: dict[int, str] = {}

    def keep(self, line: dict[str, Any]) -> None:
        if self.path is not None:
            append_jsonl(self.path, line)

    def ask(self, cell: Cell, request) -> tuple[list, list[str]]:
        """As `ask_all`, of one request; nothing for a setting that failed, now or before."""
        if cell.num_steps in self.failed:
            return [], []
        try:
            return ask_all(self.engine, self.draft, [request], cell, 0, cell.num_steps != BASELINE)
        except Exception as error:  # whatever it is, it is this setting's: the others are still worth measuring
            if cell.num_steps == BASELINE:  # nothing can be compared without it
                raise
            self.failed[cell.num_steps] = reason(error)
            self.keep({"num_steps": cell.num_steps, "reason": self.failed[cell.num_steps]})
            return [], []

    def decode(self, cell: Cell, request, group: _Group) -> None:
        """One timed answer, or its error, put to the group."""
        start = self.clock()
        answers, refused = self.ask(cell, request)
        seconds = self.clock() - start
        for answer in answers:
            try:
                group.runs.append(_run(cell.num_steps, group.round, answer, seconds))
                group.outputs.append(list(answer.output_ids))
            except ValueError as error:  # counts that are not its answer's
                refused = [reason(error)]
        group.errors += [(cell.num_steps, why) for why in refused]


def _rotated(cells, by):
    by %= len(cells)
    return cells[by:] + cells[:by]


def _run(num_steps, round, completion, seconds) -> BenchRun:
    served = None if num_steps == BASELINE else served_counts(completion, num_steps)
    return BenchRun(
        num_steps, round, completion.id, len(completion.output_ids), seconds, served, completion.first_seconds
    )


def _result(requests, cells, groups: list[_Group], failed: dict[int, str]) -> BenchResult:
    plain, *chains = cells
    answered = [(run, ids) for group in groups for run, ids in zip(group.runs, group.outputs, strict=True)]
    answered = [(run, ids) for run, ids in answered if run.num_steps not in failed]
    runs, known = [run for run, _ in answered], {}
    for run, ids in answered:
        if run.num_steps == BASELINE:
            known.setdefault(run.id, ids)
    differences = _differences(answered, known)
    result = BenchResult([], runs, differences, {request.id: known.get(request.id) for request in requests})
    errors = [error for group in groups for error in group.errors]
    result.rows.append(_row(plain, runs, differences, errors))
    for cell in chains:
        row, why = None, failed.get(cell.num_steps, "")
        try:
            row = None if why else _row(cell, runs, differences, errors)
        except ValueError as error:
            why = reason(error)
        counts = result.histogram(cell.num_steps) if row else None
        told = None if counts is None else tuple(counts)
        result.settings.append(GridRow(cell, row, row and result.rows[0], told, why))
        result.rows.extend([row] if row else [])
    return result


def _differences(answered, known) -> list[Difference]:
    """Answers that are not the first plain answer (later plain answers included: the control)."""
    found = []
    for run, ids in answered:
        token = first_difference(ids, known[run.id]) if run.id in known else None
        if token is not None:
            found.append(Difference(run.num_steps, run.round, run.id, token))
    return found


def _row(cell: Cell, runs, differences, errors) -> BenchRow:
    """The row of a setting, of the requests that both it and the baseline answered in the same round."""
    why = [words for num_steps, words in errors if num_steps == cell.num_steps]
    base = {(run.round, run.id): run for run in runs if run.num_steps == BASELINE}
    mine = [run for run in runs if run.num_steps == cell.num_steps and (run.round, run.id) in base]
    if not mine:
        raise ValueError(f"no answer to compare with the baseline's; {why[-1] if why else 'it has none'}")
    tau = None
    if cell.num_steps != BASELINE:
        tau = accept_length(sum(r.served.committed for r in mine), sum(r.served.verifications for r in mine))
    return make_row(
        cell.num_steps,
        _round_speeds(mine),
        _round_speeds([base[run.round, run.id] for run in mine]),
        tau,
        prompts=len({run.id for run in mine}),
        tokens=sum(run.tokens for run in mine),
        differing=sum(d.num_steps == cell.num_steps for d in differences),
        errors=len(why),
        condition=cell.condition,
        request_s=percentiles([run.seconds for run in mine]),
        first_s=percentiles([run.first_seconds for run in mine]),
        request_tok_s=median(run.tokens / run.seconds for run in mine),
    )


def _round_speeds(runs) -> list[float]:
    """Tokens per second of each round, all prompts together."""
    totals: dict[int, tuple[int, float]] = {}
    for run in runs:
        tokens, seconds = totals.get(run.round, (0, 0.0))
        totals[run.round] = (tokens + run.tokens, seconds + run.seconds)
    return [tokens / seconds for tokens, seconds in totals.values()]
