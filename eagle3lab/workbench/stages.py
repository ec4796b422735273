"""The chain of stages as data: one stage a notebook, with what it needs and what it makes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .root import repository_root
from .types import nearest


@dataclass(frozen=True)
class Stage:
    """One stage: its number, its notebook (relative to the root), the stages it needs, the artefacts it
    makes.

    `always`: the stage looks at something that is no input of it (this machine, all runs), so it is never
    skipped as unchanged. `manner`: parameters that say how the work is done and not what comes out of it (where
    servers are, how long to wait for them); another value of theirs finds the same run and goes on with it.
    `spares`: needs that a run can do without, because a parameter may name something else in their place; their
    `<upstream>_run` is "none" then.
    """

    name: str
    number: int
    needs: tuple[str, ...]
    makes: tuple[str, ...]
    always: bool = False
    manner: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The notebook's name without suffix, e.g. `04_training`."""
        return f"{self.number:02d}_{self.name}"

    @property
    def notebook(self) -> str:
        """The notebook's path relative to the repository root."""
        return f"notebooks/{self.label}.ipynb"

    @property
    def notebook_path(self) -> Path:
        return repository_root() / self.notebook


_SERVED = ("servers", "server_python", "server_deadline_s", "concurrency", "long_concurrency", "retry_set_aside")
STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        Stage("doctor", 0, needs=(), makes=("report",), always=True),
        Stage("data_prep", 1, needs=(), makes=("prepared",)),
        Stage("inference", 2, needs=("data_prep",), makes=("corpus",), manner=_SERVED),
        Stage("extraction", 3, needs=("inference",), makes=("features", "vocab_map")),
        Stage("training", 4, needs=("extraction",), makes=("draft",)),
        Stage("diagnostics", 5, needs=("training", "inference"), makes=("checks",), spares=("training", "inference")),
        Stage("serving", 6, needs=("training", "data_prep"), makes=("benchmark",)),
        Stage("scaling", 7, needs=("training", "extraction", "inference", "serving"), makes=("curve",)),
        Stage("status", 8, needs=(), makes=("status",), always=True),
    )
}


def get_stage(name: str) -> Stage:
    """The stage of that name, number (`04`) or notebook (`04_training`); ValueError names the nearest one."""
    for stage in STAGES.values():
        if name in (f"{stage.number:02d}", stage.label):
            return stage
    if name not in STAGES:
        raise ValueError(f"no stage {name!r}{nearest(name, STAGES)}; the stages are {', '.join(STAGES)}")
    return STAGES[name]


def select_stages(only: list[str] | None = None, first: str | None = None, last: str | None = None) -> list[str]:
    """The stages to run, in the order of the chain: `only` these, or all from `first` to `last` inclusive."""
    if only:
        if first or last:
            raise ValueError("--only goes without --from and --to")
        wanted = {get_stage(name).name for name in only}
        return [name for name in STAGES if name in wanted]
    names = list(STAGES)
    start = names.index(get_stage(first).name) if first else 0
    end = names.index(get_stage(last).name) if last else len(names) - 1
    if start > end:
        raise ValueError(f"--from {first} comes after --to {last}")
    return names[start : end + 1]
