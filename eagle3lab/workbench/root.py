"""Where the repository lies: notebooks, parameter files and relative paths are looked up from here."""

from __future__ import annotations

import os
from pathlib import Path

ROOT_VARIABLE = "EAGLE3LAB_ROOT"


def package_parent() -> Path:
    """The folder that holds the package `eagle3lab` (what must be on the path to import it)."""
    return Path(__file__).resolve().parents[2]


def repository_root() -> Path:
    """The repository root: the folder above the package, or EAGLE3LAB_ROOT where that is set."""
    chosen = os.environ.get(ROOT_VARIABLE)
    return Path(chosen).resolve() if chosen else package_parent()


def from_root(path: str | Path) -> Path:
    """`path` as an absolute path; a relative one counts from the repository root, not from the caller's
    cwd.
    """
    # links are kept: an environment's python is a link, and what it links to is not in the environment
    return Path(os.path.abspath(repository_root() / Path(path).expanduser()))


def show_path(path: str | Path) -> str:
    """`path` relative to the repository root where it lies under it, else as it is (for messages)."""
    path = Path(path)
    try:
        return str(path.resolve().relative_to(repository_root()))
    except ValueError:
        return str(path)
