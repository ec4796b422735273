"""A benchmark over (num_steps, topk, num_draft_tokens, concurrency), one cell after the other, that can be resumed.

Each cell is measured against the baseline without speculation at the same concurrency, in turn, in the same minutes.
Each finished cell is a line of a file: a run that was cut off goes on with the next one. A setting that fails is a
line with its reason, and the next one is measured.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import numpy as np

from eagle3lab.analysis.accept import accept_length, first_difference
from eagle3lab.analysis.bench import BASELINE, BenchRow, make_row
from eagle3lab.analysis.served import served_counts
from eagle3lab.draft.chain import chain_draft_tokens
from eagle3lab.workbench.files import append_jsonl, read_jsonl

LONGEST_REASON = 300  # characters


@dataclass(frozen=True, order=True)
class Cell:
    """One setting at one concurrency (requests on their way at the same time)."""

    concurrency: int
    num_steps: int
    topk: int
    num_draft_tokens: int


@dataclass(frozen=True)
class GridRow:
    """A cell's measurement, or why there is none (`reason`; then the rest is None).

    row, baseline   the setting and plain decoding at the same concurrency, from the same interleaved rounds.
    latency_s       median and 95th percentile of the seconds a request took in this setting.
    """

    cell: Cell
    row: BenchRow | None
    baseline: BenchRow | None
    latency_s: tuple[float, float] | None
    reason: str


def grid_cells(
    num_steps: Sequence[int], topk: Sequence[int], num_draft_tokens: Sequence[int], concurrency: Sequence[int]
) -> list[Cell]:
    """All combinations, each once. A chain (topk 1) always has num_steps + 1 draft tokens; trees take those given.

    ValueError for values below 1, and for trees without num_draft_tokens.
    """
    if min([*num_steps, *topk, *num_draft_tokens, *concurrency], default=0) < 1 or not (num_steps and concurrency):
        raise ValueError("num_steps, topk, num_draft_tokens and concurrency hold numbers of at least 1")
    if any(k > 1 for k in topk) and not num_draft_tokens:
        raise ValueError(f"topk={list(topk)} has trees: give their num_draft_tokens")
    cells = []
    for streams, steps, k in product(concurrency, num_steps, topk):
        for tokens in [chain_draft_tokens(steps)] if k == 1 else num_draft_tokens:
            cells.append(Cell(streams, steps, k, tokens))
    return list(dict.fromkeys(cells))


def run_grid(
    engine,
    draft,
    requests: Sequence,
    cells: Sequence[Cell],
    path: str | Path,
    setting: str,
    rounds: int = 3,
    clock: Callable[[], float] = time.perf_counter,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[GridRow]:
    """Measure the cells that `path` (JSON lines) does not hold yet; gives back all of them, in the order of `cells`.

    engine   as `run_bench`; trees and several streams need its `speculate` to take topk, num_draft_tokens, batch_size.
    requests temperature 0; at least as many as the largest concurrency.
    setting  words for everything else a number depends on (model, drafter, machine, dtype). A file that was begun with
             other words, requests or rounds is refused (ValueError): it is never mixed.
    """
    _check(requests, cells, rounds)
    path, setup = Path(path), {"setting": setting, "requests": _digest(requests), "rounds": rounds}
    done = _measured(path, setup)
    for number, cell in enumerate(cells, 1):
        if cell not in done:
            try:
                done[cell] = _measure(engine, draft, requests, cell, rounds, clock)
            except Exception as error:  # whatever it is, it is this setting's: the others are still worth measuring
                reason = f"{type(error).__name__}: {' '.join(str(error).split())}"[:LONGEST_REASON]
                done[cell] = GridRow(cell, None, None, None, reason)
            append_jsonl(path, asdict(done[cell]))
        on_progress(number, len(cells))
    return [done[cell] for cell in cells]


def bench_rows(rows: Sequence[GridRow]) -> list[BenchRow]:
    """What was measured, for tables and `fit_cycle_cost`: for each concurrency one baseline (the median one of its
    cells) and its settings. Their speed-up and break-even stay those against their own baseline."""
    found = []
    for streams in sorted({row.cell.concurrency for row in rows}):
        here = [row for row in rows if row.cell.concurrency == streams and row.row is not None]
        baselines = sorted((row.baseline for row in here), key=lambda row: row.tok_s)
        if here:
            found += [baselines[len(baselines) // 2], *(row.row for row in here)]
    return found


def _check(requests, cells, rounds) -> None:
    sampled = [r.id for r in requests if r.temperature != 0]
    if sampled:
        raise ValueError(f"request {sampled[0]} is sampled; comparing with the baseline needs temperature 0")
    most = max((cell.concurrency for cell in cells), default=1)
    if not cells or rounds < 1 or len(requests) < most:
        raise ValueError(
            f"{len(cells)} cells, {rounds} rounds, {len(requests)} requests: at least one cell, one round, and "
            f"{most} requests for concurrency {most} are needed"
        )


def _digest(requests) -> str:
    rows = [[r.id, list(r.input_ids), r.max_tokens] for r in requests]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _measured(path: Path, setup: dict) -> dict[Cell, GridRow]:
    """The cells of a file that was begun with the same setup; begins it when there is none."""
    first, *lines = read_jsonl(path, repair=True) or [None]
    if first is None:
        append_jsonl(path, setup)
        return {}
    if first != setup:
        other = [name for name in setup if first.get(name) != setup[name]]
        raise ValueError(f"{path} was begun with other {', '.join(other)}: take another file, or remove it")
    return {row.cell: row for row in map(_read, lines)}


def _read(line: dict) -> GridRow:
    row, baseline = (None if line[name] is None else BenchRow(**line[name]) for name in ("row", "baseline"))
    latency = None if line["latency_s"] is None else tuple(line["latency_s"])
    return GridRow(Cell(**line["cell"]), row, baseline, latency, line["reason"])


def _measure(engine, draft, requests, cell: Cell, rounds: int, clock) -> GridRow:
    settings = (False, True)  # plain, speculating
    for speculating in settings:
        _decode(engine, draft, requests[:1], cell, speculating)
    speeds, answers, latencies = {False: [], True: []}, {False: [], True: []}, []
    for round in range(rounds):
        for speculating in settings if round % 2 == 0 else settings[::-1]:
            start = clock()
            given = _decode(engine, draft, requests, cell, speculating)
            seconds = clock() - start
            speeds[speculating].append(sum(len(answer.output_ids) for answer in given) / seconds)
            answers[speculating] += given
            latencies += [answer.seconds for answer in given if speculating]
    known = {answer.id: list(answer.output_ids) for answer in answers[False][: len(requests)]}
    counts = [served_counts(answer, cell.num_steps) for answer in answers[True]]
    tau = accept_length(sum(c.committed for c in counts), sum(c.verifications for c in counts))
    rows = []
    for speculating in settings:
        given = answers[speculating]
        rows.append(
            make_row(
                cell.num_steps if speculating else BASELINE,
                speeds[speculating],
                speeds[False],
                tau if speculating else None,
                prompts=len(requests),
                tokens=sum(len(answer.output_ids) for answer in given),
                differing=sum(first_difference(list(a.output_ids), known[a.id]) is not None for a in given),
                topk=cell.topk,
                num_draft_tokens=cell.num_draft_tokens,
                concurrency=cell.concurrency,
            )
        )
    middle, high = np.quantile(latencies, [0.5, 0.95])
    return GridRow(cell, rows[1], rows[0], (float(middle), float(high)), "")


def _decode(engine, draft, requests, cell: Cell, speculating: bool) -> list:
    if not speculating:
        given = list(engine.generate(requests, batch_size=cell.concurrency))
    elif cell.topk == 1 and cell.concurrency == 1:  # what every engine can do
        given = list(engine.speculate(draft, requests, num_steps=cell.num_steps))
    else:
        shape = {"topk": cell.topk, "num_draft_tokens": cell.num_draft_tokens, "batch_size": cell.concurrency}
        given = list(engine.speculate(draft, requests, num_steps=cell.num_steps, **shape))
    if sorted(answer.id for answer in given) != sorted(request.id for request in requests):
        raise ValueError(f"the engine gave {len(given)} answers to {len(requests)} requests, or to others")
    return given
