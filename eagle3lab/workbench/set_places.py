"""Sets that name an adapter and a place of their own (`NAME:ADAPTER:PATH`): an adapter that is unknown and a file that
is not there are told before anything starts, and changed files make another run. A set on the hub (`hub:OWNER/NAME`) is
looked for when it is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from .known_sets import ADAPTERS, HUB
from .notebooks import code_cells, load_notebook, source
from .params import ParameterError
from .root import repository_root
from .stages import Stage
from .types import nearest


def refuse_unknown_adapters(stage: Stage, values: Mapping[str, Any]) -> None:
    """ParameterError for a set whose adapter is neither known nor added by a cell of the stage's notebook."""
    for name, adapter, place in _with_a_place(values):
        if adapter not in ADAPTERS and not _is_added(adapter, stage):
            raise ParameterError(
                f"{stage.name}: set {name!r} ({place}): unknown adapter {adapter!r}{nearest(adapter, ADAPTERS)}; "
                f"known: {', '.join(ADAPTERS)}; one of your own is added in a cell of {stage.notebook}: "
                f'ADAPTERS["{adapter}"] = ...'
            )


def missing_places(values: Mapping[str, Any]) -> list[str]:
    """A line for each set whose file or folder is not there; relative paths count from the repository root."""
    root = repository_root()
    return [
        f"set {name!r}: no file or folder at {root / place}; put it there, or mend the path in `sets`: "
        f"{name}:{adapter}:PATH, or {name}:{adapter}:{HUB}OWNER/NAME for a set on the hub"
        for name, adapter, place in _with_a_place(values)
        if not place.startswith(HUB) and not (root / place).exists()
    ]


def set_files(values: Mapping[str, Any]) -> dict[str, list[list]]:
    """[path below it, bytes, time of change in ns] of the files that each set's place holds; a place that is not there
    is left out. It tells changed data from unchanged without reading them."""
    root = repository_root()
    found = {}
    for _, _, place in _with_a_place(values):
        path = root / place
        if not place.startswith(HUB) and path.exists():
            files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
            states = [(str(file.relative_to(path)), file.stat()) for file in files]
            found[place] = [[name, state.st_size, state.st_mtime_ns] for name, state in states]
    return found


def _with_a_place(values: Mapping[str, Any]) -> Iterator[list[str]]:
    """[name, adapter, place] of the items of `sets` that have all three."""
    for text in values.get("sets") or ():
        if len(parts := text.split(":", 2)) == 3:
            yield parts


def _is_added(adapter: str, stage: Stage) -> bool:
    added = re.compile(rf"""ADAPTERS\[\s*["']{re.escape(adapter)}["']\s*\]\s*=""")
    return any(added.search(source(cell)) for cell in code_cells(load_notebook(stage.notebook_path)))
