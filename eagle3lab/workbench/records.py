"""Run records (run.json): where they lie, what state they tell, which run of a stage is the newest good
one.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .code_hash import code_digest
from .files import read_json, write_json_atomic
from .machine import device, git_state, versions
from .processes import own_identity, still_alive

RECORD = "run.json"
MANIFEST = "manifest.json"
RESULTS = "results.json"
PROGRESS = "progress.json"
METRICS = "metrics.jsonl"
REPORT = "report.json"  # of the doctor: every row of what it checked

RUNNING, OK, FAILED, TIMEOUT = "running", "ok", "failed", "timeout"
KERNEL_DIED, INTERRUPTED, STOPPED_EARLY = "kernel_died", "interrupted", "stopped_early"
STATES = (RUNNING, OK, FAILED, TIMEOUT, KERNEL_DIED, INTERRUPTED, STOPPED_EARLY)


class RunBusy(RuntimeError):
    """The run folder is being written by another live process."""


def now() -> str:
    """The time, UTC, ISO 8601 to the millisecond: such texts sort by time."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def seconds_between(start: str, end: str) -> float:
    return round((datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds(), 3)


def read_record(folder: str | Path) -> dict[str, Any] | None:
    """The run record in a run folder, or None when there is none."""
    path = Path(folder) / RECORD
    return read_json(path) if path.exists() else None


def write_record(folder: str | Path, record: Mapping[str, Any]) -> None:
    write_json_atomic(Path(folder) / RECORD, record)


def observed_state(record: Mapping[str, Any]) -> str:
    """The state as it is now: a record that says `running` while its writer is gone was interrupted.

    A record written on another host (a shared file system) is believed.
    """
    if record["state"] == RUNNING and _here(record) and not still_alive(record):
        return INTERRUPTED
    return record["state"]


def _here(record: Mapping[str, Any]) -> bool:
    return record["device"]["host"] == platform.node()


def refuse_busy(folder: Path) -> None:
    """RunBusy when another live process is writing this run; its record names it."""
    record = read_record(folder)
    if record is None or observed_state(record) != RUNNING:
        return
    if _here(record) and record["pid"] == own_identity()["pid"]:
        return
    raise RunBusy(
        f"{folder.name} is being run by process {record['pid']} on {record['device']['host']} "
        f"since {record['started']}: wait for it, or stop it"
    )


def all_records(runs_dir: str | Path) -> list[dict[str, Any]]:
    """Every run record under `runs_dir`, oldest first by the time it was last known good (or started)."""
    found = (read_record(path.parent) for path in Path(runs_dir).glob(f"*/{RECORD}"))
    return sorted((record for record in found if record), key=_recency)


def _recency(record: Mapping[str, Any]) -> str:
    return record.get("confirmed") or record["started"]


def newest(records: list[dict[str, Any]], stage: str, profile: str, state: str | None = None) -> dict | None:
    """The newest record of a stage under a profile (in `state`, if given), or None."""
    fitting = [
        record
        for record in records
        if record["stage"] == stage and record["profile"] == profile and state in (None, record["state"])
    ]
    return fitting[-1] if fitting else None


def confirm(folder: Path) -> None:
    """Note in an ok run's record that a chain found it unchanged: it counts as the newest run from now on."""
    record = read_record(folder)
    if record is not None:
        write_record(folder, {**record, "confirmed": now()})


def begin_record(
    *,
    run_id: str,
    stage: str,
    profile: str,
    fingerprint: str,
    parameters: Mapping[str, Mapping[str, Any]],
    upstream: Mapping[str, Mapping[str, str]],
    code: Mapping[str, str],
    driver: str,
) -> dict[str, Any]:
    """A new run record in state `running`, with this process as its writer.

    parameters: name -> {value, origin}; upstream: stage -> {run_id, manifest_sha256}; code: source -> sha256;
    driver: "runner" or "kernel".
    """
    return {
        "run_id": run_id,
        "stage": stage,
        "profile": profile,
        "state": RUNNING,
        "started": now(),
        "ended": None,
        "seconds": None,
        "parameters": parameters,
        "upstream": upstream,
        "fingerprint": fingerprint,
        "code_sha256": code_digest(dict(code)),
        "code": code,
        "git": git_state(),
        "versions": versions(),
        "device": device(),
        "driver": driver,
        **own_identity(),
        "process_groups": [],
        "error": None,
    }


def end_record(record: Mapping[str, Any], state: str, error: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The record with its final state, end time and error ({cell, name, message} or None)."""
    ended = now()
    seconds = seconds_between(record["started"], ended)
    return {**record, "state": state, "ended": ended, "seconds": seconds, "error": error}
