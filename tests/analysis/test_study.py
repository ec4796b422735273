"""What a scaling study trains, on a tiny store: nested subsets, other seeds, other sizes, and runs that are there."""

import json
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
import torch

from eagle3lab.analysis import study
from eagle3lab.draft.checkpoint import export_draft, load_draft, read_draft_config
from eagle3lab.draft.config import FREE, DraftConfig
from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.target_weights import read_target_weights
from eagle3lab.draft.train_job import TrainJob
from eagle3lab.draft.vocab import VocabMap
from eagle3lab.features.store import FeatureStore, FeatureWriter
from eagle3lab.workbench.constraints import VARIED, violations
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


@pytest.mark.parametrize("width", [16, 48])
def test_the_width_of_the_drafter_is_varied_with_an_embedding_of_its_own(job, store, full, width):
    whole = study.finished(full, "t", "hidden_size")
    assert whole.amount == HIDDEN
    (one,) = study.planned(whole, job, store, "hidden_size", [float(width)], [0], "s")
    list(one.job.run(trainer := one.job.trainer()))
    study.export(one, trainer.draft, "tiny")
    draft = load_draft(one.draft, read_target_weights(job.target).embed_VH)
    assert (draft.config.hidden_size, draft.embed_VH.shape, draft.fc.out_features) == (width, (VOCAB, width), width)
    again = study.finished(one.draft, "s", "hidden_size")
    assert (again.amount, again.rows) == (width, ROWS)
    study.check_same_recipe(again, whole, "hidden_size")
    with pytest.raises(ValueError, match=rf"s differs .* not in rows alone, but in hidden_size \({HIDDEN}, {width}\)"):
        study.check_same_recipe(again, whole, "rows")


def test_a_draft_vocabulary_is_varied_by_finished_runs_only(job, store, full):
    whole = study.finished(full, "t", "draft_vocab_size")
    assert whole.amount == VOCAB // 2
    with pytest.raises(ValueError, match="vary='draft_vocab_size'.*share one vocabulary map.*collect_runs.*amounts = "):
        study.planned(whole, job, store, "draft_vocab_size", [8], [0], "s")
    (told,) = violations({"vary": "draft_vocab_size", "amounts": [8.0]})
    assert "collect_runs" in told
    assert violations({"vary": "draft_vocab_size", "amounts": []}) == []


def test_what_can_be_varied_is_known_before_anything_runs(job, store, full):
    """The numbers of the recipe (its seed apart) and of the sizes that a drafter is free in, by their types."""
    numbers = (int, float, int | None, float | None)
    expected = {field.name for field in fields(Recipe) if field.type in numbers} - {"seed"}
    expected |= {field.name for field in fields(DraftConfig) if field.name in FREE and field.type in numbers}
    assert set(VARIED) == expected | {"rows", "tokens"} and len(VARIED) == len(set(VARIED))
    less_usual = {"warmup_share": 0.5, "explode_factor": 2.0}  # 1.0 is outside the range of these
    for name in VARIED:
        assert violations({"vary": name, "amounts": [less_usual.get(name, 1.0)]}) == []
    (told,) = violations({"vary": "colour", "amounts": []})
    assert told.startswith("vary = 'colour': is nothing that a study can vary: rows, tokens, ttt_steps, ")
    for name in ("seed", "vocab_size"):
        assert violations({"vary": name})
        with pytest.raises(ValueError, match=f"vary='{name}' is neither"):
            study.planned(study.finished(full, "t", name), job, store, name, [2], [0], "s")


@pytest.fixture(scope="module")
def study_run(job, store, full, tmp_path_factory):
    """A finished study as 07 leaves it: the full training's point, and two drafters of its own."""
    folder = tmp_path_factory.mktemp("runs") / "scaling-1"
    here = replace(job, folder=folder / study.TRAININGS)
    whole = study.finished(full, "training-1", "rows")
    own = study.planned(whole, here, store, "rows", [5, 10], [0], "scaling-1")
    for one in own:
        one.job.folder.mkdir(parents=True)
        study.export(one, one.job.trainer().draft, "tiny")
    (folder / "curve.json").write_text(json.dumps({"vary": "rows", "points": [one.key for one in (whole, *own)]}))
    return SimpleNamespace(stage="scaling", id="scaling-1", folder=folder, artefact=lambda key: folder / f"{key}.json")


def test_a_finished_study_gives_the_drafters_it_trained_itself(study_run, full):
    found = study.collected(study_run, "rows")
    assert [(one.amount, one.rows, one.seed, one.source, one.job) for one in found] == [
        (5, 5, 0, "scaling-1", None), (10, 10, 0, "scaling-1", None),
    ]  # fmt: skip
    assert len({one.draft for one in found}) == 2 and all(read_draft_config(one.draft) for one in found)
    assert [one.amount for one in study.collected(study_run, "epochs")] == [2, 2]  # for a study of something else
    training = SimpleNamespace(stage="training", id="t-2", artefact=lambda key: {"draft": full}[key])
    assert [(one.source, one.amount) for one in study.collected(training, "rows")] == [("t-2", ROWS)]


def test_the_same_training_of_two_studies_is_one_point(study_run, job, store, full):
    small, middle = study.collected(study_run, "rows")
    here = study.planned(study.finished(full, "t", "rows"), job, store, "rows", [10, 15], [0], "scaling-2")
    assert (small.among(here), middle.among(here)) == (False, True)
    other_seed = study.planned(study.finished(full, "t", "rows"), job, store, "rows", [10], [1], "scaling-2")
    assert not middle.among(other_seed)


def test_a_study_without_drafters_is_refused_by_name(study_run, tmp_path):
    (tmp_path / "curve.json").write_text((study_run.folder / "curve.json").read_text())
    gone = SimpleNamespace(
        stage="scaling", id="scaling-1", folder=tmp_path, artefact=lambda key: tmp_path / f"{key}.json"
    )
    with pytest.raises(ValueError, match="scaling-1: its drafter .*rows-5-seed-0.* is gone: leave the run out"):
        study.collected(gone, "rows")
    gone.id = "scaling-2"  # that run only collected
    with pytest.raises(ValueError, match="scaling-2 trained no drafter itself: name the runs it collected"):
        study.collected(gone, "rows")


def test_drafters_of_another_recipe_are_no_points_of_one_curve(job, full, tmp_path):
    whole = study.finished(full, "training-1", "rows")
    told = json.loads((full / "training.json").read_text())
    told["recipe"] |= {"seed": 7, "explode_factor": None}
    (tmp_path / "training.json").write_text(json.dumps(told))
    other = study.finished(tmp_path, "other-run", "rows")
    study.check_same_recipe(other, whole, "rows")  # luck and guards
    told["recipe"] |= {"lr": 0.5, "epochs": 9}
    (tmp_path / "training.json").write_text(json.dumps(told))
    with pytest.raises(ValueError, match=r"other-run differs .* training-1 .*epochs \(2, 9\), lr \(0.003, 0.5\)"):
        study.check_same_recipe(other, whole, "rows")
    with pytest.raises(ValueError, match=r"not in lr alone, but in epochs \(2, 9\): leave it out"):
        study.check_same_recipe(other, whole, "lr")


def test_a_drafter_that_knows_the_held_out_answers_is_refused(store, full):
    one = study.finished(full, "other-run", "rows")
    study.check_comparable(one, store, store, ["r20", "r21", "elsewhere"])
    with pytest.raises(ValueError, match=r"other-run was trained on 2 of the held-out answers \(r3\)"):
        study.check_comparable(one, store, store, ["r3", "r7", "r20"])
    with pytest.raises(ValueError, match=r"other-run reads aux_layers \[2, 4, 5\], this study captures \[1, 2, 3\]"):
        here = SimpleNamespace(fingerprint=store.fingerprint, aux_layers=[1, 2, 3])
        study.check_comparable(one, store, here, ["r20"])
    with pytest.raises(ValueError, match="other-run was trained for another target"):
        here = SimpleNamespace(fingerprint={**store.fingerprint, "target": "b"}, aux_layers=[2, 4, 5])
        study.check_comparable(one, store, here, ["r20"])


def test_what_a_drafter_does_not_tell_is_said(full, tmp_path):
    told = json.loads((full / "training.json").read_text())
    del told["rows"]
    (tmp_path / "training.json").write_text(json.dumps(told))
    with pytest.raises(ValueError, match="run-7 has no such number"):
        study.finished(tmp_path, "run-7", "rows")
