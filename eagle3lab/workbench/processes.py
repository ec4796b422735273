"""Processes that belong to a run: found by an environment mark every descendant inherits, and ended for
good.

A kernel's children may outlive it (a server that a cell started, in a session of its own): SIGTERM to
papermill leaves them running. The runner therefore sets `EAGLE3LAB_DRIVEN_RUN=<run id>:<token>` before the
kernel starts; whoever carries exactly that value belongs to the run. Process groups of such processes are
kept in run.json, so that leftovers of a runner that was itself killed can still be listed and ended.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import psutil

DRIVEN_VARIABLE = "EAGLE3LAB_DRIVEN_RUN"


def driven_run_id() -> str | None:
    """Id of the run whose runner started this process, or None when no runner drives it."""
    mark = os.environ.get(DRIVEN_VARIABLE)
    return mark.partition(":")[0] if mark else None


def marked_processes(mark: str) -> list[psutil.Process]:
    """Live processes of this user that carry the mark of a run, this process excepted."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.environ().get(DRIVEN_VARIABLE) == mark:
                found.append(process)
        except (psutil.Error, OSError):
            continue  # ended meanwhile, or another user's
    return found


def process_groups(processes: list[psutil.Process]) -> list[int]:
    """Process-group ids of the processes, sorted."""
    groups = set()
    for process in processes:
        try:
            groups.add(os.getpgid(process.pid))
        except OSError:
            continue
    return sorted(groups)


def end_marked_processes(mark: str, patience: float = 5.0) -> list[int]:
    """End every process of a run: SIGTERM, `patience` seconds, SIGKILL. Returns the pids that were found."""
    ended: list[int] = []
    for _ in range(3):  # a process may start another one while it is ended
        processes = marked_processes(mark)
        if not processes:
            break
        ended += [process.pid for process in processes]
        for process in processes:
            _quietly(process.terminate)
        for process in psutil.wait_procs(processes, timeout=patience)[1]:
            _quietly(process.kill)
        psutil.wait_procs(processes, timeout=patience)
    return ended


def _quietly(action: Any) -> None:
    try:
        action()
    except psutil.Error:
        pass


def own_identity() -> dict[str, Any]:
    """`pid` and its start time (seconds since the epoch): together they name a process across pid reuse."""
    return {"pid": os.getpid(), "pid_started": psutil.Process().create_time()}


def still_alive(record: Mapping[str, Any]) -> bool:
    """Whether the process that writes this run record still runs (on this machine)."""
    try:
        process = psutil.Process(record["pid"])
        return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - record["pid_started"]) < 1.0
    except psutil.Error:
        return False
