"""The Python of a server's own environment, and what it says of the engine that is installed there."""

from __future__ import annotations

import subprocess
from pathlib import Path

LIMIT_S = 600.0  # the first import after an install writes bytecode and may be slow


class ServerPythonError(RuntimeError):
    """The server's Python is not there, or does not have the engine."""


def ask_python(python: str, program: str, engine: str) -> str:
    """What a program prints that only looks an engine ("SGLang", "vLLM") up. Raises ServerPythonError."""
    if not Path(python).is_file():
        make = f"make {engine.lower()}-env"
        raise ServerPythonError(f"{python} is not there: run `{make}`, or name another environment's Python")
    run = subprocess.run([python, "-I", "-c", program], capture_output=True, text=True, timeout=LIMIT_S)
    if run.returncode != 0:
        raise ServerPythonError(f"{python} has no {engine}: {last_line(run.stderr)}")
    return run.stdout


def last_line(text: str) -> str:
    """Of what a program said before it failed."""
    return (text.strip() or "no reason given").splitlines()[-1]
