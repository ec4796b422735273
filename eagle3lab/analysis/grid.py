"""A benchmark over (num_steps, topk, num_draft_tokens, concurrency, temperature, CUDA graphs) that can be resumed.

Each finished cell is a line of a file: a run that was cut off goes on with the next one. A setting that fails is a
line with its reason, and the next one is measured.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from eagle3lab.analysis.accept import PositionAcceptance
from eagle3lab.analysis.bench_row import BenchRow
from eagle3lab.analysis.breakeven import conditions
from eagle3lab.analysis.cell import Cell, Measured, measure
from eagle3lab.analysis.journal import begun, reason
from eagle3lab.analysis.served import counted_acceptance
from eagle3lab.draft.chain import chain_draft_tokens
from eagle3lab.workbench.files import append_jsonl


@dataclass(frozen=True)
class GridRow:
    """A cell's measurement, or why there is none (`reason`; then `row` and `baseline` are None).

    row, baseline   the setting and plain decoding in the same condition, from the same interleaved rounds.
    histogram       verifications by drafts accepted, over all rounds; None: the engine does not tell.
    """

    cell: Cell
    row: BenchRow | None
    baseline: BenchRow | None
    histogram: tuple[int, ...] | None
    reason: str

    @property
    def positions(self) -> PositionAcceptance | None:
        """Acceptance by draft position (depth of a tree)."""
        return counted_acceptance(self.histogram) if self.histogram else None


def grid_cells(
    num_steps: Sequence[int],
    topk: Sequence[int],
    num_draft_tokens: Sequence[int],
    concurrency: Sequence[int],
    temperature: Sequence[float] = (0.0,),
    cuda_graphs: bool | None = None,
) -> list[Cell]:
    """All combinations, each once. A chain (topk 1) always has num_steps + 1 draft tokens; trees take those given.

    cuda_graphs: of the engine that will measure them (None: it has none). ValueError for values below 1, temperatures
    below 0, and for trees without num_draft_tokens.
    """
    if min([*num_steps, *topk, *num_draft_tokens, *concurrency], default=0) < 1 or not (num_steps and concurrency):
        raise ValueError("num_steps, topk, num_draft_tokens and concurrency hold numbers of at least 1")
    if min(temperature, default=-1) < 0:
        raise ValueError(f"temperature={list(temperature)} must hold numbers of 0 or more")
    if any(k > 1 for k in topk) and not num_draft_tokens:
        raise ValueError(f"topk={list(topk)} has trees: give their num_draft_tokens")
    cells = []
    for warm, streams, steps, k in product(temperature, concurrency, num_steps, topk):
        for tokens in [chain_draft_tokens(steps)] if k == 1 else num_draft_tokens:
            cells.append(Cell(streams, steps, k, tokens, float(warm), cuda_graphs))
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
    requests at least as many as the largest concurrency; each cell sets their temperature, and a seed of its own where
             that is not 0.
    setting  as in `journal.begun`, which raises ValueError for the file of another grid.
    """
    _check(requests, cells, rounds)
    done = {row.cell: row for row in map(_read, begun(path, setting, requests, rounds=rounds))}
    for number, cell in enumerate(cells, 1):
        if cell not in done:
            try:
                found: Measured = measure(engine, draft, requests, cell, rounds, clock)
                done[cell] = GridRow(cell, found.row, found.baseline, found.histogram, "")
            except Exception as error:  # whatever it is, it is this setting's: the others are still worth measuring
                done[cell] = GridRow(cell, None, None, None, reason(error))
            append_jsonl(path, asdict(done[cell]))
        on_progress(number, len(cells))
    return [done[cell] for cell in cells]


def bench_rows(rows: Sequence[GridRow]) -> list[BenchRow]:
    """What was measured, for tables and `fit_cycle_cost`: for each condition one baseline (the median one of its
    cells) and its settings. Their speed-up and break-even stay those against their own baseline."""
    found, measured = [], [row for row in rows if row.row is not None]
    for condition in conditions([row.row for row in measured]):
        here = [row for row in measured if row.row.condition == condition]
        baselines = sorted((row.baseline for row in here), key=lambda row: row.tok_s)
        found += [baselines[len(baselines) // 2], *(row.row for row in here)]
    return found


def _check(requests, cells, rounds) -> None:
    most = max((cell.concurrency for cell in cells), default=1)
    if not cells or rounds < 1 or len(requests) < most:
        raise ValueError(
            f"{len(cells)} cells, {rounds} rounds, {len(requests)} requests: at least one cell, one round, and "
            f"{most} requests for concurrency {most} are needed"
        )


def _read(line: dict) -> GridRow:
    row, baseline = (None if line[name] is None else BenchRow.read(line[name]) for name in ("row", "baseline"))
    histogram = None if line["histogram"] is None else tuple(line["histogram"])
    return GridRow(Cell(**line["cell"]), row, baseline, histogram, line["reason"])
