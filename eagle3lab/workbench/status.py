"""What is done, what runs, what comes next: told from run records alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .artefacts import gone_files, read_manifest
from .files import read_json
from .processes import driven_run_id, own_identity
from .progress import duration, progress_text
from .records import MANIFEST, OK, PROGRESS, RESULTS, RUNNING, all_records, newest, now, observed_state
from .root import from_root, show_path
from .runs import HEADLINE
from .stages import STAGES, get_stage


@dataclass(frozen=True)
class StatusReport:
    """Tables of the state of all profiles; each is a list of flat rows.

    done: newest ok run of each stage; running: runs at work, with progress; stopped: the newest run of a
    stage where it did not end ok; next: the first stage without an ok run, with its command; key_files:
    artefacts of the done runs; numbers: their headline results, in the words of their notebook (the rest is
    in each run's results.json). written: when, UTC, ISO 8601; writer: the status run that writes this report.
    """

    written: str
    writer: str | None = None
    done: list[dict[str, Any]] = field(default_factory=list)
    running: list[dict[str, Any]] = field(default_factory=list)
    stopped: list[dict[str, Any]] = field(default_factory=list)
    next: list[dict[str, Any]] = field(default_factory=list)
    key_files: list[dict[str, Any]] = field(default_factory=list)
    numbers: list[dict[str, Any]] = field(default_factory=list)

    def to_markdown(self) -> str:
        """The report as Markdown, one table a section."""
        by = f" by {self.writer}" if self.writer else ""
        sections = [
            ("Done", self.done), ("Running", self.running), ("Stopped", self.stopped), ("Next", self.next),
            ("Numbers", self.numbers), ("Key files", self.key_files),
        ]  # fmt: skip
        tables = [f"## {title}\n\n{_table(rows)}\n" for title, rows in sections]
        return "\n".join([f"Written {shown_time(self.written)}{by}.\n", *tables])


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
    upcoming = None
    for stage in STAGES.values():
        good = newest(records, stage.name, profile, OK)
        last = newest(records, stage.name, profile)
        key = {"profile": profile, "stage": stage.label}
        if good:
            _add_done(report, runs_dir, key, good)
        elif upcoming is None and not stage.always:
            upcoming = {**key, "command": f"python -m eagle3lab run {profile} --from {stage.name}"}
        if last is None or last["state"] == OK:
            continue
        state = observed_state(last)
        if state == RUNNING:
            path = runs_dir / last["run_id"] / PROGRESS
            shown = progress_text(read_json(path)) if path.exists() else ""
            since = shown_time(last["started"])
            report.running.append({**key, "run": last["run_id"], "since": since, "progress": shown})
        else:
            error = last["error"] or {}
            reason = ": ".join(str(error[part]) for part in ("name", "message") if error.get(part))
            report.stopped.append({**key, "run": last["run_id"], "state": state, "reason": reason})
    if upcoming:
        report.next.append(upcoming)


def _add_done(report: StatusReport, runs_dir: Path, key: dict[str, Any], record: Mapping[str, Any]) -> None:
    folder = runs_dir / record["run_id"]
    gone = gone_files(folder)
    state = f"files are gone: {', '.join(gone)}" if gone else "ok"
    took, ended = duration(record["seconds"]), shown_time(record["ended"])
    report.done.append({**key, "run": record["run_id"], "ended": ended, "time": took, "files": state})
    if MANIFEST in gone or RESULTS in gone:
        return
    for name, entry in read_manifest(folder).items():
        path = show_path(folder / entry["path"])
        report.key_files.append({**key, "artefact": name, "kind": entry["kind"], "path": path})
    for text in read_json(folder / RESULTS).get(HEADLINE, []):
        report.numbers.append({**key, "result": text})


def _table(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "nothing"
    lines = [" | ".join(rows[0]), " | ".join("---" for _ in rows[0])]
    lines += [
        " | ".join(str(value).replace("|", "\\|").replace("\n", " ") for value in row.values())
        for row in rows
    ]
    return "\n".join(f"| {line} |" for line in lines)
