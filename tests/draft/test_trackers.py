"""Trackers behind their seam: what is logged, and what a missing package says. The packages here are stand-ins."""

import sys
import types

import pytest

from eagle3lab.draft.trackers import TrackerError, open_tracker, scalars, tracked

ROWS = [
    {"step": 10, "loss": 2.5, "acceptance": [0.5, 0.25], "note": "text", "resumed": True},
    {"step": 20, "loss": 2, "acceptance": [0.75, 0.5]},
]


def test_numbers_and_lists_of_numbers_are_logged():
    assert scalars(ROWS[0]) == {"loss": 2.5, "acceptance/1": 0.5, "acceptance/2": 0.25}


@pytest.fixture
def calls(monkeypatch):
    """Stand-ins of the three packages that note how they were called."""
    noted = []

    class SummaryWriter:
        def __init__(self, folder):
            noted.append(("open", folder))

        def add_text(self, name, text):
            noted.append((name, text))

        def add_scalar(self, name, value, step):
            noted.append((name, value, step))

        def close(self):
            noted.append(("close",))

    for name in ("wandb", "trackio", "tensorboard", "torch.utils.tensorboard"):
        module = types.ModuleType(name)
        module.init = lambda **arguments: noted.append(("init", arguments))
        module.log = lambda values, step: noted.append((values, step))
        module.finish = lambda: noted.append(("finish",))
        module.SummaryWriter = SummaryWriter
        monkeypatch.setitem(sys.modules, name, module)
    return noted


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_rows_pass_through_and_are_logged(calls, tmp_path, name):
    tracker = open_tracker(name, tmp_path, "run-1", {"lr": 1e-3})
    assert list(tracked(ROWS, tracker)) == ROWS
    opened = {"project": "eagle3lab", "name": "run-1", "config": {"lr": 1e-3}}
    opened |= {"dir": str(tmp_path)} if name == "wandb" else {}
    assert calls == [
        ("init", opened),
        ({"loss": 2.5, "acceptance/1": 0.5, "acceptance/2": 0.25}, 10),
        ({"loss": 2.0, "acceptance/1": 0.75, "acceptance/2": 0.5}, 20),
        ("finish",),
    ]


def test_tensorboard_gets_one_curve_a_number(calls, tmp_path):
    list(tracked(ROWS[:1], open_tracker("tensorboard", tmp_path, "run-1", {"lr": 1e-3})))
    assert calls == [
        ("open", str(tmp_path / "run-1")),
        ("config", "    lr: 0.001"),
        ("loss", 2.5, 10),
        ("acceptance/1", 0.5, 10),
        ("acceptance/2", 0.25, 10),
        ("close",),
    ]


def test_a_tracker_is_closed_when_the_training_fails(calls, tmp_path):
    def failing():
        yield ROWS[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(tracked(failing(), open_tracker("wandb", tmp_path, "run-1", {})))
    assert calls[-1] == ("finish",)


def test_the_training_is_ended_when_its_tracker_fails(calls, tmp_path, monkeypatch):
    ended = []

    def training():
        try:
            yield from ROWS
        finally:
            ended.append(True)

    tracker = open_tracker("wandb", tmp_path, "run-1", {})
    monkeypatch.setattr(sys.modules["wandb"], "log", lambda values, step: 1 / 0)
    with pytest.raises(ZeroDivisionError) as kept:  # as a notebook keeps it: frames and what they hold live on
        list(tracked(training(), tracker))
    assert ended and kept


def test_no_tracker_is_fine(tmp_path):
    assert open_tracker(None, tmp_path, "run-1", {}) is None
    assert list(tracked(ROWS, None)) == ROWS


@pytest.mark.parametrize("name", ["wandb", "trackio", "tensorboard"])
def test_a_missing_package_is_named(monkeypatch, tmp_path, name):
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    with pytest.raises(TrackerError, match=f"pip install {name}, or set tracker to None"):
        open_tracker(name, tmp_path, "run-1", {})


def test_an_unknown_tracker_is_refused(tmp_path):
    with pytest.raises(TrackerError, match="'mlflow' is not one of tensorboard, trackio, wandb"):
        open_tracker("mlflow", tmp_path, "run-1", {})
