"""Small throw-away notebooks in a temporary repository root, with their own parameter files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest

from eagle3lab.workbench.root import package_parent
from eagle3lab.workbench.stages import STAGES

HEAD = """\
profile: str = "tiny"  # profile
runs_dir: str = "runs"  # where runs are kept
"""
OPEN = "from eagle3lab.workbench import open_run\nrun = open_run({stage!r}, globals())"
PREPARE = """\
run.path("prompts.txt").write_text(" ".join(["word"] * run.p.words))
run.add("prepared", "prompts.txt", "data")
run.result(words=run.p.words, lr=lr)"""
INFER = """\
words = run.upstream("data_prep").artefact("prepared").read_text().split()
run.path("corpus.txt").write_text(str(len(words) * times))
run.add("corpus", "corpus.txt", "data")
run.result(tokens=len(words) * times)"""


@dataclass
class Lab:
    """A temporary repository root."""

    root: Path

    def notebook(self, stage: str, params: str, *cells: str, kernel: str = "python3") -> Path:
        """Write the notebook of a stage: parameters, open_run, the cells."""
        needed = "".join(f'{name}_run: str = "latest"  # its run\n' for name in STAGES[stage].needs)
        first = nbformat.v4.new_code_cell(HEAD + needed + params, metadata={"tags": ["parameters"]})
        rest = [nbformat.v4.new_code_cell(cell) for cell in (OPEN.format(stage=stage), *cells)]
        book = nbformat.v4.new_notebook(cells=[first, *rest])
        book.metadata["kernelspec"] = {"name": kernel, "language": "python", "display_name": "Python 3"}
        path = self.root / STAGES[stage].notebook
        path.parent.mkdir(exist_ok=True)
        nbformat.write(book, path)
        return path

    def layer(self, name: str, text: str, profile: str = "tiny") -> Path:
        path = self.root / "params" / profile / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def folders(self) -> list[str]:
        return sorted(path.name for path in (self.root / "runs").glob("*"))

    def read(self, run_id: str, name: str) -> dict:
        return json.loads((self.root / "runs" / run_id / name).read_text())

    def command(self, *arguments: str, **options) -> subprocess.Popen:
        """A process of this Python in the temporary root, the package importable."""
        environment = {**os.environ, "PYTHONPATH": str(package_parent()), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [sys.executable, *arguments], cwd=self.root, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options,
        )  # fmt: skip


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A root with data_prep and inference, profile `tiny`."""
    monkeypatch.setenv("EAGLE3LAB_ROOT", str(tmp_path))
    lab = Lab(tmp_path)
    lab.notebook(
        "data_prep",
        "words: int = 3  # words\nlr: float = 1.0e-3  # rate\nsuite: str | None = None  # with = and #\n",
        PREPARE,
        "run.finish()",
    )
    lab.notebook("inference", "times: int = 2  # factor\n", INFER, "run.finish()")
    lab.layer("common", "profile: tiny\nwords: 4\n")
    return lab
