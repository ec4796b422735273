"""The row every check gives, and what a list of rows says together."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "fault", "not checked"]
VERDICTS: tuple[Verdict, ...] = ("ok", "warning", "fault", "not checked")


@dataclass(frozen=True)
class Check:
    """One finding. `remedy` says what to do about it; every row that is not ok has one."""

    check: str
    found: str
    expected: str
    verdict: Verdict
    remedy: str = ""

    def __post_init__(self):
        if self.verdict not in VERDICTS:
            raise ValueError(f"{self.check}: verdict {self.verdict!r} is none of {VERDICTS}")
        if self.verdict != "ok" and not self.remedy:
            raise ValueError(f"{self.check}: a row with verdict {self.verdict!r} needs a remedy")


def judged(check: str, found: str, expected: str, verdict: Verdict, remedy: str) -> Check:
    """A row whose remedy is shown only where something is to be mended."""
    return Check(check, found, expected, verdict, "" if verdict == "ok" else remedy)


def faults(rows: Iterable[Check]) -> list[Check]:
    """The rows that must be mended before work starts."""
    return [row for row in rows if row.verdict == "fault"]


def verdict_counts(rows: Iterable[Check]) -> dict[str, int]:
    """How many rows of each verdict."""
    rows = list(rows)
    return {verdict: sum(row.verdict == verdict for row in rows) for verdict in VERDICTS}
