"""What the house rules look at: the files of the repository, its modules and their imports, its notebooks."""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "eagle3lab"
NOTEBOOKS = [
    "00_doctor", "01_data_prep", "02_inference", "03_extraction", "04_training", "05_diagnostics",
    "06_serving", "07_scaling", "08_status",
]  # fmt: skip


@cache
def repository_files() -> tuple[str, ...]:
    """Paths, relative to the root, of all files that git tracks or would track, as long as they exist."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(sorted(name for name in set(listed.split("\0")) if name and (ROOT / name).is_file()))


def text_files() -> Iterator[tuple[str, str]]:
    """(path, text) of every file of the repository that is text."""
    for name in repository_files():
        try:
            yield name, (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


@cache
def modules() -> dict[str, Path]:
    """Dotted names of the package's modules and their files; a package's name stands for its __init__."""
    found = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, tree: ast.AST, is_package: bool) -> Iterator[str]:
    """Absolute dotted names that module `name` imports anywhere in it, inside functions too.

    `from a import b` gives `a.b`: whether b is a module or a name in a is for `inner_imports` to decide.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = name.split(".")
                parts = parts[: len(parts) - node.level + (1 if is_package else 0)]
                base = ".".join([*parts, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


@cache
def imports_of(name: str) -> frozenset[str]:
    """Everything a module of the package imports, as dotted names."""
    path = modules()[name]
    return frozenset(imported(name, ast.parse(path.read_text(encoding="utf-8")), path.name == "__init__.py"))


def inner_imports(name: str) -> set[str]:
    """Modules of the package that module `name` imports."""
    found = set()
    for target in imports_of(name):
        while target and target not in modules():
            target = target.rpartition(".")[0]
        if target.startswith(PACKAGE) and target != name:
            found.add(target)
    return found


def room(name: str) -> str:
    """The room of a module: `eagle3lab.draft.model` -> `draft`; an empty text for the package itself."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and (ROOT / PACKAGE / parts[1]).is_dir() else ""


def notebook_cells(label: str) -> list[tuple[str, str, dict]]:
    """(cell type, source, whole cell) of every cell of a notebook."""
    notebook = json.loads((ROOT / "notebooks" / f"{label}.ipynb").read_text(encoding="utf-8"))
    return [(cell["cell_type"], "".join(cell["source"]), cell) for cell in notebook["cells"]]
