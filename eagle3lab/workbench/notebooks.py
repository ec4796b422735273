"""Notebooks read as data, without nbformat: code cells, the parameters cell, and what papermill would trip
over.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from .files import read_json
from .root import show_path

PARAMETERS_TAG = "parameters"
INJECTED_TAG = "injected-parameters"


class NotebookError(ValueError):
    """A notebook that must not be run; the text names it and says what to change."""


def load_notebook(path: str | Path) -> dict[str, Any]:
    """The notebook's JSON; FileNotFoundError or ValueError names the file."""
    if not Path(path).exists():
        raise FileNotFoundError(f"no notebook {show_path(path)}")
    return read_json(path)


def source(cell: dict[str, Any]) -> str:
    """A cell's source as one string."""
    text = cell["source"]
    return text if isinstance(text, str) else "".join(text)


def tags(cell: dict[str, Any]) -> list[str]:
    return cell.get("metadata", {}).get("tags", [])


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """The code cells that hold code, in order."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code" and source(cell).strip()]


def parameters_cell(notebook: dict[str, Any], name: str) -> str:
    """Source of the one cell tagged `parameters`; NotebookError when there is none, or more than one."""
    found = [source(cell) for cell in code_cells(notebook) if PARAMETERS_TAG in tags(cell)]
    if len(found) != 1:
        raise NotebookError(f"{name} has {len(found)} cells tagged '{PARAMETERS_TAG}'; exactly one is needed")
    return found[0]


def step_name(cell_source: str) -> str:
    """The name in a first line `# papermill_description=name` (papermill's own convention), or an empty
    string.
    """
    match = re.match(r"\s*#\s*papermill_description=(\S+)", cell_source)
    return match.group(1) if match else ""


def assigned_names(cell_source: str) -> list[str]:
    """Names that a cell's top-level statements assign (used on papermill's injected cell)."""
    names: list[str] = []
    for statement in ast.parse(cell_source).body:
        targets = (
            statement.targets
            if isinstance(statement, ast.Assign)
            else [statement.target]
            if isinstance(statement, ast.AnnAssign)
            else []
        )
        names += [target.id for target in targets if isinstance(target, ast.Name)]
    return names


def check_runnable(path: str | Path) -> None:
    """Refuse a notebook that papermill would run wrongly, before a kernel starts.

    NotebookError when it has no python3 kernelspec (papermill fails on it), holds an injected parameters cell
    (an executed notebook: its old values would be used again), or calls `asyncio.run` (fails in a cell: the
    kernel's loop is running; write `await`).
    """
    name = show_path(path)
    notebook = load_notebook(path)
    parameters_cell(notebook, name)
    kernel = notebook.get("metadata", {}).get("kernelspec", {}).get("name")
    if kernel != "python3":
        raise NotebookError(f"{name} has the kernelspec {kernel!r}; it must be 'python3'")
    for number, cell in enumerate(notebook["cells"]):
        if INJECTED_TAG in tags(cell):
            raise NotebookError(
                f"{name} is an executed notebook (cell {number} holds injected parameters): "
                "run the one under notebooks/ instead"
            )
        if cell["cell_type"] == "code" and re.search(r"\basyncio\.run\(", source(cell)):
            raise NotebookError(f"{name}, cell {number}: asyncio.run fails inside a notebook; write `await ...`")
