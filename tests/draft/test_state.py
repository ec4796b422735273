"""Checkpoints: rotation, the best weights, kill -9 anywhere, and everything that must not be continued."""

import dataclasses
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from eagle3lab.draft import train
from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.state import StateError, checkpoints, load_best
from eagle3lab.draft.train import Trainer
from eagle3lab.features import lock
from tests.draft.samples import make_draft, make_row
from tests.draft.test_train import training, weights_of

ROOT = Path(__file__).parents[2]
RECIPE = Recipe(ttt_steps=2, epochs=8, batch_tokens=40, compute_dtype="float32", lr=1e-2, head_lr=1e-2)


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_the_newest_checkpoints_stay(tmp_path, head):
    trainer, _ = training(tmp_path, head)
    list(trainer.run(checkpoint_every=1, keep=3))
    last = trainer.total_steps
    assert last > 4 and names(tmp_path / "state") == [f"step-{step:06d}" for step in (last - 2, last - 1, last)]


def test_checkpoints_are_ordered_by_number(tmp_path):
    for name in (
        "step-999999",
        "step-1000000",
        "step-000007",
        ".step-000008.1-a.tmp",
        "best-000005",
        "diverged-step-1",
    ):
        (tmp_path / name).mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000007", "step-999999", "step-1000000"]


def simulated_by_hand(lengths):
    """A stand-in for the simulation that answers with these accept lengths in turn."""
    values = iter(lengths)
    return lambda draft, rows, num_steps: (100 * next(values), 100)


def test_the_best_by_heldout_accept_length_is_kept(tmp_path, head, monkeypatch):
    monkeypatch.setattr(train, "simulated_commits", simulated_by_hand([1.2, 1.5, 1.4, 1.5, 1.3, 1.1, 1.1, 1.1]))
    rows = {f"r{i}": make_row(i, 12, [(3, 12)]) for i in range(12)}
    lengths = dict.fromkeys(rows, 12)
    draft = make_draft()
    trainer = Trainer(draft, lengths, rows.__getitem__, head, RECIPE, tmp_path, heldout=["r1", "r3"])
    seen, weights = [], {}
    for row in trainer.run(log_every=100, evaluate_every=4):
        seen.append((row["step"], row["heldout_accept_length"], row["best_accept_length"]))
        weights[row["step"]] = weights_of(draft)
    assert seen[:5] == [(4, 1.2, 1.2), (8, 1.5, 1.5), (12, 1.4, 1.5), (16, 1.5, 1.5), (20, 1.3, 1.5)]
    assert [name for name in names(tmp_path) if name.startswith("best")] == ["best-000008"]
    assert load_best(tmp_path, draft) == {"step": 8, "accept_length": 1.5}
    assert all(torch.equal(weights_of(draft)[name], kept) for name, kept in weights[8].items())


def test_evaluation_does_not_touch_the_training(tmp_path, head):
    watched_rows = {f"r{i}": make_row(i, 12, [(3, 12)]) for i in range(12)}
    lengths, drafts = dict.fromkeys(watched_rows, 12), []
    for name, heldout in (("watched", ["r1", "r3"]), ("plain", ())):
        drafts.append(make_draft())
        trainer = Trainer(drafts[-1], lengths, watched_rows.__getitem__, head, RECIPE, tmp_path / name, heldout=heldout)
        last = list(trainer.run(evaluate_every=5, num_steps=3))[-1]
        assert ("heldout_accept_length" in last) == bool(heldout)
    assert all(torch.equal(a, b) for a, b in zip(drafts[0].parameters(), drafts[1].parameters(), strict=True))


def test_heldout_rows_without_an_answer_are_refused(tmp_path, head):
    rows = {"r0": make_row(0, 12, [(3, 12)]), "short": make_row(1, 12, [(11, 12)])}
    trainer = Trainer(make_draft(), {"r0": 12}, rows.__getitem__, head, RECIPE, tmp_path, heldout=["short"])
    with pytest.raises(ValueError, match="no held-out row has an answer of two tokens"):
        list(trainer.run(evaluate_every=1))


def test_no_best_weights_say_what_to_do(tmp_path, head):
    with pytest.raises(StateError, match="evaluate_every"):
        load_best(tmp_path, make_draft())


@pytest.mark.parametrize(
    "change, message",
    [
        ({"hidden_size": 12}, "draft.hidden_size: the checkpoint has 16, this training 12"),
        ({"fc_norm": True}, "draft.fc_norm: the checkpoint has False, this training True"),
    ],
)
def test_a_checkpoint_of_another_draft_shape_is_refused(tmp_path, head, change, message):
    rows = {f"r{i}": make_row(i, 12, [(3, 12)]) for i in range(6)}
    arguments = dict.fromkeys(rows, 12), rows.__getitem__, head, RECIPE, tmp_path
    list(Trainer(make_draft(), *arguments).run())
    with pytest.raises(StateError, match=message):
        Trainer(make_draft(**change), *arguments)


def test_other_rows_or_parameters_are_named(tmp_path, head):
    rows = {f"r{i}": make_row(i, 12, [(3, 12)]) for i in range(6)}
    list(Trainer(make_draft(), dict.fromkeys(rows, 12), rows.__getitem__, head, RECIPE, tmp_path).run())
    lower = dataclasses.replace(RECIPE, lr=1e-3, step_weights=[1, 2])
    with pytest.raises(
        StateError, match="recipe.step_weights: .* None, .*\n  recipe.lr: .* has 0.01, this training 0.001"
    ):
        Trainer(make_draft(), dict.fromkeys(rows, 12), rows.__getitem__, head, lower, tmp_path)
    # as many rows, but others: the order of training differs
    others = {f"x{i}": row for i, row in enumerate(rows.values())}
    with pytest.raises(StateError, match="order: the checkpoint has"):
        Trainer(make_draft(), dict.fromkeys(others, 12), others.__getitem__, head, RECIPE, tmp_path)


def test_a_damaged_checkpoint_is_named(tmp_path, head):
    trainer, _ = training(tmp_path, head)
    list(trainer.run(checkpoint_every=2))
    newest = checkpoints(tmp_path / "state")[-1]
    (newest / "state.safetensors").write_bytes(b"half")
    with pytest.raises(StateError, match=f"{newest.name}/state.safetensors is damaged: .* to go on from step-"):
        training(tmp_path, head)
    shutil.rmtree(newest)
    again, _ = training(tmp_path, head)
    assert 0 < again.step < trainer.step


HOLD = """
import sys
from pathlib import Path
from eagle3lab.features import lock
print(lock.take(Path(sys.argv[1])), flush=True)
input()
"""


def test_two_trainings_do_not_share_a_folder(tmp_path, head):
    trainer, _ = training(tmp_path, head)
    command = [sys.executable, "-c", HOLD, str(tmp_path / "state" / ".lock")]
    other = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "True\n"
        with pytest.raises(RuntimeError, match="another process trains in"):
            next(trainer.run())
    finally:
        other.communicate("\n")
    list(trainer.run())
    assert not lock._HELD


def long_training(folder):
    """Many tiny steps with a checkpoint and an evaluation at each: most of the time goes into writing."""
    rows = {f"r{i}": make_row(i, 12, [(3, 12)]) for i in range(12)}
    head = torch.randn(40, 16, generator=torch.Generator().manual_seed(9))
    draft = make_draft()
    recipe = dataclasses.replace(RECIPE, epochs=12)
    return Trainer(draft, dict.fromkeys(rows, 12), rows.__getitem__, head, recipe, folder, heldout=["r1"]), draft


@pytest.mark.slow
def test_kill_9_loses_at_most_the_steps_since_the_checkpoint(tmp_path):
    whole, expected = long_training(tmp_path / "whole")
    list(whole.run(checkpoint_every=1, log_every=1, evaluate_every=1))
    chance, step, kills = random.Random(1), 0, 0
    for _ in range(2):
        command = [sys.executable, "-m", "tests.draft.test_state", str(tmp_path / "cut")]
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        first = int(child.stdout.readline() or whole.total_steps)
        assert first > step or step == whole.total_steps
        time.sleep(chance.uniform(0.0, 0.1))
        child.send_signal(signal.SIGKILL)
        told = [first, *map(int, child.stdout.read().split())]
        kills += child.wait() == -signal.SIGKILL
        child.stdout.close()
        found = [int(path.name.removeprefix("step-")) for path in checkpoints(tmp_path / "cut")]
        assert found and found[-1] >= told[-1]  # a step that was told is on disk
        assert load_best(tmp_path / "cut", make_draft())["step"] <= found[-1] + 1
        step = found[-1]
    assert kills >= 1
    trainer, draft = long_training(tmp_path / "cut")
    assert trainer.step == step
    list(trainer.run(checkpoint_every=1, evaluate_every=1))
    assert all(torch.equal(a, b) for a, b in zip(draft.parameters(), expected.parameters(), strict=True))
    assert names(tmp_path / "cut") == names(tmp_path / "whole")
    best = [make_draft(), make_draft()]
    assert load_best(tmp_path / "cut", best[0]) == load_best(tmp_path / "whole", best[1])
    assert all(torch.equal(a, b) for a, b in zip(best[0].parameters(), best[1].parameters(), strict=True))


def test_state_json_tells_step_and_progress(tmp_path, head):
    trainer, _ = training(tmp_path, head)
    rows = list(trainer.run(log_every=1))
    state = json.loads((checkpoints(tmp_path / "state")[-1] / "state.json").read_text())
    assert state["step"] == trainer.total_steps and state["progress"]["tokens_seen"] == rows[-1]["tokens_seen"]


if __name__ == "__main__":
    for row in long_training(Path(sys.argv[1]))[0].run(checkpoint_every=1, log_every=1, evaluate_every=1):
        print(row["step"], flush=True)
