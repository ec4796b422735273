"""`--force` keeps the good run of before until the new one ended ok; stages are executed by a stand-in."""

import json

import pytest

from eagle3lab.workbench import runner
from eagle3lab.workbench.cli import main
from eagle3lab.workbench.files import write_json_atomic
from eagle3lab.workbench.plan import plan
from eagle3lab.workbench.records import all_records, read_record, write_record
from eagle3lab.workbench.replaced import set_aside, settle
from eagle3lab.workbench.runner import run_chain

OTHER_PROCESS = {"pid": 2**30, "pid_started": 0.0}  # larger than any pid: a process that is gone


@pytest.fixture
def executed(lab, monkeypatch):
    """(lab, run): `run(text, end, force)` runs data_prep by a stand-in that writes `text` and ends as `end` says."""

    def run(text, end="ok", force=True, by_command=False):
        def execute(stage, output, values, mark, limits, on_step):
            folder = output.parent
            assert not (folder / "prompts.txt").exists()  # from nothing
            (folder / "prompts.txt").write_text(text)
            if isinstance(end, BaseException):
                raise end
            write_json_atomic(folder / "manifest.json", {})
            write_json_atomic(folder / "results.json", {})
            return end, None if end == "ok" else {"cell": 3, "step": "x", "name": "OSError", "message": "disk"}

        monkeypatch.setattr(runner, "execute", execute)
        if by_command:
            return main(["run", "tiny", "--only", "data_prep", "--force"])
        return run_chain("tiny", ["data_prep"], force=force)[0]

    return lab, run


def text_of(folder):
    return (folder / "prompts.txt").read_text()


@pytest.mark.parametrize("end", ["failed", "timeout", "kernel_died", "interrupted", "stopped_early"])
def test_a_forced_run_that_does_not_end_ok_leaves_the_good_one_in_its_place(executed, capsys, end):
    lab, run = executed
    good = run("good", force=False)
    anew = run("bad", end)
    assert (anew.state, anew.came_back, anew.error["name"]) == (end, True, "OSError")
    assert text_of(good.folder) == "good" and read_record(good.folder)["state"] == "ok"
    assert text_of(anew.folder) == "bad" and read_record(anew.folder)["state"] == end
    assert [record["state"] for record in all_records(lab.root / "runs")] == ["ok"]  # what lies aside is no run
    (row,) = plan("tiny", stages=["data_prep"])
    assert (row.run_id, row.why) == (good.run_id, "unchanged")
    told = (
        f"The good run of before is back in runs/{good.run_id}; what was done anew lies in runs/.failed/{good.run_id}"
    )
    assert told in capsys.readouterr().out
    assert run("worse", end, by_command=True) != 0
    assert "continue with: python -m eagle3lab run tiny --only data_prep --force" in capsys.readouterr().out
    assert text_of(good.folder) == "good" and text_of(anew.folder) == "worse"
    assert run("better").folder == good.folder
    assert text_of(good.folder) == "better" and lab.folders() == [good.run_id]  # and nothing else is left


def test_an_error_of_the_runner_itself_leaves_the_good_run_too(executed):
    lab, run = executed
    good = run("good", force=False)
    with pytest.raises(KeyboardInterrupt):
        run("bad", KeyboardInterrupt())
    assert text_of(good.folder) == "good" and read_record(good.folder)["state"] == "ok"


def test_force_deletes_a_run_that_was_not_good(executed):
    lab, run = executed
    bad = run("bad", "failed", force=False)
    again = run("bad again", "failed")
    assert (again.folder, again.came_back) == (bad.folder, False)
    assert text_of(again.folder) == "bad again" and lab.folders() == [bad.run_id]


@pytest.mark.parametrize("killed", ["before its record", "at work", "after its end", "while the old one was deleted"])
def test_the_next_start_after_a_kill_finds_a_whole_run(executed, capsys, killed):
    lab, run = executed
    folder = run("good", force=False).folder
    record = read_record(folder)
    set_aside(folder)
    waiting = lab.root / "runs" / ".before" / folder.name
    assert text_of(waiting) == "good" and not folder.exists() and all_records(lab.root / "runs") == []
    if killed != "before its record":
        folder.mkdir()
        (folder / "prompts.txt").write_text("new")
        for name in ("manifest.json", "results.json"):
            write_json_atomic(folder / name, {})
        write_record(folder, {**record, **OTHER_PROCESS, "state": "running" if killed == "at work" else "ok"})
    if killed == "while the old one was deleted":
        (waiting / "run.json").unlink()
    (row,) = plan("tiny", stages=["data_prep"])
    out = capsys.readouterr().out
    assert (row.state, row.why) == ("ok", "unchanged") and not waiting.exists()
    ended = killed in ("after its end", "while the old one was deleted")
    assert text_of(folder) == ("new" if ended else "good")
    assert (f"{folder.name} was being made anew and was cut off. The good run of before is back" in out) is not ended
    assert ("runs/.failed/" in out) is (killed == "at work")


def test_a_run_that_a_live_process_makes_anew_is_left_alone(executed):
    lab, run = executed
    folder = run("good", force=False).folder
    record = read_record(folder)
    set_aside(folder)
    folder.mkdir()
    write_record(folder, {**record, "state": "running"})  # of this process
    settle(lab.root / "runs")
    assert json.loads((folder / "run.json").read_text())["state"] == "running"
    assert text_of(lab.root / "runs" / ".before" / folder.name) == "good"
