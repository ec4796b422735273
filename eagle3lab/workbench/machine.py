"""What a run ran on and with: versions, git state, device. Nothing heavy is imported to find out."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib import metadata
from typing import Any

import psutil

from eagle3lab import __version__

from .root import repository_root


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that decide results; None for one that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "eagle3lab": __version__}
    for package in ("torch", "transformers", "papermill"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def git_state() -> dict[str, Any]:
    """The commit checked out at the repository root and whether tracked files differ from it; None without git.

    Files that git does not track (parameter files of one's own) are no change of the code.
    """
    commit = _output("git", "-C", str(repository_root()), "rev-parse", "HEAD")
    changes = _output("git", "-C", str(repository_root()), "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit or None, "dirty": None if changes is None else bool(changes)}


def device() -> dict[str, Any]:
    """Host, architecture, processor, cores usable by this process, memory in GiB, GPU (None without one)."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        cores = os.cpu_count() or 1
    gpu = None
    if shutil.which("nvidia-smi"):
        gpu = _output("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader") or None
    return {
        "host": platform.node(),
        "machine": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": cores,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": gpu,
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
