"""Training: learning happens, resuming is bit-equal, accumulation is exact, divergence is stopped."""

import dataclasses
import json
import threading
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from eagle3lab.draft import train
from eagle3lab.draft.diverged import TrainingDiverged
from eagle3lab.draft.order import micro_batches, training_plan
from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.state import StateError
from eagle3lab.draft.train import Trainer
from tests.draft.samples import V, make_draft, make_row

RECIPE = Recipe(ttt_steps=3, epochs=2, batch_tokens=40, compute_dtype="float32", lr=1e-2, head_lr=1e-2)


def training(tmp_path, head, recipe=RECIPE, name="state", rows=None):
    rows = rows or {f"r{i}": make_row(i, 6 + i % 9, [(2, 6 + i % 9)]) for i in range(12)}
    lengths = {key: row.input_ids_T.shape[0] for key, row in rows.items()}
    draft = make_draft()
    return Trainer(draft, lengths, rows.__getitem__, head, recipe, tmp_path / name), draft


def weights_of(draft):
    return {name: p.detach().clone() for name, p in draft.named_parameters()}


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_resume_is_bit_equal(tmp_path, head, optimizer, dtype):
    recipe = dataclasses.replace(RECIPE, optimizer=optimizer, compute_dtype=dtype)
    whole, draft_whole = training(tmp_path, head, recipe, "whole")
    list(whole.run(checkpoint_every=3))
    cut, _ = training(tmp_path, head, recipe, "cut")
    for row in cut.run(checkpoint_every=3, log_every=1):
        if row["step"] == 5:  # two steps after the checkpoint: they are lost and done again
            break
    again, draft_again = training(tmp_path, head, recipe, "cut")
    assert again.step == 3
    list(again.run(checkpoint_every=3))
    for name, expected in weights_of(draft_whole).items():
        assert torch.equal(weights_of(draft_again)[name], expected), name


def test_finished_training_does_nothing_more(tmp_path, head):
    first, draft = training(tmp_path, head)
    list(first.run())
    again, draft_again = training(tmp_path, head)
    assert list(again.run()) == []
    assert all(torch.equal(a, b) for a, b in zip(draft.parameters(), draft_again.parameters(), strict=True))


def test_reading_ahead_changes_nothing(tmp_path, head):
    recipe, rows = dataclasses.replace(RECIPE, accumulate=2), {f"r{i}": make_row(i, 12, [(2, 12)]) for i in range(12)}
    ends = []
    for ahead in (0, 1, 3):
        draft, arguments = make_draft(), (dict.fromkeys(rows, 12), rows.__getitem__, head, recipe)
        trainer = Trainer(draft, *arguments, tmp_path / str(ahead), ahead=ahead)
        ends.append(([row["loss"] for row in trainer.run(log_every=1)], weights_of(draft)))
    for losses, weights in ends[1:]:
        assert losses == ends[0][0] and all(torch.equal(weights[name], p) for name, p in ends[0][1].items())


def test_only_one_step_is_read_ahead_in_another_thread(tmp_path, head):
    """What is in memory does not depend on how many rows there are."""
    rows = {f"r{i}": make_row(i, 6 + i % 9, [(2, 6 + i % 9)]) for i in range(60)}
    lengths, read, threads = {key: len(row.input_ids_T) for key, row in rows.items()}, [], set()

    def read_row(row_id):
        read.append(row_id)
        threads.add(threading.current_thread().name)
        return rows[row_id]

    trainer = Trainer(make_draft(), lengths, read_row, head, RECIPE, tmp_path)
    needed = [sum(map(len, step)) for step in trainer.plan]
    for row in trainer.run(log_every=1):
        done = row["step"]
        assert sum(needed[:done]) <= len(read) <= sum(needed[: done + 1])
    assert len(needed) > 20 and threading.main_thread().name not in threads
    assert not [thread for thread in threading.enumerate() if thread.name in threads]


def test_a_row_that_cannot_be_read_stops_the_training_where_it_is_due(tmp_path, head):
    rows = {f"r{i}": make_row(i, 10, [(2, 10)]) for i in range(12)}
    order = Trainer(make_draft(), dict.fromkeys(rows, 10), rows.__getitem__, head, RECIPE, tmp_path / "order").plan
    bad = order[2][0][0]

    def read_row(row_id):
        if row_id == bad:
            raise OSError("the disk is gone")
        return rows[row_id]

    trainer = Trainer(make_draft(), dict.fromkeys(rows, 10), read_row, head, RECIPE, tmp_path / "bad")
    with pytest.raises(OSError, match="the disk is gone"):
        list(trainer.run())
    assert trainer.step == 2


def test_accumulated_micro_batches_equal_one_large_batch(tmp_path, head):
    """12 rows in one batch, or in several: the same gradient, because denominators are counted over the whole step."""
    large = dataclasses.replace(RECIPE, epochs=1, batch_tokens=10_000)
    small = dataclasses.replace(RECIPE, epochs=1, batch_tokens=30, accumulate=100)
    one, _ = training(tmp_path, head, large, "one")
    many, _ = training(tmp_path, head, small, "many")
    assert one.total_steps == many.total_steps == 1 and len(many.plan[0]) > 3
    row_one, row_many = list(one.run())[-1], list(many.run())[-1]
    assert row_one["loss"] == pytest.approx(row_many["loss"], rel=1e-5)
    assert row_one["grad_norm"] == pytest.approx(row_many["grad_norm"], rel=1e-4)
    assert row_one["acceptance"] == pytest.approx(row_many["acceptance"])


def test_an_overfit_drafter_predicts_its_rows(tmp_path, head):
    rows = {f"r{i}": make_row(i, 12, [(3, 12)]) for i in range(2)}
    for row in rows.values():  # the teacher is sure of the next token, as a target that wrote the row would be
        row.input_ids_T = make_draft().target_ids_W[row.input_ids_T % 17]
        row.last_MH = 8 * torch.nn.functional.normalize(head, dim=-1)[row.input_ids_T[row.last_slots + 1]]
    recipe = dataclasses.replace(RECIPE, epochs=150)
    trainer, _ = training(tmp_path, head, recipe, rows=rows)
    history = list(trainer.run(log_every=50))
    assert history[-1]["acceptance"] == [1.0, 1.0, 1.0]
    assert history[-1]["loss"] < history[0]["loss"]


def test_another_recipe_does_not_continue_a_checkpoint(tmp_path, head):
    trainer, _ = training(tmp_path, head)
    list(trainer.run())
    with pytest.raises(StateError, match="recipe"):
        training(tmp_path, head, dataclasses.replace(RECIPE, lr=5e-3))


def test_nan_features_stop_the_training_and_keep_the_batch(tmp_path, head):
    rows = {f"r{i}": make_row(i, 10, [(2, 10)]) for i in range(4)}
    rows["r2"].aux_TAH[4, 1, 3] = float("nan")
    trainer, draft = training(tmp_path, head, rows=rows)
    before = weights_of(draft)
    with pytest.raises(TrainingDiverged, match="r2/aux_TAH.*Lower lr"):
        list(trainer.run())
    assert trainer.step == 0 and all(torch.equal(before[n], p) for n, p in weights_of(draft).items())
    assert all(parameter.grad is None for parameter in draft.parameters())
    kept = load_file(tmp_path / "state" / "diverged-step-000000" / "batch.safetensors")
    report = json.loads((tmp_path / "state" / "diverged-step-000000" / "report.json").read_text())
    assert report["not_finite"] == {"r2/aux_TAH": 1} and "r2" in report["rows"]
    for row_id in report["rows"]:
        assert torch.equal(kept[f"{row_id}/input_ids_T"], rows[row_id].input_ids_T)
        assert torch.equal(kept[f"{row_id}/last_MH"], rows[row_id].last_MH)


def test_an_exploding_loss_stops_the_training(tmp_path, head):
    recipe = dataclasses.replace(RECIPE, explode_factor=1.5, epochs=20, optimizer="adamw", lr=3.0, head_lr=3.0)
    trainer, draft = training(tmp_path, head, recipe)
    with pytest.raises(
        TrainingDiverged, match="explode_factor=1.5 times the first one.*features of the batch are finite"
    ):
        for row in trainer.run(log_every=1):
            before, first = weights_of(draft), trainer.progress["first_loss"]
            assert row["loss"] <= 1.5 * first
    assert all(torch.equal(before[n], p) for n, p in weights_of(draft).items())  # the bad step was not applied
    assert 0 < trainer.step < trainer.total_steps
    unwatched, _ = training(tmp_path, head, dataclasses.replace(recipe, explode_factor=None), "unwatched")
    assert max(row["loss"] for row in unwatched.run(log_every=1)) > 1.5 * first


def test_the_first_loss_is_remembered_over_a_restart(tmp_path, head):
    trainer, _ = training(tmp_path, head)
    for row in trainer.run(checkpoint_every=2, log_every=1):
        if row["step"] == 3:
            break
    again, _ = training(tmp_path, head)
    assert again.step == 2 and again.progress["first_loss"] == trainer.progress["first_loss"]


def test_tokens_seen_go_on_over_a_restart(tmp_path, head):
    trainer, _ = training(tmp_path, head)
    for first in trainer.run(checkpoint_every=1, log_every=1):
        if first["step"] == 2:
            break
    again, _ = training(tmp_path, head)
    rows = list(again.run(log_every=1))
    assert rows[0]["tokens_seen"] == first["tokens_seen"] + rows[0]["tokens"]
    # a row of n tokens has slots 0 .. n-3 with a token to predict; 12 rows of 6 + i % 9 tokens, two epochs
    assert rows[-1]["tokens_seen"] == 2 * sum(6 + i % 9 - 2 for i in range(12))


def test_speed_and_time_left_by_hand(tmp_path, head, monkeypatch):
    """A training that goes on after two steps. A step takes 2 s, the fifth and sixth take 6 s; a measurement of the
    held-out rows, 100 s."""
    recipe = dataclasses.replace(RECIPE, epochs=1, batch_tokens=16)
    next(training(tmp_path, head, recipe)[0].run(checkpoint_every=1, log_every=2))
    trainer, _ = training(tmp_path, head, recipe)
    assert trainer.step == 2 and trainer.total_steps > 8
    trainer.heldout = ["r0"]
    now, optimize, evaluate = [1000.0], trainer._optimize, trainer._evaluate

    def step(*args, **options):
        now[0] += 6 if trainer.step in (4, 5) else 2
        return optimize(*args, **options)

    def measurement(*args):
        now[0] += 100
        return evaluate(*args)

    monkeypatch.setattr(train, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(trainer, "_optimize", step)
    monkeypatch.setattr(trainer, "_evaluate", measurement)
    rows = {row["step"]: row for row in trainer.run(log_every=2, evaluate_every=6)}
    read = [rows[step]["tokens"] for step in (4, 6, 8)]
    assert rows[4]["tokens_per_second"] == pytest.approx(read[0] / 4)
    assert rows[6]["tokens_per_second"] == pytest.approx((read[1] - read[0]) / 12)
    assert rows[8]["tokens_per_second"] == pytest.approx((read[2] - read[1]) / 4)  # without the 100 s
    assert [rows[step]["seconds"] for step in (4, 6, 8)] == [4, 116, 120]  # of this process, as on the wall
    total = trainer.total_steps
    assert rows[4]["seconds_left"] == pytest.approx(4 / 2 * (total - 4))
    assert rows[6]["seconds_left"] == pytest.approx(116 / 4 * (total - 6)) and rows[total]["seconds_left"] == 0


def test_every_row_is_trained_once_an_epoch():
    lengths = {f"r{i}": 5 + (7 * i) % 50 for i in range(101)}
    plan = training_plan(lengths, 128, 3, 2, seed=4)
    per_epoch = len(plan) // 2
    for epoch in (plan[:per_epoch], plan[per_epoch:]):
        assert sorted(i for step in epoch for batch in step for i in batch) == sorted(lengths)
    assert plan[:per_epoch] != plan[per_epoch:]
    assert plan == training_plan(dict(reversed(lengths.items())), 128, 3, 2, seed=4)
    for batch in micro_batches(lengths, 128, 0):
        assert len(batch) * max(lengths[i] for i in batch) <= 128


def test_vocabulary_size_is_that_of_the_fixture():
    assert make_draft().config.vocab_size == V
