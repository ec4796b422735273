"""What is done, what runs, what comes next: told from run records alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .artefacts import gone_files, read_manifest
from .files import read_json
from .processes import driven_run_id, own_identity
from .progress import duration, progress_text
from .records import (
    MANIFEST,
    METRICS,
    OK,
    PROGRESS,
    RESULTS,
    RUNNING,
    all_records,
    newest,
    now,
    observed_state,
    seconds_between,
)  # fmt: skip
from .root import from_root, show_path
from .runs import HEADLINE
from .stages import STAGES, get_stage
from .standing import standing_warnings
from .status_pages import html_page, markdown_page

TITLE = "Status"
_METRICS_TAIL = 65536  # bytes of a metrics file that hold its last rows
_SHOWN_METRICS = 4


@dataclass(frozen=True)
class StatusReport:
    """Tables of the state of all profiles; each is a list of flat rows.

    done: newest ok run of each stage; running: runs at work, with progress, time left and their last metrics;
    stopped: the newest run of a stage where it did not end ok; next: the first stage without an ok run that is not
    running, with its command; warnings: what the results of the done runs say that must not be overlooked;
    key_files: artefacts of the done runs; numbers: their headline results, in the words of their notebook (the rest
    is in each run's results.json). written: when, UTC, ISO 8601; writer: the status run that writes this report.
    """

    written: str
    writer: str | None = None
    done: list[dict[str, Any]] = field(default_factory=list)
    running: list[dict[str, Any]] = field(default_factory=list)
    stopped: list[dict[str, Any]] = field(default_factory=list)
    next: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[dict[str, Any]] = field(default_factory=list)
    key_files: list[dict[str, Any]] = field(default_factory=list)
    numbers: list[dict[str, Any]] = field(default_factory=list)

    def to_markdown(self) -> str:
        """The report as Markdown, one table a section."""
        return markdown_page(self._first_line(), self._sections())

    def to_html(self) -> str:
        """The report as one HTML page that loads nothing from elsewhere; all values are escaped."""
        return html_page(TITLE, self._first_line(), self._sections())

    def _first_line(self) -> str:
        by = f" by {self.writer}" if self.writer else ""
        return f"Written {shown_time(self.written)}{by}."

    def _sections(self) -> dict[str, list[dict[str, Any]]]:
        return {
            "Done": self.done, "Running": self.running, "Stopped": self.stopped, "Next": self.next,
            "Warnings": self.warnings, "Numbers": self.numbers, "Key files": self.key_files,
        }  # fmt: skip


def status(runs_dir: str | Path = "runs", profile: str | None = None) -> StatusReport:
    """The state of every profile found under `runs_dir` (or of one), from run.json, manifests and results.

    The status run that asks is the report's writer, and no running stage in it.
    """
    folder = from_root(runs_dir)
    records = [record for record in all_records(folder) if profile in (None, record["profile"])]
    asking = next((record for record in records if _asks(record)), None)
    records = [record for record in records if record is not asking]
    writer = f"{get_stage(asking['stage']).label} ({asking['run_id']})" if asking else None
    report = StatusReport(now(), writer)
    for name in dict.fromkeys(record["profile"] for record in records):
        _add_profile(report, folder, records, name)
    return report


def shown_time(moment: str) -> str:
    """A time of a record (UTC, ISO 8601) for readers: `2026-11-29 16:53 UTC`."""
    return datetime.fromisoformat(moment).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _asks(record: Mapping[str, Any]) -> bool:
    """Whether it is the running status run whose notebook this process executes, by a runner or by itself."""
    if record["stage"] != "status" or record["state"] != RUNNING:
        return False
    return record["run_id"] == driven_run_id() or own_identity().items() <= record.items()


def _add_profile(report: StatusReport, runs_dir: Path, records: list[dict[str, Any]], profile: str) -> None:
    upcoming, at_work, results = None, [], {}
    for stage in STAGES.values():
        good = newest(records, stage.name, profile, OK)
        last = newest(records, stage.name, profile)
        state = None if last is None else observed_state(last)
        key = {"profile": profile, "stage": stage.label}
        if good:
            results[stage.name] = _add_done(report, runs_dir, key, good)
        elif upcoming is None and not stage.always and state != RUNNING:
            upcoming = {**key, "command": f"python -m eagle3lab run {profile} --from {stage.name}"}
        if state == RUNNING:
            at_work.append(stage.label)
            report.running.append({**key, **_running(runs_dir / last["run_id"], last, report.written)})
        elif last is not None and state != OK:
            error = last["error"] or {}
            reason = ": ".join(str(error[part]) for part in ("name", "message") if error.get(part))
            report.stopped.append({**key, "run": last["run_id"], "state": state, "reason": reason})
    if upcoming:
        report.next.append({**upcoming, "when": f"after {', '.join(at_work)}" if at_work else "now"})
    for stage_name, text in standing_warnings(results):
        report.warnings.append({"profile": profile, "stage": get_stage(stage_name).label, "warning": text})


def _running(folder: Path, record: Mapping[str, Any], written: str) -> dict[str, str]:
    """How far a running stage is. Its time left was told at some moment, and has passed since."""
    shown, left = "", None
    if (folder / PROGRESS).exists():
        state = read_json(folder / PROGRESS)
        shown = progress_text({**state, "seconds_left": None})
        if state["seconds_left"] is not None:
            left = max(0.0, state["seconds_left"] - seconds_between(state["updated"], written))
    return {
        "run": record["run_id"],
        "since": shown_time(record["started"]),
        "progress": shown,
        "left": duration(left),
        "metrics": _last_metrics(folder / METRICS),
    }


def _last_metrics(path: Path) -> str:
    """The numbers of the last whole row of metrics.jsonl, while its stage may be writing the next."""
    if not path.exists():
        return ""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - _METRICS_TAIL))
        whole = file.read().rpartition(b"\n")[0]
    try:
        row = json.loads(whole.rpartition(b"\n")[2])
    except ValueError:
        return ""
    numbers = [f"{name} {value:.4g}" for name, value in row.items() if type(value) in (int, float)]
    return ", ".join(numbers[:_SHOWN_METRICS])


def _add_done(report: StatusReport, runs_dir: Path, key: dict[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Adds a done run; gives its results back, none where they are gone."""
    folder = runs_dir / record["run_id"]
    gone = gone_files(folder)
    state = f"files are gone: {', '.join(gone)}" if gone else "ok"
    took, ended = duration(record["seconds"]), shown_time(record["ended"])
    report.done.append({**key, "run": record["run_id"], "ended": ended, "time": took, "files": state})
    if MANIFEST in gone or RESULTS in gone:
        return {}
    for name, entry in read_manifest(folder).items():
        path = show_path(folder / entry["path"])
        report.key_files.append({**key, "artefact": name, "kind": entry["kind"], "path": path})
    results = read_json(folder / RESULTS)
    for text in results.get(HEADLINE, []):
        report.numbers.append({**key, "result": text})
    return results
