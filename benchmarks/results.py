"""What a benchmark found, for people and for `python -m benchmarks`: each line a ratio against its own baseline."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from eagle3lab.workbench.files import read_json, write_json_atomic


@dataclass(frozen=True)
class Result:
    """One line: what was measured, in which setting, and its ratio to the baseline of the same run.

    value, baseline: both with their unit. ratio: value / baseline, in the direction of `better`: "more" or "less".
    """

    what: str
    setting: str
    value: str
    baseline: str
    ratio: float
    better: str = "more"

    def __post_init__(self):
        if self.better not in ("more", "less"):
            raise ValueError(f"better={self.better!r} is neither more nor less")


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """`--json FILE`, where `save` writes."""
    parser.add_argument("--json", type=Path, help="also write the results to this file")


def save(path: Path | None, results: Sequence[Result]) -> None:
    """Writes the results as JSON; nothing without a path."""
    if path is not None:
        write_json_atomic(path, [asdict(result) for result in results])


def load(path: Path) -> list[Result]:
    """Reads what `save` wrote."""
    return [Result(**row) for row in read_json(path)]


def markdown(results: Sequence[Result], hardware: str) -> str:
    """One table with the hardware above it."""
    columns = ("what", "setting", "measured", "baseline of the same run", "ratio", "better")
    lines = [hardware, "", f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for one in results:
        lines.append(f"| {one.what} | {one.setting} | {one.value} | {one.baseline} | {one.ratio:.2f} | {one.better} |")
    return "\n".join(lines)
