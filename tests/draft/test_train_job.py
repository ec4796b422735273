"""A job is the same training in one process and in two; and it ends when it is told to, or when nobody listens."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from eagle3lab.data.fingerprint import weights_digest
from eagle3lab.draft.diverged import TrainingDiverged
from eagle3lab.draft.engine_support import EngineError
from eagle3lab.draft.launch import JobFailed, launch, train
from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.state import load_best
from eagle3lab.draft.team import Team
from eagle3lab.draft.train import Trainer
from eagle3lab.draft.train_job import TrainJob
from eagle3lab.draft.vocab import VocabError, VocabMap
from eagle3lab.features.layout import FeatureStoreError
from eagle3lab.features.store import FeatureStore, FeatureWriter
from tests.draft.jobs import RECIPE
from tests.draft.samples import make_draft, make_row
from tests.tiny import HIDDEN, VOCAB, save_tiny_target

ROOT = Path(__file__).parents[2]


def numbers(row):
    return {name: value for name, value in row.items() if "second" not in name}


def test_a_job_is_what_its_file_says(job, tmp_path):
    job.save(tmp_path / "job.json")
    again = TrainJob.load(tmp_path / "job.json")
    paths = ("target", "features", "vocab_map", "folder")
    assert dataclasses.replace(job, **{name: str(getattr(job, name)) for name in paths}) == again
    (tmp_path / "job.json").write_text('{"recipe": {"speed": 3}}')
    with pytest.raises(ValueError, match="job.json is no training job: .*speed"):
        TrainJob.load(tmp_path / "job.json")


def test_a_job_makes_the_trainer_of_its_fields(job, tmp_path):
    recipe = dataclasses.replace(RECIPE, warm_start=(), max_length=9, long_rows="drop", epochs=1)
    sizes = {"hidden_size": 24, "head_dim": 6, "norm_output": True, "intermediate_size": None}
    rows = [f"r{i}" for i in range(20)]
    trainer = dataclasses.replace(job, folder=tmp_path, recipe=recipe, sizes=sizes, row_ids=rows).trainer()
    assert trainer.draft.config.hidden_size == 24 and trainer.draft.config.norm_output
    trained = {row for step in trainer.plan for batch in step for row in batch}
    assert trained == {f"r{i}" for i in range(20) if 8 + i % 7 <= 9}
    assert trainer.heldout == ["r30", "r31", "r32"]
    assert float(trainer.draft.lm_head.weight.detach().std()) == pytest.approx(0.02, rel=0.2)  # no warm start


def test_the_map_of_another_corpus_stops_a_job(job, tmp_path):
    VocabMap(torch.arange(1, VOCAB, 2), VOCAB).save(tmp_path / "map.safetensors", "xyz")
    with pytest.raises(VocabError, match="corpus xyz, the features are of corpus abc"):
        dataclasses.replace(job, vocab_map=tmp_path / "map.safetensors").trainer()


def test_features_of_another_target_stop_a_job(job, tmp_path):
    """The same shapes, other weights: nothing else would tell."""
    for name, target in (("own", job.target), ("other", save_tiny_target(tmp_path / "target", seed=1))):
        writer = FeatureWriter(tmp_path / name, {"target": weights_digest(target), "corpus": "abc"}, [2, 4, 5], HIDDEN)
        writer.add("r0", list(range(9)), [[3, 9]], torch.randn(9, 3, HIDDEN), torch.randn(9, HIDDEN))
        writer.close()
    alone = dataclasses.replace(job, heldout_rows=0, evaluate_every=None, folder=tmp_path / "state")
    dataclasses.replace(alone, features=tmp_path / "own").trainer()
    with pytest.raises(FeatureStoreError, match="other was made from something else:\n  target: the store has"):
        dataclasses.replace(alone, features=tmp_path / "other").trainer()


def test_a_drafter_that_its_engine_would_not_run_is_refused_before_the_training(job, tmp_path):
    old = dataclasses.replace(job, folder=tmp_path, sizes={"fc_norm": True}, serve_with="sglang==0.5.11")
    with pytest.raises(EngineError, match="fc_norm, which sglang reads from 0.5.12 on"):
        old.trainer()
    assert list(tmp_path.iterdir()) == []


def test_heldout_rows_and_how_often_they_are_measured_go_together(job):
    for change in ({"heldout_rows": 0}, {"evaluate_every": None}):
        with pytest.raises(ValueError, match="heldout_rows=.* and evaluate_every=.* go together"):
            dataclasses.replace(job, **change)


def test_a_job_trains_on_what_it_is_given_in_the_stores_place(job, tmp_path):
    class Watched(FeatureStore):
        def row(self, row_id):
            read.add(row_id)
            return super().row(row_id)

    read: set[str] = set()
    drafts = []
    for name, source in (("store", None), ("given", Watched(job.features))):
        one = dataclasses.replace(job, folder=tmp_path / name)
        trainer = one.trainer(source=source)
        list(one.run(trainer))
        drafts.append(trainer.draft)
    assert read == set(FeatureStore(job.features).ids) - {"r33"}  # three of the four held-out rows are measured on
    assert all(torch.equal(a, b) for a, b in zip(drafts[0].parameters(), drafts[1].parameters(), strict=True))


def test_more_processes_than_micro_batches_are_refused(head, tmp_path):
    rows = {"r0": make_row(0, 12, [(3, 12)])}
    with pytest.raises(ValueError, match="2 processes .* accumulate is 1: set it to a multiple of 2"):
        Trainer(make_draft(), {"r0": 12}, rows.__getitem__, head, Recipe(), tmp_path, team=Team(0, 2))


@pytest.mark.slow
def test_one_process_of_the_command_is_the_training_itself(job, tmp_path):
    here = dataclasses.replace(job, folder=tmp_path / "here")
    trainer = here.trainer()
    rows = list(train(here, trainer))
    there = dataclasses.replace(job, folder=tmp_path / "there")
    (tmp_path / "there").mkdir()
    there.save(tmp_path / "job.json")
    command = [sys.executable, "-m", "eagle3lab.draft.train_job", str(tmp_path / "job.json")]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    other = there.trainer()
    assert other.step == trainer.total_steps
    assert all(torch.equal(a, b) for a, b in zip(trainer.draft.parameters(), other.draft.parameters(), strict=True))
    assert [row["step"] for row in rows] == sorted({*range(2, trainer.total_steps, 2), trainer.total_steps})


# all in float32, Muon's products too: sums in another order moved the weights by 4e-7 (AdamW) and 2e-6 (Muon)
@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True], ids=["replicated", "sharded"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_two_processes_equal_one(job, tmp_path, sharded, optimizer, tolerance=2e-5):
    """Sums over processes, or FSDP2; either way the checkpoint is one that a single process continues."""
    recipe = dataclasses.replace(RECIPE, optimizer=optimizer)
    here, there = (dataclasses.replace(job, folder=tmp_path / name, recipe=recipe) for name in ("here", "there"))
    there = dataclasses.replace(there, sharded=sharded)
    alone, team = here.trainer(), there.trainer()
    assert len(alone.plan[-1]) < 3  # the last step has fewer micro-batches than the others
    expected, found = list(train(here, alone)), list(train(there, team, processes=2))
    assert len(found) == len(expected) and team.step == alone.step
    for one, two in zip(expected, found, strict=True):
        for name, value in numbers(one).items():
            assert two[name] == pytest.approx(value, rel=tolerance), (one["step"], name)
    for (name, a), b in zip(alone.draft.named_parameters(), team.draft.parameters(), strict=True):
        assert (a - b).norm() <= tolerance * a.norm(), name
    best = [load_best(one.folder, one.trainer().draft) for one in (here, there)]
    assert best[0]["step"] == best[1]["step"]


@pytest.mark.slow
def test_split_weights_and_moments_continue_bit_for_bit(job, tmp_path):
    """A sharded job that was cut off goes on from whole tensors on disk: the same end as without the cut."""
    recipe = dataclasses.replace(RECIPE, epochs=2, compute_dtype="bfloat16")
    jobs = [
        dataclasses.replace(job, folder=tmp_path / name, recipe=recipe, sharded=True, checkpoint_every=2, log_every=1)
        for name in ("whole", "cut")
    ]
    list(launch(jobs[0], 2))
    for row in launch(jobs[1], 2):
        if row["step"] == 3:
            break
    assert jobs[1].trainer().step in (2, 4)
    list(launch(jobs[1], 2))
    drafts = [one.trainer().draft for one in jobs]
    assert all(torch.equal(a, b) for a, b in zip(drafts[0].parameters(), drafts[1].parameters(), strict=True))


def runs_the_job(process):
    try:
        return "eagle3lab.draft.train_job" in process.cmdline()
    except psutil.Error:  # ended already, of an earlier test
        return False


@pytest.mark.slow
def test_a_closed_iterator_ends_every_process(job, tmp_path):
    long = dataclasses.replace(job, folder=tmp_path, recipe=dataclasses.replace(RECIPE, epochs=4000))
    rows = launch(long, 2)
    next(rows)
    workers = [process for process in psutil.Process().children(recursive=True) if runs_the_job(process)]
    assert len(workers) >= 3  # the starter and two workers
    rows.close()
    psutil.wait_procs(workers, timeout=10)
    assert not [process for process in workers if process.is_running()]


LISTEN = """
import sys
from eagle3lab.draft.launch import launch
from eagle3lab.draft.train_job import TrainJob
for row in launch(TrainJob.load(sys.argv[1]), 2):
    print(row["step"], flush=True)
"""


@pytest.mark.slow
def test_a_job_ends_when_its_listener_is_killed(job, tmp_path):
    long = dataclasses.replace(job, folder=tmp_path / "state", recipe=dataclasses.replace(RECIPE, epochs=4000))
    long.save(tmp_path / "job.json")
    listener = subprocess.Popen(
        [sys.executable, "-c", LISTEN, str(tmp_path / "job.json")], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    listener.stdout.readline()
    family = psutil.Process(listener.pid).children(recursive=True)
    assert len(family) >= 3
    listener.send_signal(signal.SIGKILL)
    listener.communicate()
    gone, left = psutil.wait_procs(family, timeout=60)
    assert not left


@pytest.mark.slow
def test_what_went_wrong_is_told(job, tmp_path):
    wild = dataclasses.replace(RECIPE, optimizer="adamw", lr=3.0, head_lr=3.0, explode_factor=1.5, epochs=20)
    with pytest.raises(TrainingDiverged, match="step .*explode_factor=1.5.*The batch is in"):
        list(launch(dataclasses.replace(job, folder=tmp_path / "wild", recipe=wild, log_every=1), 2))
    parts = [load_file(path) for path in (tmp_path / "wild").glob("diverged-step-*/batch.safetensors")]
    assert len(parts) == 2 and not parts[0].keys() & parts[1].keys()  # each process kept its own rows
    with pytest.raises(JobFailed, match="ValueError: 4 processes share"):
        list(launch(dataclasses.replace(job, folder=tmp_path / "many"), 4))
    started = time.time()
    with pytest.raises(JobFailed, match="VocabError|FeatureStoreError"):
        list(launch(dataclasses.replace(job, features=tmp_path / "none", folder=tmp_path / "none"), 2))
    assert (tmp_path / "none" / "processes.log").stat().st_mtime >= started - 1
