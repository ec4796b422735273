"""What a scaling study trains, on a tiny store: nested subsets, other seeds, other sizes, and runs that are there."""

import json

import pytest
import torch

from eagle3lab.analysis import study
from eagle3lab.draft.checkpoint import export_draft, load_draft, read_draft_config
from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.target_weights import read_target_weights
from eagle3lab.draft.train_job import TrainJob
from eagle3lab.draft.vocab import VocabMap
from eagle3lab.features.store import FeatureStore, FeatureWriter
from tests.tiny import HIDDEN, VOCAB, save_tiny_target

ROWS, RECIPE = 20, Recipe(ttt_steps=2, epochs=2, batch_tokens=60, compute_dtype="float32")


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Twenty training rows of two sets and two held-out ones, random states."""
    folder = tmp_path_factory.mktemp("study")
    writer = FeatureWriter(folder / "features", {"corpus": "abc"}, [2, 4, 5], HIDDEN)
    generator = torch.Generator().manual_seed(3)
    for i in range(ROWS + 2):
        n = 8 + i % 7
        ids = torch.randint(0, VOCAB, (n,), generator=generator).tolist()
        aux, last = torch.randn(n, 3, HIDDEN, generator=generator), torch.randn(n, HIDDEN, generator=generator)
        split, name = "train" if i < ROWS else "heldout", "even" if i % 2 == 0 else "odd"
        writer.add(f"r{i}", ids, [[3, n]], aux, last, split, name)
    writer.close()
    VocabMap(torch.arange(1, VOCAB, 2), VOCAB).save(folder / "map.safetensors", "abc")
    target = save_tiny_target(folder / "target")
    return TrainJob(target, folder / "features", folder / "map.safetensors", folder / "trainings", RECIPE)


@pytest.fixture(scope="module")
def full(job, tmp_path_factory):
    """The full training's drafter, untrained: what is read of it is its training.json."""
    rows = job.rows()
    told = {"rows": len(rows.row_ids), "slots_per_epoch": sum(rows.lengths.values()), "recipe": RECIPE.to_dict()}
    return export_draft(job.trainer().draft, tmp_path_factory.mktemp("full") / "draft", told)


@pytest.fixture(scope="module")
def store(job):
    return FeatureStore(job.features)


def test_subsets_are_nested_within_a_seed_and_the_full_training_is_not_repeated(job, store, full):
    whole = study.finished(full, "training-1", "rows")
    assert (whole.amount, whole.seed, whole.job) == (ROWS, 0, None)
    found = study.planned(whole, job, store, "rows", [5, 10], [0, 1], "scaling-1")
    assert [(one.amount, one.seed, one.rows) for one in found] == [
        (5, 0, 5), (10, 0, 10), (5, 1, 5), (10, 1, 10), (ROWS, 1, ROWS),
    ]  # fmt: skip
    small, middle, other = (set(one.job.row_ids) for one in found[:3])
    assert small < middle and other != small
    assert {one.job.recipe.seed for one in found[2:]} == {1}
    sets = [store.index(row_id)["set"] for row_id in middle]
    assert sets.count("even") == sets.count("odd") == 5
    assert len({one.draft for one in found}) == 5 and len({one.job.folder for one in found}) == 5
    with pytest.raises(ValueError, match=f"amounts: 50 rows are more than the {ROWS} of the full training"):
        study.planned(whole, job, store, "rows", [50], [0], "s")
    with pytest.raises(ValueError, match="2.5 rows"):
        study.planned(whole, job, store, "rows", [2.5], [0], "s")


def test_tokens_are_as_many_rows_as_fit(job, store, full):
    whole = study.finished(full, "training-1", "tokens")
    assert whole.amount == sum(8 + i % 7 for i in range(ROWS))
    small, middle = study.planned(whole, job, store, "tokens", [40, 100], [0], "scaling-1")
    assert set(small.job.row_ids) < set(middle.job.row_ids)
    for one in (small, middle):
        assert one.amount - 14 < one.slots <= one.amount
    with pytest.raises(ValueError, match="amounts: 10,000 tokens are more than the"):
        study.planned(whole, job, store, "tokens", [10_000], [0], "s")


def test_a_number_of_the_recipe_or_of_the_drafter_is_varied_on_all_rows(job, store, full):
    epochs = study.planned(study.finished(full, "t", "epochs"), job, store, "epochs", [1.0], [0], "s")
    assert [(one.job.recipe.epochs, type(one.job.recipe.epochs), one.rows) for one in epochs] == [(1, int, ROWS)]
    width = study.finished(full, "t", "intermediate_size")
    assert width.amount == 64  # the target's own
    (narrow,) = study.planned(width, job, store, "intermediate_size", [24.0], [0], "s")
    list(narrow.job.run(trainer := narrow.job.trainer()))
    study.export(narrow, trainer.draft, "tiny")
    assert read_draft_config(narrow.draft).intermediate_size == 24
    assert not narrow.job.folder.exists()
    again = study.finished(narrow.draft, "s", "intermediate_size")
    assert (again.amount, again.rows, again.slots) == (24, narrow.rows, narrow.slots)
    embed_VH = read_target_weights(job.target).embed_VH
    assert load_draft(narrow.draft, embed_VH).config.intermediate_size == 24
    with pytest.raises(ValueError, match="vary='colour'.*batch_tokens"):
        study.finished(full, "training-1", "colour")
    with pytest.raises(ValueError, match="vary='drop_oov'"):
        study.finished(full, "training-1", "drop_oov")


def test_a_drafter_that_knows_the_held_out_answers_is_refused(store, full):
    one = study.finished(full, "other-run", "rows")
    study.check_comparable(one, store, [2, 4, 5], ["r20", "r21", "elsewhere"])
    with pytest.raises(ValueError, match=r"other-run was trained on 2 of the held-out answers \(r3\)"):
        study.check_comparable(one, store, [2, 4, 5], ["r3", "r7", "r20"])
    with pytest.raises(ValueError, match="reads aux_layers"):
        study.check_comparable(one, store, [1, 2, 3], ["r20"])


def test_what_a_drafter_does_not_tell_is_said(full, tmp_path):
    told = json.loads((full / "training.json").read_text())
    del told["rows"]
    (tmp_path / "training.json").write_text(json.dumps(told))
    with pytest.raises(ValueError, match="run-7 has no such number"):
        study.finished(tmp_path, "run-7", "rows")
