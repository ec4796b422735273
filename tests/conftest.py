"""One run of the whole smoke profile for all tests that look at what came out of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

from eagle3lab.workbench.runner import StageResult, run_chain

# no example may fail for its seconds: they say how busy the machine is, not whether the code is right
settings.register_profile("lab", deadline=None)
settings.load_profile("lab")


@dataclass(frozen=True)
class SmokeChain:
    """The nine stages of profile smoke as the real runner left them in `runs_dir`."""

    runs_dir: Path
    results: dict[str, StageResult]

    @property
    def overrides(self) -> dict[str, str]:
        return {"runs_dir": str(self.runs_dir)}

    def folder(self, stage: str) -> Path:
        return self.results[stage].folder

    def read(self, stage: str, name: str) -> dict:
        return json.loads((self.folder(stage) / name).read_text())

    def lines(self, stage: str, name: str) -> list[dict]:
        return [json.loads(line) for line in (self.folder(stage) / name).read_text().splitlines()]


@pytest.fixture(scope="session")
def smoke_chain(tmp_path_factory: pytest.TempPathFactory) -> SmokeChain:
    runs_dir = tmp_path_factory.mktemp("smoke") / "runs"
    results = run_chain("smoke", overrides={"runs_dir": str(runs_dir)})
    return SmokeChain(runs_dir, {result.stage: result for result in results})
