"""Run folders without a kernel: identity, artefacts, lineage, results, progress, records."""

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from eagle3lab.workbench.artefacts import ArtefactError
from eagle3lab.workbench.code_hash import changed_files, stage_code
from eagle3lab.workbench.lineage import UpstreamError
from eagle3lab.workbench.opening import open_run
from eagle3lab.workbench.params import ParameterError
from eagle3lab.workbench.plan import plan
from eagle3lab.workbench.processes import own_identity
from eagle3lab.workbench.records import RunBusy, observed_state, read_record, write_record
from eagle3lab.workbench.stages import STAGES, select_stages
from eagle3lab.workbench.status import status

PREP = {"profile": "tiny", "runs_dir": "runs", "words": 4, "lr": 1e-3, "suite": None}
INFER = {"profile": "tiny", "runs_dir": "runs", "data_prep_run": "latest", "times": 2}


def prepare(text="a b", **changes):
    run = open_run("data_prep", {**PREP, **changes})
    run.path("prompts.txt").write_text(text)
    run.add("prepared", "prompts.txt", "data")
    run.result(words=2, setting={"topk": 1}, lengths=[1, 2])
    run.finish()
    return run


def test_the_id_is_made_of_parameters_upstream_and_code(lab):
    first = open_run("data_prep", dict(PREP))
    assert first.id.startswith("tiny-data_prep-") and first.folder == lab.root / "runs" / first.id
    assert open_run("data_prep", {**PREP, "runs_dir": "elsewhere"}).id == first.id
    assert open_run("data_prep", {**PREP, "lr": 2e-3}).id != first.id
    path = lab.root / STAGES["data_prep"].notebook
    path.write_text(path.read_text().replace("run.finish()", "run.finish()  # a comment counts for nothing"))
    assert open_run("data_prep", dict(PREP)).id == first.id
    path.write_text(path.read_text().replace('[\\"word\\"]', '[\\"other\\"]'))
    assert open_run("data_prep", dict(PREP)).id != first.id


def test_downstream_identity_follows_the_artefacts_not_the_way_of_asking(lab):
    made = prepare()
    by_latest = open_run("inference", dict(INFER))
    assert by_latest.p.data_prep_run == made.id == by_latest.upstream("data_prep").id
    assert open_run("inference", {**INFER, "data_prep_run": made.id}).id == by_latest.id
    prepare("other text")  # same parameters, another artefact
    assert open_run("inference", dict(INFER)).id != by_latest.id


def test_figures_and_logs_do_not_change_lineage(lab):
    prepare()
    before = open_run("inference", dict(INFER)).id
    run = open_run("data_prep", dict(PREP))
    run.path("prompts.txt").write_text("a b")
    run.add("prepared", "prompts.txt", "data")

    class Figure:
        def savefig(self, buffer, **options):
            assert options["dpi"] == 150
            buffer.write(b"png")

    assert run.figure(Figure(), "lengths") == run.folder / "figures" / "lengths.png"
    run.finish()
    assert open_run("inference", dict(INFER)).id == before
    assert json.loads((run.folder / "manifest.json").read_text())["lengths"]["kind"] == "figure"


def test_values_are_fitted_and_put_back(lab):
    lab.notebook("data_prep", "words: int = 3  # n\nlr: float = 0.5  # rate\nheat: float = 1.0  # T\n")
    space = {**PREP, "heat": 2}  # as `papermill -p heat 2` passes it
    run = open_run("data_prep", space)
    assert type(run.p.heat) is type(space["heat"]) is float
    assert open_run("data_prep", {**PREP, "heat": 2.0}).id == run.id
    lab.notebook("data_prep", "words: int = 3  # n\nlr: float = 0.5  # rate\n")
    with pytest.raises(ParameterError, match="words: '4' is text, wanted int: write 4"):
        open_run("data_prep", {**PREP, "words": "4"})
    with pytest.raises(ParameterError, match="lr is not set: run the parameters cell"):
        open_run("data_prep", {"profile": "tiny", "runs_dir": "runs", "words": 1})
    with pytest.raises(ParameterError, match="lr = 3.0: must lie between"):
        open_run("data_prep", {**PREP, "lr": 3})


def test_unknown_names_in_papermills_injected_cell(lab):
    shared = "# Parameters\nprofile = 'tiny'\nwords = 4\ntimes = 3\n"  # times is inference's, and not in common
    with pytest.raises(ParameterError, match="has no parameter 'times'"):
        open_run("data_prep", {**PREP, "In": ["", shared]})
    lab.layer("common", "profile: tiny\nwords: 4\ntimes: 3\n")
    run = open_run("data_prep", {**PREP, "In": ["", shared]})
    origins = {name: entry["origin"] for name, entry in read_record(run.folder)["parameters"].items()}
    assert origins["words"] == "papermill" and origins["lr"] == "cell default"


def test_missing_upstream_names_notebook_and_command(lab):
    with pytest.raises(UpstreamError, match=r"notebooks/01_data_prep.ipynb first: python -m eagle3lab run tiny --only"):
        open_run("inference", dict(INFER))
    unfinished = open_run("data_prep", dict(PREP))
    with pytest.raises(UpstreamError, match="there is none"):
        open_run("inference", dict(INFER))
    with pytest.raises(UpstreamError, match="in state 'running'"):
        open_run("inference", {**INFER, "data_prep_run": unfinished.id})
    with pytest.raises(UpstreamError, match="'nope'"):
        open_run("inference", {**INFER, "data_prep_run": "nope"})


def test_a_changed_artefact_is_named(lab):
    made = prepare()
    upstream = open_run("inference", dict(INFER)).upstream("data_prep")
    assert upstream.artefact("prepared").read_text() == "a b" and upstream.results["words"] == 2
    (made.folder / "prompts.txt").write_text("a c")  # same size
    with pytest.raises(ArtefactError, match="prompts.txt is not the file"):
        upstream.artefact("prepared")
    with pytest.raises(ArtefactError, match="did you mean 'prepared'"):
        upstream.artefact("prepard")
    (made.folder / "prompts.txt").unlink()
    with pytest.raises(ArtefactError, match="prompts.txt is gone"):
        upstream.artefact("prepared")
    assert plan("tiny", stages=["data_prep"])[0].why == "files are gone: prepared"
    (made.folder / "manifest.json").unlink()
    assert plan("tiny", stages=["data_prep"])[0].why == "files are gone: manifest.json"
    assert status("runs").done[0]["files"] == "files are gone: manifest.json"


def test_a_directory_artefact_is_checked_file_by_file(lab):
    run = open_run("data_prep", dict(PREP))
    run.path("set/a.txt").write_text("1")
    run.path("set/deep/b.txt").write_text("22")
    run.add("prepared", "set", "data")
    run.finish()
    entry = json.loads((run.folder / "manifest.json").read_text())["prepared"]
    assert entry["bytes"] == 3 and list(entry["files"]) == ["a.txt", "deep/b.txt"]
    upstream = open_run("inference", dict(INFER)).upstream("data_prep")
    assert upstream.artefact("prepared") == run.folder / "set"
    (run.folder / "set" / "deep" / "b.txt").write_text("2")
    with pytest.raises(ArtefactError, match="b.txt is not the file.*remove it and run the stage again"):
        upstream.artefact("prepared")
    assert plan("tiny", stages=["data_prep"])[0].why == "unchanged"  # bytes are compared by who reads them
    (run.folder / "set" / "deep" / "b.txt").unlink()
    assert plan("tiny", stages=["data_prep"])[0].why == "files are gone: prepared"


def test_finish_wants_every_artefact_the_stage_makes(lab):
    run = open_run("data_prep", dict(PREP))
    with pytest.raises(ArtefactError, match="must make prepared"):
        run.finish()
    with pytest.raises(ArtefactError, match="does not exist"):
        run.add("prepared", "nothing.txt", "data")
    with pytest.raises(ArtefactError, match="outside"):
        run.add("prepared", lab.root / "params", "data")
    with pytest.raises(ValueError, match="'loss'"):
        run.result(loss=float("nan"))
    with pytest.raises(TypeError, match="'x'"):
        run.result(x={1, 2})


def test_metrics_survive_a_cut_and_can_be_taken_back_to_a_checkpoint(lab):
    run = open_run("data_prep", dict(PREP))
    for step in range(4):
        run.metric({"step": step})
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    again = open_run("data_prep", dict(PREP))
    again.keep_metrics(lambda row: row["step"] <= 2)
    again.metric({"step": 3})
    rows = again.metrics()
    assert [row["step"] for row in rows] == [0, 1, 2, 3] and all("time" in row for row in rows)


def test_track_tells_done_total_rate_and_closes_its_source(lab, monkeypatch):
    ticks = iter(range(100))
    monkeypatch.setattr("eagle3lab.workbench.progress.time.monotonic", lambda: float(next(ticks)))
    run = open_run("data_prep", dict(PREP))
    closed = []

    def rows():
        try:
            for step in (10, 20, 30):
                yield {"step": step}
        finally:
            closed.append(True)

    shown = []
    for row in run.track(rows(), total=50, unit="steps", done=5, at=lambda r: r["step"], note=lambda r: "n"):
        shown.append((row["step"], json.loads((run.folder / "progress.json").read_text())))
    # one second between updates: 5 done before, then 10, 20: (20 - 5) / 2 s; (50 - 20) / 7.5 = 4 s left
    assert shown[0][1]["done"] == 5 and shown[0][1]["rate"] is None
    assert shown[2][1]["done"] == 20 and shown[2][1]["rate"] == 7.5 and shown[2][1]["seconds_left"] == 4.0
    assert closed == [True]
    assert [item for item in run.track([1, 2, 3])] == [1, 2, 3]
    last = json.loads((run.folder / "progress.json").read_text())
    assert (last["done"], last["total"], last["unit"]) == (3, 3, "rows")


def test_a_better_estimate_of_the_time_left_is_shown_as_it_is_given(lab):
    run = open_run("data_prep", dict(PREP))
    for given in (77.5, None):
        run.progress(10, 100, "rows", "830 tok/s", seconds_left=given)
        run.progress(100, 100, "rows", seconds_left=given)  # the last one is always written
        assert json.loads((run.folder / "progress.json").read_text())["seconds_left"] == given


def test_a_busy_folder_is_refused_and_a_dead_writer_is_not_believed(lab):
    run = open_run("data_prep", dict(PREP))
    record = read_record(run.folder)
    assert observed_state(record) == "running"
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        started = psutil.Process(other.pid).create_time()
        write_record(run.folder, {**record, "pid": other.pid, "pid_started": started})
        with pytest.raises(RunBusy, match=f"process {other.pid}"):
            open_run("data_prep", dict(PREP))
    finally:
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
    assert observed_state(read_record(run.folder)) == "interrupted"
    assert plan("tiny", stages=["data_prep"])[0].why == "was interrupted: continues where it stopped"
    assert open_run("data_prep", dict(PREP)).folder == run.folder
    assert read_record(run.folder)["pid"] == own_identity()["pid"]


def test_plan_tells_what_runs_and_why(lab):
    rows = plan("tiny", stages=["data_prep", "inference"])
    assert [(row.run_id.rpartition("-")[0], row.will_run, row.why) for row in rows] == [
        ("tiny-data_prep", True, "never run"),
        ("", True, "never run"),
    ]
    assert rows[1].run_id == "after data_prep"
    made = prepare()
    assert [(r.will_run, r.why) for r in plan("tiny", stages=["data_prep"])] == [(False, "unchanged")]
    assert plan("tiny", stages=["data_prep"])[0].run_id == made.id
    row = plan("tiny", {"lr": 3e-4}, ["data_prep"])[0]
    assert (row.will_run, row.why) == (True, "parameters changed: lr 0.001 -> 0.0003")
    path = lab.root / STAGES["data_prep"].notebook
    path.write_text(path.read_text().replace('[\\"word\\"]', '[\\"other\\"]'))
    assert plan("tiny", stages=["data_prep"])[0].why == "code changed: notebooks/01_data_prep.ipynb"
    assert plan("tiny", stages=["data_prep"], force=True)[0].why == "forced, from nothing"


def test_code_follows_imports_and_leaves_the_record_keeper_out(lab):
    lab.notebook("training", "", "from eagle3lab.data import records\nimport eagle3lab.workbench.files")
    code = stage_code("training")
    assert "notebooks/04_training.ipynb" in code and "eagle3lab/data/records.py" in code
    assert "eagle3lab/data/__init__.py" in code and not any("workbench" in name for name in code)
    assert changed_files({"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"}) == ["b", "c"]


def test_selection_of_stages():
    assert select_stages() == list(STAGES) and len(STAGES) == 9
    assert select_stages(first="training", last="serving") == ["training", "diagnostics", "serving"]
    assert select_stages(only=["status", "doctor"]) == ["doctor", "status"]
    with pytest.raises(ValueError, match="comes after"):
        select_stages(first="serving", last="training")
    for number, stage in enumerate(STAGES.values()):
        assert stage.number == number
        assert all(STAGES[needed].number < number for needed in stage.needs)


def test_importing_the_workbench_loads_nothing_heavy():
    code = (
        "import sys, time; start = time.perf_counter(); import eagle3lab.workbench\n"
        "print(f'import eagle3lab.workbench: {time.perf_counter() - start:.3f} s')\n"
        "import eagle3lab.workbench.cli, eagle3lab.workbench.runner, eagle3lab.workbench.status\n"
        "heavy = {'torch', 'transformers', 'papermill', 'nbformat', 'pandas', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
