"""What a chain prints when it is through: the headline results of its stages, and where figures and notebooks lie."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from .artefacts import read_manifest
from .files import read_json
from .records import RESULTS
from .root import show_path
from .runs import HEADLINE
from .stages import get_stage


def closing_text(runs: Iterable[tuple[str, Path]]) -> str:
    """Headlines, figures, reports and executed notebooks of finished runs, given as (stage, run folder), in their
    order."""
    results, figures, reports, notebooks = [], [], [], []
    for stage, folder in runs:
        label = get_stage(stage).label
        for line in read_json(folder / RESULTS).get(HEADLINE, []):
            results.append(f"  {label:<15} {line}")
        for entry in read_manifest(folder).values():
            path = f"  {show_path(folder / entry['path'])}"
            if entry["kind"] == "figure":
                figures.append(path)
            elif entry["kind"] == "report":
                reports.append(path)
        if (notebook := folder / f"{label}.ipynb").exists():  # there is none of a stage run by hand
            notebooks.append(f"  {show_path(notebook)}")
    jupyter = show_path(Path(sys.executable).with_name("jupyter"))
    read = f"Notebooks as they ran (as a web page: {jupyter} nbconvert --to html PATH)"
    sections = (("Results", results), ("Figures", figures), ("Reports", reports), (read, notebooks))
    return "\n".join(f"\n{title}\n" + "\n".join(lines) for title, lines in sections if lines)
