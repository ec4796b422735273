"""What is done, what runs, what comes next: told from run records alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .artefacts import gone_files, read_manifest
from .files import read_json
from .progress import duration, progress_text
from .records import MANIFEST, OK, PROGRESS, RESULTS, RUNNING, all_records, newest, observed_state
from .root import from_root, show_path
from .stages import STAGES


@dataclass(frozen=True)
class StatusReport:
    """Tables of the state of all profiles; each is a list of flat rows.

    done: newest ok run of each stage; running: runs at work, with progress; stopped: the newest run of a
    stage where it did not end ok; next: the first stage without an ok run, with its command; key_files:
    artefacts of the done runs; numbers: their results, one scalar a row.
    """

    done: list[dict[str, Any]]
    running: list[dict[str, Any]]
    stopped: list[dict[str, Any]]
    next: list[dict[str, Any]]
    key_files: list[dict[str, Any]]
    numbers: list[dict[str, Any]]

    def to_markdown(self) -> str:
        """The report as Markdown, one table a section."""
        sections = [
            ("Done", self.done), ("Running", self.running), ("Stopped", self.stopped), ("Next", self.next),
            ("Numbers", self.numbers), ("Key files", self.key_files),
        ]  # fmt: skip
        return "\n".join(f"## {title}\n\n{_table(rows)}\n" for title, rows in sections)


def status(runs_dir: str | Path = "runs", profile: str | None = None) -> StatusReport:
    """The state of every profile found under `runs_dir` (or of one), from run.json, manifests and results."""
    folder = from_root(runs_dir)
    records = [record for record in all_records(folder) if profile in (None, record["profile"])]
    report = StatusReport([], [], [], [], [], [])
    for name in dict.fromkeys(record["profile"] for record in records):
        _add_profile(report, folder, records, name)
    return report


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
            report.running.append({**key, "run": last["run_id"], "since": last["started"], "progress": shown})
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
    took = duration(record["seconds"])
    report.done.append(
        {**key, "run": record["run_id"], "ended": record["ended"], "time": took, "files": state}
    )
    if MANIFEST in gone or RESULTS in gone:
        return
    for name, entry in read_manifest(folder).items():
        path = show_path(folder / entry["path"])
        report.key_files.append({**key, "artefact": name, "kind": entry["kind"], "path": path})
    for name, value in _scalars("", read_json(folder / RESULTS)):
        report.numbers.append({**key, "name": name, "value": value})


def _scalars(prefix: str, results: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Scalars of nested results under dotted names; lists are left to the notebooks."""
    for name, value in results.items():
        if isinstance(value, dict):
            yield from _scalars(f"{prefix}{name}.", value)
        elif not isinstance(value, list):
            yield f"{prefix}{name}", round(value, 4) if isinstance(value, float) else value


def _table(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "nothing"
    lines = [" | ".join(rows[0]), " | ".join("---" for _ in rows[0])]
    lines += [
        " | ".join(str(value).replace("|", "\\|").replace("\n", " ") for value in row.values())
        for row in rows
    ]
    return "\n".join(f"| {line} |" for line in lines)
