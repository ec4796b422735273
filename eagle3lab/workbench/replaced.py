"""The good run that `--force` makes anew: kept aside until the new one ended ok, so that no failure costs it.

It waits in runs/.before/<run id>, where nobody looks for runs. A new run that did not end ok goes to runs/.failed/<run
id>, for whoever wants to know why, and the old one comes back. Every step is one rename: a kill loses nothing, and
`settle` does later what was left undone.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .processes import end_marked_processes
from .records import OK, RUNNING, observed_state, read_record
from .root import show_path

BEFORE, FAILED_ANEW = ".before", ".failed"


def set_aside(folder: Path) -> None:
    """Empty the place of a run that is made anew: a good run is moved aside, anything else deleted."""
    record = read_record(folder)
    if record and record["state"] == OK:
        waiting = folder.parent / BEFORE / folder.name
        waiting.parent.mkdir(exist_ok=True)
        os.replace(folder, waiting)  # OSError, and nothing moved, should one wait there already
    elif folder.exists():
        shutil.rmtree(folder)


def keep_the_good_one(folder: Path) -> Path | None:
    """Once a run made anew is over: delete the old one if the new one ended ok, else put it back.

    Returns where the new one lies if the old one came back, else None.
    """
    waiting, failed = (folder.parent / name / folder.name for name in (BEFORE, FAILED_ANEW))
    record = read_record(folder)
    if record and record["state"] == OK:
        for each in (waiting, failed):
            shutil.rmtree(each, ignore_errors=True)
            _remove_if_empty(each.parent)
        return None
    if not waiting.exists():
        return None
    if folder.exists():
        shutil.rmtree(failed, ignore_errors=True)
        failed.parent.mkdir(exist_ok=True)
        os.replace(folder, failed)
    os.replace(waiting, folder)
    _remove_if_empty(waiting.parent)
    return failed


def settle(runs_dir: Path) -> None:
    """Do for every run kept aside what a process that was killed can no longer do, and say so.

    A run that is being made anew by a live process is left alone.
    """
    for waiting in sorted((runs_dir / BEFORE).glob("*")):
        folder = runs_dir / waiting.name
        record = read_record(folder)
        if record and observed_state(record) == RUNNING:
            continue
        if record and "mark" in record:
            end_marked_processes(record["mark"])  # what the killed one left running would go on writing
        if failed := keep_the_good_one(folder):
            print(f"{folder.name} was being made anew and was cut off. {came_back(folder, failed)}", flush=True)


def came_back(folder: Path, failed: Path) -> str:
    """What became of both runs, for a reader."""
    left = f"; what was done anew lies in {show_path(failed)}" if failed.exists() else ""
    return f"The good run of before is back in {show_path(folder)}{left}"


def _remove_if_empty(folder: Path) -> None:
    if folder.exists() and not any(folder.iterdir()):
        folder.rmdir()
