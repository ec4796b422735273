"""Runs stages headlessly and keeps their records from outside the kernel."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .execution import Limits, execute
from .files import read_json
from .guards import check_kernelspec
from .notebooks import check_runnable
from .opening import new_record
from .params import ParameterError, share_overrides
from .plan import StagePlan, not_there, plan, plan_stage, refuse_large_amounts
from .processes import end_marked_processes, marked_processes, process_groups
from .progress import duration
from .records import (
    MANIFEST,
    OK,
    PROGRESS,
    REPORT,
    RESULTS,
    RUNNING,
    confirm,
    end_record,
    read_record,
    refuse_busy,
    write_record,
)
from .replaced import came_back, keep_the_good_one, set_aside
from .root import show_path
from .stages import select_stages
from .standing import standing_warnings
from .terminal import Terminal

_WATCH_GAP = 1.0  # seconds between two looks at progress and processes


@dataclass(frozen=True)
class StageResult:
    """How a stage ended in a chain: its run id, its record's state, and whether it was run or found
    unchanged. came_back: it was forced and did not end ok, so the good run of before stands in its place again, and
    `folder` is where this one lies.
    """

    stage: str
    run_id: str
    folder: Path
    state: str
    ran: bool
    error: dict[str, Any] | None
    came_back: bool = False


def run_chain(
    profile: str,
    stages: list[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    force: bool = False,
    limits: Limits | None = None,
    terminal: Terminal | None = None,
    warn: bool = True,
) -> list[StageResult]:
    """Run stages in order (default: all), skipping unchanged ones, until one does not end ok.

    A stage cut off before is run again in the same folder, where it continues from its files; `force`
    starts from empty folders, and keeps a good run aside until the new one ended ok. `limits` hold for each
    stage. `warn`: say what must not be overlooked in the results. Everything that can be refused is refused
    before the first kernel starts: ParameterError, LayerError, NotebookError, KernelspecError,
    UpstreamError, RunBusy; amounts of the scaling study that are more than the data, before the training.
    """
    names = stages or select_stages()
    terminal = terminal or Terminal()
    planned = plan(profile, overrides, names, force)
    for row in planned:
        check_runnable(row.stage.notebook_path)
    if missing := not_there(planned):
        raise ParameterError("; ".join(missing))
    check_kernelspec()
    shared = share_overrides(names, overrides or {})
    chain: dict[str, StagePlan] = {}
    results: list[StageResult] = []
    for number, name in enumerate(names, 1):
        row = plan_stage(name, profile, shared[name], chain, force)
        if name == "training":
            refuse_large_amounts(planned, row.upstream)
        label = f"[{number}/{len(names)}] {row.stage.label}"
        if row.will_run:
            result = _run(row, names[number:], label, force, limits or Limits(), terminal)
        else:
            confirm(row.folder)
            terminal.say(f"{label} unchanged: {row.run_id}")
            result = StageResult(name, row.run_id, row.folder, OK, False, None)
        results.append(result)
        if result.state != OK:
            break
        if warn:
            _warn(row, terminal)
        chain[name] = replace(row, will_run=False)
    return results


def _run(row: StagePlan, later: list[str], label: str, force: bool, limits: Limits, terminal: Terminal) -> StageResult:
    folder = row.folder
    refuse_busy(folder)
    if (old := read_record(folder)) and "mark" in old:
        end_marked_processes(old["mark"])  # what a runner that was itself killed left running
    if force:
        set_aside(folder)
    failed = None
    try:
        ended = _fill(row, later, label, limits, terminal)
    finally:
        if force:
            failed = keep_the_good_one(folder)
    place = failed or folder
    _tell(label, place, ended, terminal)
    if failed:
        terminal.say(f"    {came_back(folder, failed)}")
    return StageResult(row.stage.name, row.run_id, place, ended["state"], True, ended["error"], failed is not None)


def _fill(row: StagePlan, later: list[str], label: str, limits: Limits, terminal: Terminal) -> dict[str, Any]:
    """Run the stage in its folder; its ended record. `later`: the stages that this chain goes on with by itself."""
    folder = row.folder
    folder.mkdir(parents=True, exist_ok=True)
    for stale in (MANIFEST, RESULTS, PROGRESS):
        (folder / stale).unlink(missing_ok=True)
    mark = f"{row.run_id}:{secrets.token_hex(8)}"
    record = new_record(
        row.stage, row.identity, row.resolved.values, row.resolved.origins, row.upstream, row.code, "runner"
    )
    write_record(folder, {**record, "mark": mark, "later": later})
    terminal.say(f"{label} {row.run_id}: {row.why}")
    terminal.begin(label)
    watcher = _Watcher(folder, mark, terminal)
    watcher.start()
    try:
        output = folder / f"{row.stage.label}.ipynb"
        state, error = execute(row.stage, output, row.resolved.values, mark, limits, watcher.step)
    finally:
        watcher.stop()
    ended = end_record(read_record(folder) or record, state, error)
    write_record(folder, ended)
    return ended


def _tell(label: str, folder: Path, record: Mapping[str, Any], terminal: Terminal) -> None:
    terminal.say(f"{label} {record['state']} in {duration(record['seconds'])}: {show_path(folder)}")
    if record["error"]:
        error = record["error"]
        terminal.say(f"    {error['step'] or 'before the first cell'}: {error['name']}: {error['message']}")


def _warn(row: StagePlan, terminal: Terminal) -> None:
    """Say what must not be overlooked in the results of a stage that goes on well."""
    warnings = standing_warnings({row.stage.name: read_json(row.folder / RESULTS)})
    if row.stage.name == "doctor" and warnings:
        faults = "1 fault" if len(warnings) == 1 else f"{len(warnings)} faults"
        terminal.say(f"    {row.stage.label}: {faults}, see {show_path(row.folder / REPORT)}")
    for _, text in warnings:
        terminal.say(f"    {text}")


class _Watcher:
    """A thread that shows progress and keeps the run's process groups in its record meanwhile."""

    def __init__(self, folder: Path, mark: str, terminal: Terminal) -> None:
        self._folder, self._mark, self._terminal = folder, mark, terminal
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="run-watcher", daemon=True)
        self._stale_progress: float | None = None
        self._record_lock = threading.Lock()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def step(self, name: str) -> None:
        """A new cell began: the progress of the one before is history."""
        path = self._folder / PROGRESS
        self._stale_progress = path.stat().st_mtime_ns if path.exists() else None
        self._terminal.step(name)
        self._note_process_groups()

    def _watch(self) -> None:
        while not self._stop.wait(_WATCH_GAP):
            path = self._folder / PROGRESS
            fresh = path.exists() and path.stat().st_mtime_ns != self._stale_progress
            self._terminal.draw(read_json(path) if fresh else None)
            self._note_process_groups()

    def _note_process_groups(self) -> None:
        groups = set(process_groups(marked_processes(self._mark)))
        with self._record_lock:
            record = read_record(self._folder)
            if record and record["state"] == RUNNING and not groups <= set(record["process_groups"]):
                merged = sorted(groups.union(record["process_groups"]))
                write_record(self._folder, {**record, "process_groups": merged})
