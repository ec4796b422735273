"""What tests of all rooms share: one run of the whole smoke profile, and which tests one worker runs together."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from eagle3lab.workbench.runner import StageResult, run_chain
from eagle3lab.workbench.stages import select_stages

# no example may fail for its seconds: they say how busy the machine is, not whether the code is right
settings.register_profile("lab", deadline=None)
settings.load_profile("lab")

COSTLY_FIXTURES = ("smoke_chain", "story_engine", "vllm_engine")  # minutes each, and used by several files
LONG = ("notebooks", "sglang", "vllm", "slow")  # marks
ROOT = Path(__file__).parents[1]


@cache
def group_of(file: str) -> str:
    """What one worker runs together: the files that use a costly fixture, or one file."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return next((name for name in COSTLY_FIXTURES if name in text), file)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The groups with long tests begin, so that no worker waits for another at the end."""
    long = {group_of(item.location[0]) for item in items if any(map(item.get_closest_marker, LONG))}
    items.sort(key=lambda item: group_of(item.location[0]) not in long)


class ByGroup(LoadScopeScheduling):
    """Gives whole groups to workers (xdist's own `loadgroup` does not see its marks under pytest 9.2)."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.partition("::")[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log) -> ByGroup:
    """With several workers (--numprocesses), a costly fixture is made once."""
    return ByGroup(config, log)


@dataclass(frozen=True)
class SmokeChain:
    """The nine stages of profile smoke as the real runner left them in `root`. A test that asks for the folder of a
    stage gets the chain up to there, in case no other test needs more; everything else is of the whole chain."""

    root: Path
    made: dict[str, StageResult] = field(default_factory=dict)

    def up_to(self, stage: str) -> dict[str, StageResult]:
        if missing := [name for name in select_stages(last=stage) if name not in self.made]:
            results = run_chain("smoke", missing, {"runs_dir": str(self.root)})
            self.made.update({result.stage: result for result in results})
        return self.made

    @property
    def results(self) -> dict[str, StageResult]:
        return self.up_to(select_stages()[-1])

    @property
    def runs_dir(self) -> Path:
        assert self.results
        return self.root

    @property
    def overrides(self) -> dict[str, str]:
        return {"runs_dir": str(self.runs_dir)}

    def folder(self, stage: str) -> Path:
        return self.up_to(stage)[stage].folder

    def read(self, stage: str, name: str) -> dict:
        return json.loads((self.folder(stage) / name).read_text())

    def lines(self, stage: str, name: str) -> list[dict]:
        return [json.loads(line) for line in (self.folder(stage) / name).read_text().splitlines()]


@pytest.fixture(scope="session")
def smoke_chain(tmp_path_factory: pytest.TempPathFactory) -> SmokeChain:
    return SmokeChain(tmp_path_factory.mktemp("smoke") / "runs")
