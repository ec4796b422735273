"""A launched training has its folder to itself: a second one is refused before it touches anything there."""

import dataclasses
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from eagle3lab.draft.alone import alone
from eagle3lab.draft.launch import CONFIG, LOCK, LOG, train
from eagle3lab.draft.train_job import STREAM
from eagle3lab.features import lock
from tests.draft.jobs import RECIPE
from tests.draft.test_state import HOLD

ROOT = Path(__file__).parents[2]
UNTOUCHED = None  # a trainer with which nothing may be done: what lies in the folder is another's


def kept(folder):
    """What a second launch must not change, with a failure of the first beside it."""
    names = (STREAM, LOG, CONFIG, "failure-1.json")
    return {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}


def test_a_launch_into_the_folder_of_another_process_is_refused_and_touches_nothing(job, tmp_path):
    for name in (STREAM, LOG, CONFIG, "failure-1.json"):
        (tmp_path / name).write_text("of the first\n")
    command = [sys.executable, "-c", HOLD, str(tmp_path / LOCK)]
    other = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "True\n"
        with pytest.raises(RuntimeError, match=f"another process trains in {tmp_path}"):
            next(train(dataclasses.replace(job, folder=tmp_path), UNTOUCHED, 2))
    finally:
        other.communicate("\n")
    assert kept(tmp_path) == dict.fromkeys((STREAM, LOG, CONFIG, "failure-1.json"), b"of the first\n")


def test_rows_that_nobody_heard_come_first(job, tmp_path):
    """Written, and followed by a checkpoint, when the listener was interrupted: only those, and no half a line."""
    lines = [json.dumps({"step": step}) for step in (10, 20, 30, 40)]
    (tmp_path / STREAM).write_text("\n".join(lines) + '\n{"step": 3')
    trainer = SimpleNamespace(step=30, resume=lambda: None)
    rows = train(dataclasses.replace(job, folder=tmp_path), trainer, 2, after=10)
    assert [next(rows), next(rows)] == [{"step": 20}, {"step": 30}]
    rows.close()
    assert not (tmp_path / CONFIG).exists()  # nothing was launched yet


def test_one_process_holds_a_folder_once_and_others_at_the_same_time(tmp_path):
    """The kernel's lock would let the process in again."""
    (tmp_path / "other").mkdir()

    def enter(folder):
        with alone(folder, ".lock"):
            return "in"

    with ThreadPoolExecutor(1) as another_thread:
        with alone(tmp_path, ".lock"):
            for run in (enter, lambda folder: another_thread.submit(enter, folder).result()):
                with pytest.raises(RuntimeError, match=f"this process trains in {tmp_path} already"):
                    run(tmp_path)
                assert run(tmp_path / "other") == "in"
            with pytest.raises(RuntimeError, match="already"):  # a refusal gave nothing up
                enter(tmp_path)
        assert enter(tmp_path) == another_thread.submit(enter, tmp_path).result() == "in"
    assert not lock._HELD


@pytest.mark.slow
def test_a_second_launch_of_this_process_leaves_the_first_alone(job, tmp_path):
    """From the same thread and from another, while the first runs; it goes on, and every row is told."""
    one = dataclasses.replace(job, folder=tmp_path, recipe=dataclasses.replace(RECIPE, epochs=4), log_every=1)
    trainer = one.trainer()
    first = train(one, trainer, 2)
    told = [next(first)["step"]]
    before = kept(tmp_path)
    with ThreadPoolExecutor(1) as another_thread:
        for run in (next, lambda rows: another_thread.submit(next, rows).result()):
            with pytest.raises(RuntimeError, match=f"this process trains in {tmp_path} already"):
                run(train(one, UNTOUCHED, 2))
    assert kept(tmp_path)[CONFIG] == before[CONFIG] and kept(tmp_path)[STREAM].startswith(before[STREAM])
    told += [row["step"] for row in first]
    assert told == list(range(1, trainer.total_steps + 1)) and trainer.step == told[-1]
    assert not lock._HELD  # the folder is free again
