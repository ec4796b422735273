"""What tests of all rooms share: one run of the whole smoke profile, and which tests one worker runs together."""

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

COSTLY_FIXTURES = ("smoke_chain", "story_engine", "vllm_engine")  # minutes each, and used by several files
LONG = ("notebooks", "sglang", "vllm", "slow")  # marks


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several workers (pytest-xdist), one of them runs all tests of a file, and all files that use a costly
    fixture: it is made once. The long ones begin, so that no worker waits for another at the end."""
    files = {item.location[0]: item.location[0] for item in items}
    for name in COSTLY_FIXTURES:
        files |= {item.location[0]: name for item in items if name in getattr(item, "fixturenames", ())}
    for item in items:
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(files[item.location[0]]))
    long = {_group(item) for item in items if any(map(item.get_closest_marker, LONG))}
    items.sort(key=lambda item: _group(item) not in long)


def _group(item: pytest.Item) -> str:
    return item.get_closest_marker("xdist_group").args[0]


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
