"""The row every check gives, what a list of rows says together, and how it is written down."""

import json
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from eagle3lab.engines.servers.findings import Finding
from eagle3lab.workbench.files import read_json

Verdict = Literal["ok", "warning", "fault", "not checked"]
VERDICTS: tuple[Verdict, ...] = ("ok", "warning", "fault", "not checked")
WORST_FIRST: tuple[Verdict, ...] = ("fault", "warning", "not checked", "ok")


NOT_GIVEN = "not given"


@dataclass(frozen=True)
class Check:
    """One finding. `remedy` says what to do about it, and every row that is not ok has one; `command`, where there is
    one, does it or comes next."""

    check: str
    found: str
    expected: str
    verdict: Verdict
    remedy: str = ""
    command: str = ""

    def __post_init__(self):
        if self.verdict not in VERDICTS:
            raise ValueError(f"{self.check}: verdict {self.verdict!r} is none of {VERDICTS}")
        if self.verdict != "ok" and not self.remedy:
            raise ValueError(f"{self.check}: a row with verdict {self.verdict!r} needs a remedy")


def judged(check: str, found: str, expected: str, verdict: Verdict, remedy: str, command: str = "") -> Check:
    """A row whose remedy and command are shown only where something is to be mended."""
    ways_out = () if verdict == "ok" else (remedy, command)
    return Check(check, found, expected, verdict, *ways_out)


def from_findings(check: str, findings: Iterable[Finding], found: str, expected: str) -> list[Check]:
    """A row for each finding of a guard, or one ok row that says what was `found`."""
    rows = [Check(check, finding.text, expected, finding.level, finding.remedy) for finding in findings]
    return rows or [Check(check, found, expected, "ok")]


def guarded(check: str, expected: str, remedy: str, rows: Callable[[], Check | Sequence[Check]]) -> list[Check]:
    """The rows of a check, or one fault row with the words of the error that it ran into: an artefact that breaks a
    check must not hide what the others find."""
    try:
        found = rows()
    except Exception as error:  # a damaged file fails in many ways, and each is this check's finding
        told = isinstance(error, ValueError | OSError) and str(error).strip()
        return [Check(check, str(error).strip() if told else repr(error), expected, "fault", remedy)]
    return [found] if isinstance(found, Check) else list(found)


def faults(rows: Iterable[Check]) -> list[Check]:
    """The rows that must be mended before work starts."""
    return [row for row in rows if row.verdict == "fault"]


def verdict_counts(rows: Iterable[Check]) -> dict[str, int]:
    """How many rows of each verdict."""
    rows = list(rows)
    return {verdict: sum(row.verdict == verdict for row in rows) for verdict in VERDICTS}


def exit_code(rows: Iterable[Check]) -> int:
    """For scripts: 1 when there is a fault, else 0."""
    return 1 if faults(rows) else 0


def as_json(rows: Iterable[Check]) -> str:
    """{"verdicts": counts, "checks": [rows]} as JSON text."""
    rows = list(rows)
    content = {"verdicts": verdict_counts(rows), "checks": [asdict(row) for row in rows]}
    return json.dumps(content, indent=1, ensure_ascii=False)


def read_report(path: Path) -> list[Check]:
    """The rows of a run's report.json, as notebook 00 writes it."""
    return [Check(**row) for row in read_json(path)]


def as_text(rows: Iterable[Check], width: int = 100) -> str:
    """A table for a terminal: the rows to be mended first and in full, those that are ok in one line each, what was not
    given in one line together."""
    rows = sorted(rows, key=lambda row: WORST_FIRST.index(row.verdict))
    lines, absent = [], [row.check for row in rows if row.found == NOT_GIVEN]
    for row in rows:
        if row.found == NOT_GIVEN:
            continue
        mark = f"{row.verdict.upper() if row.verdict == 'fault' else row.verdict:<12}{row.check}: "
        if row.verdict == "ok":
            lines.append(mark + textwrap.shorten(row.found, max(width - len(mark), 20), placeholder=" ..."))
            continue
        for head, text in ((mark, row.found), (" " * 12 + "expected: ", row.expected), (" " * 12 + "-> ", row.remedy)):
            lines += textwrap.wrap(text, width, initial_indent=head, subsequent_indent=" " * 14) or [head]
        if row.command:
            lines.append(f"{' ' * 12}$ {row.command}")
    if absent:
        head = f"{'not checked':<12}{NOT_GIVEN}: "
        lines += textwrap.wrap(", ".join(absent), width, initial_indent=head, subsequent_indent=" " * 14)
    counts = verdict_counts(rows)
    return "\n".join([*lines, ", ".join(f"{count} {verdict}" for verdict, count in counts.items())])
