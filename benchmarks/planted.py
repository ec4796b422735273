"""Faults planted in a trained drafter behind a real SGLang server: is the first of the ranked causes the fault?

What a server accepted is compared with the simulation of the good drafter, and the causes are ranked from that and from
what the server says of itself. Needs a finished training run and the inference run whose held-out answers are served;
the servers run in float32 on the CPU, one after the other: a quarter of an hour for SmolLM2 on two cores.
Usage: python -m benchmarks.planted runs/<training run> runs/<inference run> [--only "d2t absolute" ...]
"""

import argparse
import json
import shutil
import urllib.request
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.plants import Fault, faults
from eagle3lab.analysis.heldout import AnswerRow, capture_answers, heldout_answers
from eagle3lab.analysis.parity import Parity
from eagle3lab.analysis.serve_side import AT_ONCE, ServeSide, ask_server, layers_beside
from eagle3lab.data.targets import resolve_target
from eagle3lab.draft.checkpoint import load_draft, read_draft_config, read_training
from eagle3lab.engines.base import Request
from eagle3lab.engines.embedded import EmbeddedEngine
from eagle3lab.engines.sglang.serve_cpu import cpu_spec
from eagle3lab.engines.sglang.server import SGLangServer
from eagle3lab.engines.sglang.spec import ServerSpec

BATCH_TOKENS = 1024
GOOD, AGAIN = "", "again"  # the good drafter, before and after the swaps


@dataclass(frozen=True)
class Subject:
    """A drafter folder of this project, the target's greedy answers (as `capture_answers` takes them), and the target
    with the states that this drafter was trained on. early: it was trained, or is simulated, on the states of the token
    after each."""

    engine: EmbeddedEngine
    draft: Path
    answers: list[dict]
    num_steps: int = 3
    early: bool = False

    @property
    def requests(self) -> list[Request]:
        return [Request(one["id"], one["prompt_ids"], len(one["output_ids"])) for one in self.answers]

    @cached_property
    def rows(self) -> list[AnswerRow]:
        rows = capture_answers(self.engine, self.answers, BATCH_TOKENS)
        return [replace(row, aux_TAH=row.aux_TAH.roll(-1, 0)) if self.early else row for row in rows]

    @cached_property
    def beside(self) -> Mapping[str, list[AnswerRow]]:
        return layers_beside(self.engine, self.answers, BATCH_TOKENS)


def serve(
    spec: ServerSpec, good: Subject, planted: Mapping[str, Fault], work: Path, others: Mapping[str, Subject]
) -> Iterator[tuple[str, ServeSide]]:
    """(fault, the answers with what the server says of itself), GOOD and AGAIN too.

    spec: of the target alone, whose head must be tied: then no name of the drafter's tensors is one of the target's,
    which reads them too. others: drafters that were trained otherwise than the good one's config says; their tensors
    are what is swapped in for that fault.
    """
    folders = {}
    for number, (name, fault) in enumerate(planted.items()):
        folder = shutil.copytree(others[name].draft if name in others else good.draft, work / f"fault{number}")
        fault.plant(folder)
        folders[name] = folder
    with started(replace(spec, draft=str(good.draft), num_steps=good.num_steps), work / "good.log") as url:
        yield GOOD, ask_server(url, good.requests, good.num_steps, good.draft)
        for name in (name for name, fault in planted.items() if fault.way == "sent"):
            other = [replace(one, input_ids=[one.input_ids[0], *one.input_ids]) for one in good.requests]
            yield name, ask_server(url, other, good.num_steps, good.draft)
        for name in (name for name, fault in planted.items() if fault.way == "swapped"):
            read_weights(url, folders[name])
            yield name, ask_server(url, good.requests, good.num_steps, good.draft)
        read_weights(url, good.draft)
        yield AGAIN, ask_server(url, good.requests, good.num_steps, good.draft)
    for name in (name for name, fault in planted.items() if fault.way == "start"):
        wrong = replace(spec, draft=str(folders[name]), num_steps=good.num_steps, algorithm=planted[name].algorithm)
        with started(wrong, folders[name].with_suffix(".log")) as url:
            yield name, ask_server(url, good.requests, good.num_steps, folders[name])


@contextmanager
def started(spec: ServerSpec, log: Path) -> Iterator[str]:
    """The URL of a server that is launched in spite of its faults, and killed at the end: it holds nothing to keep."""
    server = SGLangServer(spec, log=log, unguarded=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the guards' words
        server.start()
    try:
        yield server.url
    finally:
        server.stop(patience_s=0)


def read_weights(url: str, folder: Path) -> None:
    """Lets the running server read the tensors of a folder. HTTPError or RuntimeError when it could not."""
    body = json.dumps({"model_path": str(folder), "flush_cache": True}).encode()
    request = urllib.request.Request(f"{url}/update_weights_from_disk", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        told = json.load(answer)
    if not told["success"]:
        raise RuntimeError(f"{url} could not read {folder}: {told['message']}")


def study(
    spec: ServerSpec,
    good: Subject,
    planted: Mapping[str, Fault],
    work: Path,
    others: Mapping[str, Subject] | None = None,
) -> Iterator[tuple[str, Parity]]:
    """(kind, served against simulated with ranked causes) as they are found; GOOD and AGAIN too. See `serve`."""
    others = others or {}
    for name, side in serve(spec, good, planted, work, others):
        yield name, compared(others.get(name, good), side)
        for kind in (kind for kind, fault in planted.items() if fault.way == "here" and name == GOOD):
            yield kind, compared(replace(good, early=True), side)


def compared(subject: Subject, side: ServeSide) -> Parity:
    """Served answers against the simulation of the subject's drafter."""
    draft = load_draft(subject.draft, subject.engine.embed_VH)
    head_VH = subject.engine.lm_head_VH.detach()
    return replace(side, beside=subject.beside).compare(draft, subject.rows, subject.num_steps, head_VH)


def line(kind: str, fault: Fault | None, found: Parity) -> str:
    """One row of the table: kind, how much differs, the first cause, and whether it is the planted one."""
    differs, first = f"{found.differing} of {found.verifications}", next(iter(found.causes), None)
    if fault is None:
        return f"| {kind or 'nothing'} | {differs} | {first.name if first else '-'} | |"
    if first is None:
        return f"| {kind} | {differs} | - | WRONG |"
    told = f"{first.cause}: {first.name}; {first.why}"
    return f"| {kind} | {differs} | {told} | {'right' if fault.ranks_first(found) else 'WRONG'} |"


def finished_runs(training: Path, inference: Path, prompts: int, tokens: int, num_steps: int) -> Subject:
    """The subject of a training run and an inference run: held-out answers, cut to `tokens`."""
    draft = training / "draft"
    folder, config = resolve_target(read_training(draft)["target"]), read_draft_config(draft)
    engine = EmbeddedEngine(folder, "float32", config.aux_layers, end_ids=())
    if not engine.config.tie_word_embeddings:
        raise ValueError(f"{folder}: its head is not tied, so the drafter's lm_head would overwrite it: take another")
    whole = heldout_answers(inference / "corpus.parquet", prompts)
    return Subject(engine, draft, [one | {"output_ids": one["output_ids"][:tokens]} for one in whole], num_steps)


def main() -> None:
    """Prints one line a kind as it is found, and how many are right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("training", type=Path, help="folder of a finished run of 04_training")
    parser.add_argument("inference", type=Path, help="folder of the run of 02_inference with its answers")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64, help="of an answer, at most (default: %(default)s)")
    parser.add_argument("--num-steps", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="kinds to plant (default: all)")
    given = parser.parse_args()
    good = finished_runs(given.training, given.inference, given.prompts, given.tokens, given.num_steps)
    every = faults(good.draft)
    if unknown := set(given.only or ()) - set(every):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    planted = {name: fault for name, fault in every.items() if name in (given.only or every)}
    right = 0
    print("| planted | verifications that differ | ranked first | |\n|---|---|---|---|", flush=True)
    spec = replace(cpu_spec(str(good.engine.target.folder)), max_running_requests=AT_ONCE)
    with TemporaryDirectory() as work:
        for kind, found in study(spec, good, planted, Path(work)):
            fault = planted.get(kind)
            right += fault is not None and fault.ranks_first(found)
            print(line(kind, fault, found), flush=True)
    print(f"\n{right} of {len(planted)} kinds are ranked first")


if __name__ == "__main__":
    main()
