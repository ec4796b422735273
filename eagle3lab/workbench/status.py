"""What is done, what runs, what comes next: told from run records alone."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .artefacts import gone_files, read_manifest
from .belonging import beside, foreign_drafter, newest_chain
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
NOTES = {"Stopped": "With the same parameters a stage goes on where it stopped. To be rid of one, delete its folder."}
_METRICS_TAIL = 65536  # bytes of a metrics file that hold its last rows
_SHOWN_METRICS = 4


@dataclass(frozen=True)
class StatusReport:
    """Tables of the state of all profiles; each is a list of flat rows.

    done: the newest training's chain, the ok runs that it was made from and that measured it; running: runs at work,
    with progress, time left and their last metrics; stopped: the newest run of a stage where it did not end ok; next:
    the stages without an ok run in the chain whose needs have one, or will have once what runs now ended, each with its
    command (none where a running chain goes on by itself), or the doctor alone after it stopped a chain; warnings: what
    the results of the done runs say that must not be overlooked; key_files: artefacts of the done runs; numbers: their
    headline results, in the words of their notebook (the rest is in each run's results.json); others: ok runs beside
    the chain (of somebody's drafter, of another training) with what they belong to and their headline results.
    written: when, UTC, ISO 8601; writer: the status run that writes this report.
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
    others: list[dict[str, Any]] = field(default_factory=list)

    def to_markdown(self) -> str:
        """The report as Markdown, one table a section."""
        return markdown_page(self._first_line(), self._sections(), NOTES)

    def to_html(self) -> str:
        """The report as one HTML page that loads nothing from elsewhere; all values are escaped."""
        return html_page(TITLE, self._first_line(), self._sections(), NOTES)

    def _first_line(self) -> str:
        by = f" by {self.writer}" if self.writer else ""
        return f"Written {shown_time(self.written)}{by}."

    def _sections(self) -> dict[str, list[dict[str, Any]]]:
        return {
            "Done": self.done, "Running": self.running, "Stopped": self.stopped, "Next": self.next,
            "Warnings": self.warnings, "Numbers": self.numbers, "Others": self.others, "Key files": self.key_files,
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
    records = [record for record in records if record["profile"] == profile]
    chain = newest_chain(records, runs_dir)
    latest = {(record["stage"], foreign_drafter(record)): record for record in records}  # of two the newer stays
    own = {name: last for (name, drafter), last in latest.items() if not drafter}
    at_work = {name: last for name, last in own.items() if observed_state(last) == RUNNING}
    results = {}
    for stage in STAGES.values():
        if stage.name in chain:
            key = {"profile": profile, "stage": stage.label}
            results[stage.name] = _add_done(report, runs_dir, key, chain[stage.name])
        for (name, _), last in latest.items():
            if name == stage.name:
                _add_unfinished(report, runs_dir, last)
    if records[-1]["stage"] == "doctor" and observed_state(records[-1]) not in (OK, RUNNING):
        again = f"python -m eagle3lab run {profile}"
        report.next.append({"profile": profile, "stage": "00_doctor", "command": again, "when": "once that is mended"})
    else:
        report.next.extend(_upcoming(profile, chain.keys(), at_work))
    for stage_name, text in standing_warnings(results):
        report.warnings.append({"profile": profile, "stage": get_stage(stage_name).label, "warning": text})
    for record, belongs_to in beside(records, chain, runs_dir):
        key = {"profile": profile, "stage": get_stage(record["stage"]).label, "run": record["run_id"]}
        path = runs_dir / record["run_id"] / RESULTS
        for text in (read_json(path).get(HEADLINE) if path.exists() else None) or [""]:
            report.others.append({**key, "belongs to": belongs_to, "result": text})


def _upcoming(
    profile: str, done: Collection[str], at_work: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, str]]:
    """The stages that can begin now, or as soon as those at work ended: what each needs tells. What a chain at work
    goes on with needs no command; of the others the first goes on to the end of the chain, another that can begin
    beside it stands alone."""
    first, by_itself = True, {name for record in at_work.values() for name in record.get("later", [])}
    for stage in STAGES.values():
        missing = [name for name in stage.needs if name not in done]
        if stage.always or stage.name in {*done, *at_work} or not at_work.keys() >= set(missing):
            continue
        when = f"after {', '.join(get_stage(name).label for name in missing)}" if missing else "now"
        if stage.name in by_itself:
            yield {"profile": profile, "stage": stage.label, "command": "", "when": f"by itself, {when}"}
            continue
        command = f"python -m eagle3lab run {profile} {'--from' if first else '--only'} {stage.name}"
        yield {"profile": profile, "stage": stage.label, "command": command, "when": when}
        first = False


def _add_unfinished(report: StatusReport, runs_dir: Path, last: Mapping[str, Any]) -> None:
    """Adds a run that is at work or did not end ok; nothing for others."""
    state, drafter, label = observed_state(last), foreign_drafter(last), get_stage(last["stage"]).label
    key = {"profile": last["profile"], "stage": f"{label}, drafter {drafter}" if drafter else label}
    if state == RUNNING:
        report.running.append({**key, **_running(runs_dir / last["run_id"], last, report.written)})
    elif state != OK:
        error = last["error"] or {}
        reason = ": ".join(str(error[part]) for part in ("name", "message") if error.get(part))
        report.stopped.append({**key, "run": last["run_id"], "state": state, "reason": reason})


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
