"""Metric rows to a tracker: TensorBoard, trackio or wandb, behind one small seam. None of them is needed.

A tracker's package is imported when it is opened. Numbers are logged under their name, lists as name/1, name/2 ...;
everything else in a row is left out.
"""

import importlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol

PROJECT = "eagle3lab"
TRACKERS = ("tensorboard", "trackio", "wandb")


class TrackerError(RuntimeError):
    """A tracker whose package is missing, or an unknown one."""


class Tracker(Protocol):
    """Where metric rows go."""

    def log(self, values: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...


def tracked(rows: Iterable[dict], tracker: Tracker | None) -> Iterator[dict]:
    """Passes metric rows on, each logged under its `step`; the tracker is closed at the end, however that comes."""
    if tracker is None:
        yield from rows
        return
    with closing(tracker):
        try:
            for row in rows:
                tracker.log(scalars(row), row["step"])
                yield row
        finally:  # a tracker's error must not leave the training's processes at work
            if close := getattr(rows, "close", None):
                close()


def scalars(row: dict) -> dict[str, float]:
    """The numbers of a metric row, lists spread out; without `step`."""
    flat: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, list | tuple):
            flat |= {f"{name}/{i}": float(item) for i, item in enumerate(value, 1) if isinstance(item, int | float)}
        elif isinstance(value, int | float) and not isinstance(value, bool) and name != "step":
            flat[name] = float(value)
    return flat


def open_tracker(name: str | None, folder: str | Path, run: str, config: dict) -> Tracker | None:
    """The tracker of that name (None: no tracker) for a run; local files go into `folder`, `config` is shown beside.

    Raises TrackerError for a name that is none of TRACKERS, and when its package is not installed.
    """
    if name is None:
        return None
    if name not in TRACKERS:
        raise TrackerError(f"tracker={name!r} is not one of {', '.join(TRACKERS)}, or None")
    if name == "tensorboard":
        return _TensorBoard(folder, run, config)
    return _RunTracker(_package(name), folder, run, config)


class _TensorBoard:
    def __init__(self, folder, run, config):
        _package("tensorboard")
        self._writer = _package("torch.utils.tensorboard").SummaryWriter(str(Path(folder) / run))
        self._writer.add_text("config", "\n".join(f"    {key}: {value}" for key, value in config.items()))

    def log(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _RunTracker:
    """wandb, and trackio, which speaks its interface. wandb keeps its files in `folder`, trackio in its own place."""

    def __init__(self, package, folder, run, config):
        self._package = package
        where = {"dir": str(folder)} if package.__name__ == "wandb" else {}
        package.init(project=PROJECT, name=run, config=config, **where)

    def log(self, values: dict[str, float], step: int) -> None:
        self._package.log(values, step=step)

    def close(self) -> None:
        self._package.finish()


def _package(name: str):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.split(".")[-1]
        raise TrackerError(
            f"the tracker needs the package {package} ({error}): pip install {package}, or set tracker to None"
        ) from error
