"""The status report, and the headline results that stages give it, without a kernel."""

import json
import os
import re

import psutil
import pytest

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
    assert status("nowhere").to_markdown().count("nothing") == 7


def test_headlines_are_kept_in_order_and_once(lab):
    run = open_run("data_prep", dict(PREP))
    for text in ("accept length 1.53 (chain 3)", " 40 tok/s | 30 without ", "accept length 1.53 (chain 3)"):
        run.headline(text)
    for wrong in ("", "  ", "two\nlines", "x" * 161):
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
