"""Every benchmark, one after the other, and one table of their ratios with the hardware above it.

A benchmark that fails is a line that says so; the others still run. Results are kept as JSON, one file a benchmark:
`--only` runs some again, the table holds all that are there. Usage: python -m benchmarks [--only training decode]
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import load, markdown
from eagle3lab.workbench.files import write_text_atomic
from eagle3lab.workbench.machine import device, versions

BENCHMARKS = ("training", "extraction", "decode", "client", "merge", "dispatch")


def hardware() -> str:
    """The machine and the versions in one line."""
    machine, installed = device(), versions()
    gpu = machine["gpu"] or "no GPU"
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']:.0f} GiB, {gpu}; "
        f"{machine['machine']}, Python {installed['python']}, torch {installed['torch']}"
    )


def run(name: str, folder: Path) -> str:
    """Runs one benchmark; gives back why it failed, or "". Its earlier result is gone either way."""
    path = folder / f"{name}.json"
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(path)]
    print(f"\n{name}", flush=True)
    code = subprocess.run(command).returncode
    return "" if code == 0 and path.exists() else f"{name} failed with exit code {code}"


def table(folder: Path, failures: Sequence[str] = ()) -> str:
    """All results in the folder as Markdown, in the order of BENCHMARKS, then what failed."""
    files = [path for name in BENCHMARKS if (path := folder / f"{name}.json").exists()]
    text = markdown([result for path in files for result in load(path)], hardware())
    return "\n\n".join([text, *failures])


def main() -> int:
    """Prints the table and writes it beside the results; 1 when a benchmark failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="*", choices=BENCHMARKS, default=list(BENCHMARKS), help="none: the table alone")
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmarks"), help="where results are kept")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    failures = [failure for name in arguments.only if (failure := run(name, arguments.folder))]
    text = table(arguments.folder, failures)
    write_text_atomic(arguments.folder / "table.md", text + "\n")
    print(f"\n{text}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
