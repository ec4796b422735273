"""The status report, and the headline results that stages give it, without a kernel."""

import json
import os
import re

import psutil
import pytest

from eagle3lab.workbench.artefacts import manifest_digest, read_manifest
from eagle3lab.workbench.files import write_json_atomic
from eagle3lab.workbench.opening import open_run
from eagle3lab.workbench.records import read_record, write_record
from eagle3lab.workbench.status import shown_time, status

PREP = {"profile": "tiny", "runs_dir": "runs", "words": 4, "lr": 1e-3, "suite": None}
INFER = {"profile": "tiny", "runs_dir": "runs", "data_prep_run": "latest", "times": 2}


def prepare():
    run = open_run("data_prep", dict(PREP))
    run.path("prompts.txt").write_text("a b")
    run.add("prepared", "prompts.txt", "data")
    run.result(words=2, setting={"topk": 1}, lengths=[1, 2])
    run.headline("2 words (top 1)")
    run.finish()
    return run


def test_status_from_records_alone(lab):
    made = prepare()
    open_run("inference", dict(INFER))
    report = status("runs")
    assert [(row["stage"], row["run"], row["files"]) for row in report.done] == [("01_data_prep", made.id, "ok")]
    assert [row["stage"] for row in report.running] == ["02_inference"]
    assert report.next == [
        {
            "profile": "tiny",
            "stage": "03_extraction",
            "command": "python -m eagle3lab run tiny --from extraction",
            "when": "after 02_inference",
        }
    ]
    assert report.numbers == [{"profile": "tiny", "stage": "01_data_prep", "result": "2 words (top 1)"}]
    assert report.key_files[0]["path"] == f"runs/{made.id}/prompts.txt"
    text = report.to_markdown()
    assert "## Done" in text and f"| tiny | 01_data_prep | {made.id}" in text
    assert status("nowhere").to_markdown().count("nothing") == 8


def test_headlines_are_kept_in_order_and_once(lab):
    run = open_run("data_prep", dict(PREP))
    for text in ("accept length 1.53 (chain 3)", " 40 tok/s | 30 without ", "accept length 1.53 (chain 3)"):
        run.headline(text)
    for wrong in ("", "  ", "two\nlines"):
        with pytest.raises(ValueError, match="a headline is one line"):
            run.headline(wrong)
    with pytest.raises(ValueError, match="run.headline"):
        run.result(headline="x")
    run.path("prompts.txt").write_text("a")
    run.add("prepared", "prompts.txt", "data")
    run.finish()
    lines = ["accept length 1.53 (chain 3)", "40 tok/s | 30 without"]
    assert json.loads((run.folder / "results.json").read_text()) == {"headline": lines}
    assert [row["result"] for row in status("runs").numbers] == lines
    assert "| tiny | 01_data_prep | 40 tok/s \\| 30 without |" in status("runs").to_markdown()


def test_a_long_headline_ends_after_a_word(lab):
    run = open_run("data_prep", dict(PREP))
    for text in ("word " * 47 + "whole", "word " * 48 + "more", "x" * 300):  # 240, 244 and 300 characters
        run.headline(text)
    run.path("prompts.txt").write_text("a")
    run.add("prepared", "prompts.txt", "data")
    run.finish()
    lines = json.loads((run.folder / "results.json").read_text())["headline"]
    assert lines == ["word " * 47 + "whole", "word " * 47 + "…", "x" * 238 + " …"]


@pytest.mark.parametrize("driver", ["kernel", "runner"])
def test_the_status_run_that_asks_is_the_writer_not_a_running_stage(lab, monkeypatch, driver):
    lab.notebook("status", "")
    open_run("inference", {**INFER, "data_prep_run": prepare().id})
    run = open_run("status", {"profile": "tiny", "runs_dir": "runs"})
    if driver == "runner":  # the record is another process's, the kernel carries the run's mark
        other = psutil.Process(os.getppid())
        identity = {"pid": other.pid, "pid_started": other.create_time()}
        write_record(run.folder, {**read_record(run.folder), **identity})
        assert [row["stage"] for row in status("runs").running] == ["02_inference", "08_status"]
        monkeypatch.setenv("EAGLE3LAB_DRIVEN_RUN", f"{run.id}:1")
    report = status("runs")
    assert [row["stage"] for row in report.running] == ["02_inference"]
    first_line = report.to_markdown().splitlines()[0]
    assert re.fullmatch(rf"Written \d{{4}}-\d\d-\d\d \d\d:\d\d UTC by 08_status \({run.id}\)\.", first_line)


def test_times_are_shown_for_readers():
    assert shown_time("2026-11-29T16:53:21.764+00:00") == "2026-11-29 16:53 UTC"
    assert shown_time("2026-11-29T17:53:21+01:00") == "2026-11-29 16:53 UTC"


NEEDS = {
    "doctor": (), "data_prep": (), "inference": ("data_prep",), "extraction": ("inference",),
    "training": ("extraction",), "diagnostics": ("training", "inference"), "serving": ("training", "data_prep"),
    "scaling": ("training", "extraction", "inference", "serving"),
}  # fmt: skip


class Written:
    """Runs as their records tell them. A run is named by its stage and a letter; its headline is its id."""

    def __init__(self, root):
        self.runs, self.minute = root / "runs", 0

    def add(self, stage, letter, above="", profile="tiny", state="ok", draft=None, more=(), **needs):
        """above: the letter of the runs it was made from; needs: another letter for one of them, None for none; more:
        further entries of the record."""
        self.minute += 1
        run_id, upstream = f"{profile}-{stage}-{letter}", {}
        for name in NEEDS[stage]:
            if made_from := needs.get(name, above):
                upstream[name] = {"run_id": made_from if "-" in made_from else f"{profile}-{name}-{made_from}"}
        record = {
            "run_id": run_id, "stage": stage, "profile": profile, "state": state, "seconds": 60.0, "error": None,
            "started": f"2026-01-01T00:{self.minute:02d}:00.000+00:00", "ended": "2026-01-01T01:00:00.000+00:00",
            "upstream": upstream, "parameters": {"draft": {"value": draft, "origin": "test"}} if draft else {},
            "device": {"host": "another machine"}, "pid": 1, "pid_started": 1.0, **dict(more),
        }  # fmt: skip
        (self.runs / run_id).mkdir(parents=True)
        for name, value in (("run", record), ("manifest", {}), ("results", {"headline": [run_id]})):
            write_json_atomic(self.runs / run_id / f"{name}.json", value)
        return run_id

    def chain(self, letter, stages=tuple(NEEDS)[1:], profile="tiny"):
        return [self.add(stage, letter, letter, profile) for stage in stages]


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.setenv("EAGLE3LAB_ROOT", str(tmp_path))
    return Written(tmp_path)


def others(report):
    return [(row["stage"], row["run"], row["belongs to"], row["result"]) for row in report.others]


def upcoming(report):
    return [(row["stage"], row["when"]) for row in report.next]


@pytest.mark.parametrize(
    ("done", "running", "expected"),
    [
        (4, ["diagnostics"], [("06_serving", "now")]),  # it needs 04 and 01
        (4, ["serving"], [("05_diagnostics", "now"), ("07_scaling", "after 06_serving")]),
        (4, ["diagnostics", "serving"], [("07_scaling", "after 06_serving")]),
        (3, ["training"], [("05_diagnostics", "after 04_training"), ("06_serving", "after 04_training")]),
        (1, ["inference"], [("03_extraction", "after 02_inference")]),
        (6, [], [("07_scaling", "now")]),
        (7, [], []),
    ],
)
def test_what_comes_next_is_told_by_what_each_stage_needs(written, done, running, expected):
    written.chain("a", tuple(NEEDS)[1 : 1 + done])
    for stage in running:
        written.add(stage, "b", "a", state="running")
    assert upcoming(status("runs")) == expected


def test_of_two_stages_that_can_begin_the_second_stands_alone(written):
    written.chain("a", tuple(NEEDS)[1:5])
    assert [row["command"] for row in status("runs").next] == [
        "python -m eagle3lab run tiny --from diagnostics",
        "python -m eagle3lab run tiny --only serving",
    ]


def test_what_a_chain_at_work_goes_on_with_needs_no_command(written):
    written.chain("a", tuple(NEEDS)[1:4])
    later = ["diagnostics", "serving", "scaling", "status"]
    written.add("training", "b", "a", state="running", more={"later": later})
    after = {"command": "", "when": "by itself, after 04_training"}
    profile = {"profile": "tiny"}
    assert status("runs").next == [{**profile, "stage": stage, **after} for stage in ("05_diagnostics", "06_serving")]
    written.add("training", "c", "a", state="running", more={"later": ["diagnostics"]})
    by_hand = {"command": "python -m eagle3lab run tiny --from serving", "when": "after 04_training"}
    assert status("runs").next[1] == {**profile, "stage": "06_serving", **by_hand}


def test_after_a_doctor_that_stopped_the_chain_nothing_else_comes_next(written):
    written.add("doctor", "a", state="failed")
    again = {"stage": "00_doctor", "command": "python -m eagle3lab run tiny", "when": "once that is mended"}
    report = status("runs")
    assert report.next == [{"profile": "tiny", **again}]
    for page in (report.to_markdown(), report.to_html()):
        assert page.count("To be rid of one, delete its folder") == 1
    written.add("doctor", "b")
    assert upcoming(status("runs")) == [("01_data_prep", "now")]
    written.add("doctor", "c", state="failed")
    written.add("data_prep", "a")  # somebody went on without it
    assert upcoming(status("runs")) == [("02_inference", "now")]


def test_a_curve_of_speeds_that_were_measured_anew_is_to_be_drawn_anew(written):
    made_from = {"training": "tiny-training-a", "serving": "tiny-serving-a"}
    written.chain("a", tuple(NEEDS)[1:-1])
    digests = {stage: manifest_digest(read_manifest(written.runs / run)) for stage, run in made_from.items()}
    upstream = {stage: {"run_id": run, "manifest_sha256": digests[stage]} for stage, run in made_from.items()}
    written.add("scaling", "a", "a", more={"upstream": upstream})
    assert upcoming(status("runs")) == []
    entry = {"sha256": "0" * 64, "kind": "table", "path": "benchmark.json", "bytes": 1}
    write_json_atomic(written.runs / "tiny-serving-a" / "manifest.json", {"benchmark": entry})
    report = status("runs")
    assert upcoming(report) == [("07_scaling", "now")]
    before = "made from tiny-serving-a before that was made anew"
    assert others(report) == [("07_scaling", "tiny-scaling-a", before, "tiny-scaling-a")]


def test_numbers_of_somebodys_drafter_are_not_shown_as_those_of_the_chain(written):
    chain = written.chain("a")
    written.add("diagnostics", "x", "a", draft="/models/theirs", training=None)
    written.add("diagnostics", "y", "a", draft="/models/theirs")
    written.add("diagnostics", "z", "a", draft="/models/more", state="failed")
    report = status("runs")
    assert [row["run"] for row in report.done] == chain == [row["result"] for row in report.numbers]
    theirs = ("05_diagnostics", "tiny-diagnostics-y", "drafter /models/theirs", "tiny-diagnostics-y")
    assert others(report) == [theirs] and report.next == []
    assert [row["stage"] for row in report.stopped] == ["05_diagnostics, drafter /models/more"]
    written.add("diagnostics", "b", "a")  # the chain measured again: what was found of theirs stays theirs
    report = status("runs")
    assert "tiny-diagnostics-b" in [row["run"] for row in report.done] and others(report) == [theirs]
    assert "| drafter /models/theirs |" in report.to_markdown()


def test_a_new_training_leaves_the_measurements_of_the_old_one(written):
    written.chain("a")
    new = written.add("training", "b", "a")
    report = status("runs")
    upstream = [f"tiny-{stage}-a" for stage in ("data_prep", "inference", "extraction")]
    assert [row["run"] for row in report.done] == [*upstream, new]
    assert upcoming(report) == [("05_diagnostics", "now"), ("06_serving", "now")]
    old = "made from tiny-training-a"
    assert [row["belongs to"] for row in report.others] == [old] * 3
    measured = written.add("diagnostics", "c", "a", training="b")
    report = status("runs")
    assert [row["run"] for row in report.done] == [*upstream, new, measured]
    assert [row["stage"] for row in report.others] == ["06_serving", "07_scaling"]


def test_a_chain_stands_with_what_it_was_made_from_and_newer_data_beside_it(written):
    chain = written.chain("a")
    written.add("data_prep", "b")
    written.add("inference", "b", "b")
    report = status("runs")
    assert [row["run"] for row in report.done] == chain
    assert [(stage, belongs) for stage, _, belongs, _ in others(report)] == [
        ("01_data_prep", "newer than the chain above"),
        ("02_inference", "made from tiny-data_prep-b"),
    ]


def test_before_a_training_the_stage_that_came_furthest_decides(written):
    written.chain("a", ("data_prep", "inference"))
    written.add("data_prep", "b")
    report = status("runs")
    assert [row["run"] for row in report.done] == ["tiny-data_prep-a", "tiny-inference-a"]
    assert upcoming(report) == [("03_extraction", "now")]


def test_a_scaling_of_an_older_serving_is_of_another_chain(written):
    written.chain("a")
    written.add("serving", "b", "a")
    report = status("runs")
    assert [row["run"] for row in report.done][-1] == "tiny-serving-b"
    assert others(report) == [("07_scaling", "tiny-scaling-a", "made from tiny-serving-a", "tiny-scaling-a")]


def test_runs_of_another_profile_that_a_chain_was_made_from_belong_to_it(written):
    base = written.chain("a", ("data_prep", "inference", "extraction"), profile="base")
    made = written.add("training", "b", extraction=base[-1])
    report = status("runs", "tiny")
    assert [(row["profile"], row["run"]) for row in report.done] == [("tiny", run) for run in [*base, made]]
    assert upcoming(report) == [("05_diagnostics", "now"), ("06_serving", "now")]
    theirs = written.add("serving", "c", training="base-training-z", data_prep=base[0])
    assert others(status("runs", "tiny")) == [("06_serving", theirs, "made from base-training-z", theirs)]
