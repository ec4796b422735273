"""One cell of the grid: a setting and plain decoding in the same condition, measured in turn, in the same minutes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from eagle3lab.analysis.accept import accept_length, first_difference
from eagle3lab.analysis.bench_row import BASELINE, BenchRow, Condition, make_row, percentiles, setting_name
from eagle3lab.analysis.journal import reason
from eagle3lab.analysis.served import ServedCounts, add_histograms, served_counts
from eagle3lab.engines.base import ContextError
from eagle3lab.engines.servers.errors import ServerError, ServerGone


@dataclass(frozen=True)
class Cell:
    """One setting in one condition: concurrency (requests on their way at the same time), temperature, CUDA graphs."""

    concurrency: int
    num_steps: int
    topk: int
    num_draft_tokens: int
    temperature: float = 0.0
    cuda_graphs: bool | None = None

    @property
    def condition(self) -> Condition:
        return Condition(self.concurrency, self.temperature, self.cuda_graphs)

    def __str__(self) -> str:
        return f"{setting_name(self.num_steps, self.topk, self.num_draft_tokens)} at {self.condition}"


@dataclass(frozen=True)
class Measured:
    """The rows of a cell and its baseline; verifications by drafts accepted (None: the engine does not tell)."""

    row: BenchRow
    baseline: BenchRow
    histogram: tuple[int, ...] | None


@dataclass
class _Side:
    """What the rounds of one side gave: speeds a round, all answers, errors."""

    speeds: list[float] = field(default_factory=list)
    answers: list = field(default_factory=list)
    errors: int = 0


def measure(engine, draft, requests: Sequence, cell: Cell, rounds: int, clock: Callable[[], float]) -> Measured:
    """Warm-up with as many requests as run at a time, then `rounds` rounds of both sides, the order changing.

    A request that the engine refuses or answers with nonsense is counted and left out; the others are measured.
    Whatever else goes wrong, a server that ended among it, is raised.
    """
    sides = {False: _Side(), True: _Side()}  # plain, speculating
    for speculating in sides:
        ask_all(engine, draft, requests[: cell.concurrency], cell, 0, speculating)
    for round in range(rounds):
        for speculating in (False, True) if round % 2 == 0 else (True, False):
            start = clock()
            answers, refused = ask_all(engine, draft, requests, cell, round, speculating)
            seconds = clock() - start
            side = sides[speculating]
            side.speeds.append(sum(len(answer.output_ids) for answer in answers) / seconds)
            side.answers += answers
            side.errors += len(refused)
    plain, speculated = sides[False], sides[True]
    counts = _counts(speculated, cell.num_steps)
    tau = accept_length(sum(c.committed for c in counts), sum(c.verifications for c in counts))
    known = {}
    for answer in plain.answers:
        known.setdefault(answer.id, list(answer.output_ids))
    row = _row(cell, cell.num_steps, speculated, plain.speeds, tau, known, len(requests))
    baseline = _row(cell, BASELINE, plain, plain.speeds, None, known, len(requests))
    histogram = add_histograms([c.histogram for c in counts])
    return Measured(row, baseline, None if histogram is None else tuple(histogram))


def ask_all(engine, draft, requests, cell: Cell, round: int, speculating: bool) -> tuple[list, list[str]]:
    """The answers to all requests, and why those that got none were refused. Plain answers without `speculating`.

    What is not one request's own fault is raised, as is an answer that was not asked for, or none at all (ValueError).
    """
    if cell.temperature > 0:  # other random numbers in every round
        first = round * len(requests)
        requests = [replace(r, temperature=cell.temperature, seed=first + i) for i, r in enumerate(requests)]
    else:
        requests = [replace(r, temperature=0.0) for r in requests]
    answers, refused, waiting = [], [], {request.id: request for request in requests}
    while waiting:
        try:
            for answer in _ask(engine, draft, list(waiting.values()), cell, speculating):
                if answer.id not in waiting:
                    raise ValueError(f"the engine answered {answer.id!r}, which it was not asked, or a second time")
                answers.append(answer)
                del waiting[answer.id]
        except (ServerError, ContextError) as error:
            if isinstance(error, ServerGone) or error.row_id not in waiting:
                raise
            del waiting[error.row_id]
            refused.append(reason(error))
            continue
        if waiting:
            raise ValueError(f"the engine gave no answer to {len(waiting)} of {len(requests)} requests")
    return answers, refused


def _ask(engine, draft, requests, cell: Cell, speculating: bool):
    if not speculating:
        return engine.generate(requests, batch_size=cell.concurrency, streamed=True)
    if cell.topk == 1 and cell.concurrency == 1:  # what every engine can do
        return engine.speculate(draft, requests, num_steps=cell.num_steps)
    shape = {"topk": cell.topk, "num_draft_tokens": cell.num_draft_tokens, "batch_size": cell.concurrency}
    return engine.speculate(draft, requests, num_steps=cell.num_steps, **shape)


def _counts(side: _Side, num_steps: int) -> list[ServedCounts]:
    """Counts of the answers; one whose counts are not its answer's counts as an error."""
    found = []
    for answer in side.answers:
        try:
            found.append(served_counts(answer, num_steps))
        except ValueError as error:
            side.errors += 1
            last = error
    if not found:
        raise ValueError("no answer has usable counts") if not side.answers else last
    return found


def _row(cell: Cell, num_steps: int, side: _Side, base_speeds, tau, known: dict, prompts: int) -> BenchRow:
    differing = None
    if cell.temperature == 0:
        pairs = [(list(a.output_ids), known[a.id]) for a in side.answers if a.id in known]
        differing = sum(first_difference(mine, plain) is not None for mine, plain in pairs)
    return make_row(
        num_steps,
        side.speeds,
        base_speeds,
        tau,
        topk=cell.topk,
        num_draft_tokens=cell.num_draft_tokens,
        condition=cell.condition,
        prompts=prompts,
        tokens=sum(len(answer.output_ids) for answer in side.answers),
        differing=differing,
        errors=side.errors,
        request_s=percentiles([answer.seconds for answer in side.answers]),
        first_s=percentiles([answer.first_seconds for answer in side.answers]),
        request_tok_s=median(len(answer.output_ids) / answer.seconds for answer in side.answers),
    )
