"""Which code a stage runs, as hashes: its notebook's code cells and every eagle3lab module they import.

Imports are followed through syntax trees (also those inside functions), so an edit elsewhere leaves a stage
as it is. Comments, layout and docstrings do not count. The parameters cell is left out (its values are
hashed as values), and so are `eagle3lab.workbench`, which keeps the records and makes none of the results,
and the package's own `__init__`, which holds nothing but the version.
"""

from __future__ import annotations

import ast
import hashlib
import json
from functools import cache
from pathlib import Path

from .notebooks import PARAMETERS_TAG, code_cells, load_notebook, source, tags
from .root import package_parent
from .stages import get_stage

PACKAGE = "eagle3lab"
_RECORD_KEEPER = f"{PACKAGE}.workbench"


def stage_code(stage: str) -> dict[str, str]:
    """Source name -> sha256 for everything a stage runs: the notebook and the modules, by repository path."""
    spec = get_stage(stage)
    cells = [source(c) for c in code_cells(load_notebook(spec.notebook_path)) if PARAMETERS_TAG not in tags(c)]
    hashes = {spec.notebook: _digest("\n".join(_normal(cell) for cell in cells))}
    seen: set[str] = set()
    waiting = [name for cell in cells for name in _imported(cell, "")]
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        path = _module_path(module)
        if path is None:
            continue
        text = path.read_text(encoding="utf-8")
        hashes[str(path.relative_to(package_parent()))] = _normal_digest(text)
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        waiting += _imported(text, package)
    return dict(sorted(hashes.items()))


def code_digest(code: dict[str, str]) -> str:
    """One sha256 for all of a stage's code."""
    return _digest(json.dumps(code, sort_keys=True))


def changed_files(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """Names of the sources that were changed, added or removed between two `stage_code` results."""
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


@cache
def _normal_digest(text: str) -> str:
    """Digest of a module's code; the stages of a chain share most modules, which are parsed once."""
    return _digest(_normal(text))


def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except SyntaxError:  # a cell with IPython magics: hashed as text, its imports are not followed
        return None


def _normal(text: str) -> str:
    tree = _parse(text)
    if tree is None:
        return text
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:]
    return ast.dump(tree)


@cache
def _imported(text: str, package: str) -> tuple[str, ...]:
    """Modules of this package that `text` imports, parents included; `package` is where it stands."""
    tree = _parse(text)
    found: set[str] = set()
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                above = ".".join(parts[: len(parts) - node.level + 1])
                base = f"{above}.{base}".rstrip(".")
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    ours = [name for name in found if name.split(".")[0] == PACKAGE]
    parents = {".".join(name.split(".")[:depth]) for name in ours for depth in range(1, name.count(".") + 2)}
    return tuple(name for name in parents if name != PACKAGE and not f"{name}.".startswith(f"{_RECORD_KEEPER}."))


def _module_path(module: str) -> Path | None:
    base = package_parent() / Path(*module.split("."))
    for path in (base / "__init__.py", base.with_suffix(".py")):
        if path.exists():
            return path
    return None  # a name imported from a module, not a module
