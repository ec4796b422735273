"""Which upstream runs a stage takes when there are several, without a kernel."""

import shutil

import pytest

from eagle3lab.workbench.lineage import UpstreamError, ancestors, finished_run
from eagle3lab.workbench.opening import open_run
from eagle3lab.workbench.params import ParameterError
from eagle3lab.workbench.plan import plan
from eagle3lab.workbench.records import read_record
from eagle3lab.workbench.stages import STAGES

BELOW = ("extraction", "training", "diagnostics", "serving", "scaling")


@pytest.fixture
def lab(lab):
    """The lab with all stages down to scaling; extraction and training have a parameter."""
    params = {"extraction": "shard: int = 8  # size\n", "training": "lr: float = 0.1  # rate\n"}
    for stage in BELOW:
        lab.notebook(stage, params.get(stage, ""))
    return lab


DEFAULTS = {
    "data_prep": {"words": 4, "lr": 1e-3, "suite": None},
    "inference": {"times": 2},
    "extraction": {"shard": 8},
    "training": {"lr": 0.1},
}


def opened(stage, **values):
    """The run of a stage as its notebook would open it."""
    latest = {f"{name}_run": "latest" for name in STAGES[stage].needs}
    space = {"profile": "tiny", "runs_dir": "runs", **latest, **DEFAULTS.get(stage, {}), **values}
    return open_run(stage, space)


def made(stage, **values):
    """Id of a finished run of a stage."""
    run = opened(stage, **values)
    for key in STAGES[stage].makes:
        run.path(key).write_text(run.id)
        run.add(key, key, "data")
    run.finish()
    return run.id


def made_to_training(**values):
    """Ids of an inference, extraction and training run, each made from the one before."""
    inference = made("inference", **values)
    extraction = made("extraction", inference_run=inference)
    return inference, extraction, made("training", extraction_run=extraction)


def read(run):
    return {name: run.upstream(name).id for name in STAGES[run.stage].needs}


def test_ancestors_are_walked_through_the_records(lab):
    prepared = made("data_prep")
    inference, extraction, training = made_to_training()
    runs = lab.root / "runs"
    everything = {"extraction": extraction, "inference": inference, "data_prep": prepared}
    assert ancestors(read_record(runs / training), runs) == everything
    shutil.rmtree(runs / extraction)
    assert ancestors(read_record(runs / training), runs) == {"extraction": extraction}


def test_latest_means_the_ancestor_of_the_later_stage(lab):
    made("data_prep")
    inference, extraction, training = made_to_training()
    newer = made("inference", times=9)
    assert read(opened("extraction"))["inference"] == newer  # one need: simply the newest
    assert read(opened("diagnostics")) == {"training": training, "inference": inference}
    [row] = plan("tiny", stages=["diagnostics"])
    assert {name: run.id for name, run in row.upstream.items()} == {"training": training, "inference": inference}
    assert opened("diagnostics").id == row.run_id  # the kernel and the plan agree

    serving = made("serving")
    _, _, newest_training = made_to_training(times=9)
    assert read(opened("diagnostics"))["training"] == newest_training
    # scaling needs a serving run, and there is one for the first training alone
    assert read(opened("scaling")) == {
        "training": training, "extraction": extraction, "inference": inference, "serving": serving,
    }  # fmt: skip
    served = made("serving", training_run=newest_training)
    made("serving", training_run=training)  # the older training served last
    assert read(opened("scaling", training_run=newest_training))["serving"] == served


def test_a_run_named_by_id_picks_what_was_made_from_it(lab):
    made("data_prep")
    first, second = made_to_training(), made_to_training(times=9)
    run = opened("diagnostics", inference_run=first[0])
    assert read(run) == {"training": first[2], "inference": first[0]}
    assert read(opened("diagnostics"))["inference"] == second[0]
    # by "latest" or by name, the same set is the same run
    assert opened("diagnostics", inference_run=first[0], training_run=first[2]).id == run.id


@pytest.mark.parametrize("way", ["kernel", "plan"])
def test_runs_that_do_not_belong_together_are_refused(lab, way):
    made("data_prep")
    inference, extraction, training = made_to_training()
    other, other_extraction, other_training = made_to_training(times=9)
    serving = made("serving", training_run=training)

    def refused(stage, **chosen):
        with pytest.raises(UpstreamError) as caught:
            opened(stage, **chosen) if way == "kernel" else plan("tiny", chosen, [stage])
        return str(caught.value)

    assert refused("diagnostics", training_run=training, inference_run=other) == (
        f"diagnostics cannot mix runs: {training} was made from {inference}, not from {other}; "
        f"set inference_run to {inference}, or training_run to a run made from {other}"
    )
    text = refused("scaling", training_run=other_training)  # nothing was served with it
    assert f"{serving} was made from {training}, not from {other_training}; set training_run to" in text
    text = refused("scaling", extraction_run=other_extraction, serving_run=serving)
    assert extraction in text and other_extraction in text and "extraction_run" in text


def test_an_ancestor_that_is_gone_is_named(lab):
    made("data_prep")
    inference, extraction, training = made_to_training()
    made("inference", times=9)
    shutil.rmtree(lab.root / "runs" / inference)
    with pytest.raises(UpstreamError, match=f"needs the run '{inference}' .inference_run., which is not in runs"):
        opened("diagnostics")
    shutil.rmtree(lab.root / "runs" / extraction)  # the walk ends here: nothing is known against the newest
    assert read(opened("diagnostics"))["training"] == training


def test_a_run_can_go_without_what_something_else_stands_in_for(lab):
    made("data_prep")
    inference, _, training = made_to_training()
    run = opened("diagnostics", training_run="none")
    with pytest.raises(KeyError, match='training_run is "none", and no parameter names what stands in place'):
        run.upstream("training")
    assert run.upstream("inference").id == inference
    whole = opened("diagnostics")
    assert read(whole) == {"training": training, "inference": inference} and whole.id != run.id
    [row] = plan("tiny", {"training_run": "none"}, ["diagnostics"])
    assert (row.run_id, set(row.upstream)) == (run.id, {"inference"}) and "training" not in row.ancestors
    shutil.rmtree(lab.root / "runs" / inference)
    [row] = plan("tiny", {"training_run": "none", "inference_run": "none"}, ["diagnostics"])
    assert row.upstream == {} and row.waits_for is None
    with pytest.raises(UpstreamError, match="serving needs the run 'none' .training_run."):
        plan("tiny", {"training_run": "none"}, ["serving"])


def test_a_plan_follows_runs_that_have_yet_to_be_made(lab):
    made("data_prep")
    inference, _, training = made_to_training()
    made_to_training(times=9)
    chain = ["inference", "extraction", "training", "diagnostics"]
    rows = {row.stage.name: row for row in plan("tiny", {"times": 3}, chain)}
    assert [row.run_id for row in rows.values()][1:] == ["after inference", "after extraction", "after training"]
    assert rows["diagnostics"].upstream == {}

    # the chain goes back to the first inference: everything below it is there
    rows = plan("tiny", {"times": 2}, chain[:3])
    assert [row.will_run for row in rows] == [False] * 3 and rows[2].run_id == training

    # a training that has yet to run, from an extraction that is known to come from another inference
    with pytest.raises(UpstreamError, match=f"was made from .*, not from {inference}; set inference_run"):
        plan("tiny", {"lr": 0.2, "inference_run": inference}, ["training", "diagnostics"])
    row = plan("tiny", {"lr": 0.2, "inference_run": inference}, ["extraction", "training", "diagnostics"])[2]
    assert row.run_id == "after training" and row.upstream["inference"].id == inference

    # a forced inference keeps its id but may write other bytes, so diagnostics wait for it
    row = plan("tiny", {"times": 9}, ["inference", "diagnostics"], force=True)[1]
    assert row.run_id == "after inference"


def test_unknown_names_of_runs_are_parameters_too(lab):
    made("data_prep")
    with pytest.raises(ParameterError, match="did you mean 'inference_run'"):
        plan("tiny", {"inferense_run": "latest"}, ["extraction"])


def test_another_manner_of_working_finds_the_same_run_and_goes_on_with_it(lab):
    lab.notebook("inference", "times: int = 2  # factor\nservers: list[str] = []  # where they are\n")
    made("data_prep")
    run_id = made("inference", servers=[])
    assert opened("inference", servers=["http://a:1"]).id == run_id

    def planned(**overrides):
        [row] = plan("tiny", overrides, ["inference"])
        return row.run_id == run_id, row.will_run, row.why

    assert planned() == (True, False, "unchanged")
    moved = "goes on in another manner: servers [] -> ['http://a:1']"
    assert planned(servers=["http://a:1"]) == (True, True, moved)
    assert planned(servers=["http://a:1"], times=5) == (False, True, "parameters changed: times 2 -> 5")
    assert opened("inference", servers=[], times=5).id != run_id


def test_a_finished_run_is_taken_of_any_stage_that_is_asked_for(lab):
    made("data_prep")
    _, extraction, training = made_to_training()
    runs = lab.root / "runs"
    found = finished_run(("training", "scaling"), training, runs)
    assert (found.stage, found.id, found.folder) == ("training", training, runs / training)
    with pytest.raises(UpstreamError, match=f"'{extraction}' must be a finished training or scaling run .*: it is"):
        finished_run(("training", "scaling"), extraction, runs)
    with pytest.raises(UpstreamError, match="'gone' must be a finished training run .*: there is none"):
        finished_run("training", "gone", runs)
