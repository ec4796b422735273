"""What a guard has to say, and the refusal to start a server with a fault."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a server, its drafter or its setting, with numbers, and what to do about it.

    fault: the server would not start, or would serve something else than is meant. warning: it serves, but worse.
    """

    level: Literal["fault", "warning"]
    text: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.level}: {self.text} [{self.remedy}]"


def fault(text: str, remedy: str) -> Finding:
    """A finding that forbids the launch."""
    return Finding("fault", text, remedy)


def warning(text: str, remedy: str) -> Finding:
    """A finding that does not."""
    return Finding("warning", text, remedy)


def faults(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that forbid a launch."""
    return [finding for finding in findings if finding.level == "fault"]


class LaunchRefused(ValueError):
    """A server that was not started because of faults, which are in `findings`."""

    def __init__(self, findings: Iterable[Finding]):
        self.findings = list(findings)
        super().__init__("the server was not started\n" + "\n".join(f"- {finding}" for finding in self.findings))
