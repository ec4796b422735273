"""Several sets prepared in processes side by side, with the result that one after the other would have.

A set that is finished with the same fingerprint is not prepared again. Sets are first prepared without regard to
each other; in their order, one that holds a prompt of an earlier one is then prepared again without it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

import psutil

from eagle3lab.data.adapters import ADAPTERS
from eagle3lab.data.chat import end_token_ids, load_tokenizer
from eagle3lab.data.fingerprint import preparation_fingerprint
from eagle3lab.data.limits import SetPlan
from eagle3lab.data.prepare import OF_ANOTHER_SET, prepare_set, read_prompts, read_tokenized
from eagle3lab.data.sources import pinned
from eagle3lab.data.suites import ALWAYS_BLOCKED, benchmark_texts
from eagle3lab.data.summary import ERRORS, ORDER
from eagle3lab.data.text import row_stem
from eagle3lab.workbench.files import iter_jsonl, read_json, write_json_atomic

_STALE = re.compile(r"\..+\.(?P<pid>\d+)-[0-9a-f]+\.(tmp|old)\Z")


class PreparationError(RuntimeError):
    """Some sets could not be prepared; the finished ones stay, and are not prepared again."""


class Preparation:
    """How sets are prepared for one target: everything but the set, and small enough to be sent to a process."""

    def __init__(
        self,
        target: str | Path,
        out_dir: str | Path,
        suites: Iterable[str] = (),
        context_length: int | None = None,
        trust_remote_code: bool = False,
    ):
        self.target, self.out_dir = str(target), Path(out_dir)
        self.suites = tuple(dict.fromkeys([*ALWAYS_BLOCKED, *suites]))
        self.context_length, self.trust_remote_code = context_length, trust_remote_code

    def finished(self, plan: SetPlan, seen: set[str] | None = None) -> dict[str, Any] | None:
        """The summary of a set that needs no preparation, because its folder is what it would make; else None."""
        folder = self.out_dir / plan.spec.name
        if not (folder / "summary.json").is_file() or not self._holds(folder, seen):
            return None
        tokenizer, ends, blocked = self._of_target()
        summary = read_json(folder / "summary.json")
        same = preparation_fingerprint(plan.spec, tokenizer, plan.limits, self.context_length, ends, blocked)
        return summary if summary.get("fingerprint") == same else None

    def run(
        self, plan: SetPlan, seen: set[str] | None = None, on_progress: Callable[[int], None] | None = None
    ) -> dict[str, Any]:
        """Prepare one set beside rows of others whose text keys are `seen`; returns its summary."""
        tokenizer, ends, blocked = self._of_target()
        return prepare_set(
            plan.spec, tokenizer, self.out_dir, plan.limits, context_length=self.context_length, end_ids=ends,
            blocked=blocked, seen=set(seen or ()), on_progress=on_progress,
        )  # fmt: skip

    def _of_target(self) -> tuple[Any, set[int], dict[str, str]]:
        """(tokenizer, ids that end an answer, texts that may not be trained on)."""
        tokenizer = _tokenizer(self.target, self.trust_remote_code)
        return tokenizer, end_token_ids(tokenizer, self.target), _blocked(self.suites)

    def _holds(self, folder: Path, seen: set[str] | None) -> bool:
        """Whether the folder is what a preparation beside `seen` would give: it holds no row of `seen`, and left out
        none but those. None: whatever it left out may stay out for now."""
        if seen is None:
            return True
        return not (kept_keys(folder) & seen) and left_out_keys(folder) <= seen


def prepare_sets(
    plans: Sequence[SetPlan],
    preparation: Preparation,
    workers: int | None = None,
    on_progress: Callable[[str, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Prepare the sets into the folder of `preparation`; returns their summaries in order, also in `ORDER`.

    `workers` processes work side by side (None: one a core, at most one a set); sets whose adapter was made in a
    notebook are prepared in this process, because no other one knows it. `on_progress(set, rows_read)`.
    The kept rows do not depend on `workers`. PreparationError names the sets that failed, after all others are done.
    """
    for plan in plans:
        plan.limits.check(preparation.context_length)
    plans = [replace(plan, spec=pinned(plan.spec)) for plan in plans]
    preparation.out_dir.mkdir(parents=True, exist_ok=True)
    remove_stale(preparation.out_dir)
    faults = _first_pass(plans, preparation, workers, on_progress)
    if faults:
        done = [plan.spec.name for plan in plans if plan.spec.name not in faults]
        told = "\n".join(f"- {name}: {fault}" for name, fault in faults.items())
        raise PreparationError(
            f"{len(faults)} of {len(plans)} sets could not be prepared:\n{told}\n"
            f"Finished, and kept for the next start: {', '.join(done) or 'none'}"
        )
    summaries, seen = [], set[str]()
    for plan in plans:
        done = preparation.finished(plan, seen)
        summaries.append(done or preparation.run(plan, seen, _told(on_progress, plan)))
        seen |= kept_keys(preparation.out_dir / plan.spec.name)
    write_json_atomic(preparation.out_dir / ORDER, summaries)
    return summaries


def _first_pass(
    plans: Sequence[SetPlan],
    preparation: Preparation,
    workers: int | None,
    on_progress: Callable[[str, int], None] | None,
) -> dict[str, str]:
    """Prepare each set without regard to the others; returns what went wrong, by set, in their order."""
    plans = [plan for plan in plans if not preparation.finished(plan)]
    apart = [plan for plan in plans if ADAPTERS[plan.spec.adapter].__module__.startswith("eagle3lab.")]
    workers = min(workers or os.cpu_count() or 1, len(apart))
    if workers <= 1:
        apart = []
    faults = _in_processes(apart, preparation, workers, on_progress)
    for plan in plans:
        if plan not in apart:
            try:
                preparation.run(plan, None, _told(on_progress, plan))
            except Exception as error:
                faults[plan.spec.name] = f"{type(error).__name__}: {error}"
    return {plan.spec.name: faults[plan.spec.name] for plan in plans if plan.spec.name in faults}


def _in_processes(
    plans: Sequence[SetPlan],
    preparation: Preparation,
    workers: int,
    on_progress: Callable[[str, int], None] | None,
) -> dict[str, str]:
    """Prepare the sets in `workers` processes; one that dies takes its own set along, and no other.

    A pipe each, no common queue: a process killed while it holds a queue's lock would block all others.
    """
    context = get_context("spawn")  # a forked copy of a process with threads (tokenizers, torch) may hang
    waiting, busy, faults = list(plans), {}, {}

    def give(pipe: connection.Connection, process: Any) -> None:
        plan = waiting.pop(0)
        pipe.send(plan)
        busy[pipe] = (plan.spec.name, process)

    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                ours, theirs = context.Pipe()
                process = context.Process(target=_work, args=(preparation, theirs), daemon=True)
                process.start()
                theirs.close()  # so that the pipe ends with the process
                give(ours, process)
            for pipe in connection.wait(list(busy)):
                name, process = busy[pipe]
                try:
                    told = pipe.recv()
                except EOFError:
                    process.join()
                    del busy[pipe]
                    faults[name] = f"its process ended with exit code {process.exitcode}"
                    continue
                if isinstance(told, int):
                    if on_progress:
                        on_progress(name, told)
                    continue
                if told:
                    faults[name] = told
                del busy[pipe]
                if waiting:
                    give(pipe, process)
                else:
                    pipe.close()  # the process ends
    finally:
        for _, process in busy.values():
            process.terminate()
    return faults


def _work(preparation: Preparation, pipe: connection.Connection) -> None:
    """In a process of its own: prepare the sets that come; tell rows read, and after each None or what went wrong."""
    try:
        while True:
            plan = pipe.recv()
            try:
                preparation.run(plan, None, pipe.send)
                pipe.send(None)
            except BrokenPipeError:
                raise
            except Exception as error:
                pipe.send(f"{type(error).__name__}: {error}")
    except (EOFError, BrokenPipeError):  # nothing more to do, or nobody listens: the notebook's kernel is gone
        return


def _told(on_progress: Callable[[str, int], None] | None, plan: SetPlan) -> Callable[[int], None] | None:
    return partial(on_progress, plan.spec.name) if on_progress else None


@lru_cache(maxsize=2)
def _tokenizer(target: str, trust_remote_code: bool) -> Any:
    return load_tokenizer(target, trust_remote_code)


@lru_cache(maxsize=2)
def _blocked(suites: tuple[str, ...]) -> dict[str, str]:
    return benchmark_texts(suites)


def kept_keys(folder: Path) -> set[str]:
    """Text keys of all rows of a prepared set."""
    return {row_stem(row["id"])[1] for rows in (read_prompts(folder), read_tokenized(folder)) for row in rows}


def left_out_keys(folder: Path) -> set[str]:
    """Text keys of the rows that a prepared set left to earlier sets."""
    details = (row["detail"] for row in iter_jsonl(folder / ERRORS) if row["reason"] == "duplicate")
    return {text.removeprefix(OF_ANOTHER_SET) for text in details if text.startswith(OF_ANOTHER_SET)}


def remove_stale(folder: Path) -> None:
    """Remove half-written sets of processes that are gone."""
    for item in folder.iterdir():
        match = _STALE.match(item.name)
        if match and item.is_dir() and not psutil.pid_exists(int(match["pid"])):
            shutil.rmtree(item, ignore_errors=True)
