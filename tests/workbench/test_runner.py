"""The real runner with real kernels on small notebooks: every end of a stage, chains, plain papermill."""

import json
import os
import shutil
import signal
import sys
import time

import psutil
import pytest

from eagle3lab.workbench import guards
from eagle3lab.workbench.cli import main
from eagle3lab.workbench.execution import Limits
from eagle3lab.workbench.guards import (
    KernelspecError,
    WallClockLimit,
    check_kernelspec,
    signals_as_interrupts,
)
from eagle3lab.workbench.params import ParameterError
from eagle3lab.workbench.plan import plan
from eagle3lab.workbench.records import all_records, newest, read_record
from eagle3lab.workbench.runner import run_chain

CHAIN = ["data_prep", "inference"]
notebooks = pytest.mark.notebooks


def at_work(pid):
    """Whether it runs: one that ended may be a zombie until whoever inherited it looks."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def run_stage(stage, profile, overrides=None, **options):
    return run_chain(profile, [stage], overrides, **options)[0]


def ends(results):
    return [(result.stage, result.state, result.ran) for result in results]


@notebooks
def test_a_chain_runs_skips_and_runs_again_what_changed(lab, monkeypatch, capsys):
    monkeypatch.setenv("MPLBACKEND", "agg")  # would take figures out of the record
    lab.notebook(
        "data_prep",
        "words: int = 3  # words\nlr: float = 1.0e-3  # rate\nsuite: str | None = None  # set = text\n",
        "# papermill_description=prepare\nimport os\nassert os.environ.get('MPLBACKEND') != 'agg'\n"
        "for i in run.track(range(400), unit='rows'):\n    print(i, end='\\r')\n"
        "run.path('prompts.txt').write_text(' '.join(['word'] * words))\n"
        "run.add('prepared', 'prompts.txt', 'data')\nrun.result(words=words, lr=lr)",
        "run.finish()",
    )
    first = run_chain("tiny", CHAIN)
    assert ends(first) == [("data_prep", "ok", True), ("inference", "ok", True)]
    prep, infer = first
    record = lab.read(prep.run_id, "run.json")
    assert record["driver"] == "runner" and record["error"] is None and record["seconds"] > 0
    assert record["parameters"]["words"] == {"value": 4, "origin": "params/tiny/common.yaml"}
    assert record["versions"]["papermill"] and record["device"]["cores"] >= 1 and record["process_groups"]
    assert lab.read(infer.run_id, "run.json")["upstream"]["data_prep"]["run_id"] == prep.run_id
    assert lab.read(infer.run_id, "results.json") == {"headline": [], "tokens": 8}
    executed = lab.read(prep.run_id, "01_data_prep.ipynb")
    assert executed["metadata"]["eagle3lab"] == {"run_id": prep.run_id, "state": "ok"}
    shown = [cell for cell in executed["cells"] if "run.track" in "".join(cell["source"])][0]["outputs"]
    # 400 prints and 400 progress updates: one stream and one display
    assert sorted(output["output_type"] for output in shown) == ["display_data", "stream"]
    assert "400/400 rows" in "".join([o for o in shown if "data" in o][0]["data"]["text/plain"])
    assert "399" in (prep.folder / "logs" / "stdout.log").read_text()

    assert ends(run_chain("tiny", CHAIN)) == [("data_prep", "ok", False), ("inference", "ok", False)]
    changed = run_chain("tiny", CHAIN, {"times": 3})
    assert ends(changed) == [("data_prep", "ok", False), ("inference", "ok", True)]
    assert changed[1].run_id != infer.run_id

    rows = plan("tiny", {"words": 5}, CHAIN)
    assert [row.why for row in rows] == [
        "parameters changed: words 4 -> 5",
        "parameters changed: times 3 -> 2; data_prep runs first",
    ]
    more = run_chain("tiny", CHAIN, {"words": 5})
    assert ends(more) == [("data_prep", "ok", True), ("inference", "ok", True)]
    assert lab.read(more[1].run_id, "results.json") == {"headline": [], "tokens": 10}
    # back to the first values: nothing runs, and "latest" means those runs again
    assert ends(run_chain("tiny", CHAIN)) == [("data_prep", "ok", False), ("inference", "ok", False)]
    assert newest(all_records(lab.root / "runs"), "data_prep", "tiny")["run_id"] == prep.run_id
    out = capsys.readouterr().out
    assert "[1/2] 01_data_prep unchanged: " in out and "02_inference ok in" in out


@notebooks
def test_plain_papermill_gives_the_same_run_and_refuses_unknown_names(lab):
    by_runner = run_stage("data_prep", "tiny")
    assert by_runner.state == "ok"
    kept = by_runner.folder.rename(lab.root / "kept")
    papermill = [
        "-m",
        "papermill",
        "notebooks/01_data_prep.ipynb",
        "out.ipynb",
        "-f",
        "params/tiny/common.yaml",
    ]
    process = lab.command(*papermill)
    assert process.wait(120) == 0, process.stdout.read()
    assert [name for name in lab.folders()] == [by_runner.run_id]
    for name in ("results.json", "manifest.json"):
        assert (by_runner.folder / name).read_text() == (kept / name).read_text()
    record, other = read_record(by_runner.folder), json.loads((kept / "run.json").read_text())
    assert (record["driver"], record["state"]) == ("kernel", "ok")
    assert record["fingerprint"] == other["fingerprint"]
    assert run_stage("data_prep", "tiny").ran is False  # the runner believes it

    process = lab.command(*papermill, "-p", "wrods", "7")
    output = process.communicate(timeout=120)[0]
    assert process.returncode != 0
    assert "ParameterError" in output and "has no parameter 'wrods' (did you mean 'words'?)" in output


@notebooks
def test_plain_papermill_leaves_a_truthful_record_of_a_failure(lab):
    lab.notebook("data_prep", "words: int = 3  # words\n", "raise OSError('disk')", "run.finish()")
    process = lab.command("-m", "papermill", "notebooks/01_data_prep.ipynb", "out.ipynb")
    process.communicate(timeout=120)
    [name] = lab.folders()
    record = lab.read(name, "run.json")
    assert process.returncode != 0 and (record["state"], record["driver"]) == ("failed", "kernel")
    assert (record["error"]["name"], record["error"]["message"]) == ("OSError", "disk")


@notebooks
@pytest.mark.parametrize(
    ("cell", "limits", "state", "error"),
    [
        ("# papermill_description=break\n1 / 0", Limits(), "failed", "ZeroDivisionError"),
        ("import time; time.sleep(600)", Limits(cell_seconds=2), "timeout", "CellTimeout"),
        ("import sys; sys.exit(0)", Limits(), "stopped_early", "SystemExit"),
        ("import sys; sys.exit(4)", Limits(), "failed", "SystemExit"),
        ("x = 1", Limits(), "failed", "ArtefactError"),
    ],
)
def test_every_end_is_told_apart(lab, cell, limits, state, error):
    last = "run.finish()" if cell != "x = 1" else "y = 2"
    lab.notebook("data_prep", "words: int = 3  # words\n", cell, last)
    result = run_chain("tiny", CHAIN, limits=limits)
    assert ends(result) == [("data_prep", state, True)]  # and the chain stopped there
    record = lab.read(result[0].run_id, "run.json")
    assert record["state"] == state and record["error"]["name"] == error and record["ended"]
    if error == "ZeroDivisionError":
        assert record["error"] == {
            "cell": 3, "step": "break", "name": error, "message": "division by zero",
        }  # fmt: skip
    executed = lab.read(result[0].run_id, "01_data_prep.ipynb")
    assert executed["metadata"]["eagle3lab"]["state"] == state
    assert executed["metadata"]["papermill"]["exception"] is True


@notebooks
def test_wall_clock_limit_through_the_command(lab):
    lab.notebook("data_prep", "words: int = 3  # words\n", "import time\nwhile True:\n    time.sleep(1)")
    process = lab.command("-m", "eagle3lab", "run", "tiny", "--only", "data_prep", "--timeout-minutes", "0.15",
                          "-p", "words", "4")  # fmt: skip
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 124, output
    [name] = lab.folders()
    record = lab.read(name, "run.json")
    assert (record["state"], record["error"]["message"]) == ("timeout", "wall-clock limit of 9 s")
    assert "continue with: python -m eagle3lab run tiny --only data_prep -p words 4\n" in output
    assert "Traceback" not in output and "Task" not in output, output


@notebooks
def test_a_killed_kernel_is_told_and_the_run_continues_in_the_same_folder(lab):
    lab.notebook(
        "data_prep",
        "words: int = 3  # words\n",
        "import os, signal\ndone = run.path('prompts.txt')\nrun.metric({'begun': done.exists()})\n"
        "if not done.exists():\n    done.write_text('half')\n    os.kill(os.getpid(), signal.SIGKILL)",
        "run.add('prepared', done, 'data')\nrun.finish()",
    )
    first = run_stage("data_prep", "tiny")
    assert first.state == "kernel_died" and first.error["cell"] == 3
    row = plan("tiny", stages=["data_prep"])[0]
    assert (row.run_id, row.state, row.why) == (
        first.run_id,
        "kernel_died",
        "was kernel_died: continues where it stopped",
    )
    second = run_stage("data_prep", "tiny")
    assert (second.run_id, second.state) == (first.run_id, "ok") and lab.folders() == [first.run_id]
    rows = [json.loads(line) for line in (second.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["begun"] for row in rows] == [False, True]
    shutil.rmtree(second.folder / "logs")
    forced = run_stage("data_prep", "tiny", force=True)  # from nothing: the half is gone, so it is killed again
    assert forced.state == "kernel_died"


@notebooks
def test_sigterm_leaves_no_process_behind(lab):
    lab.notebook(
        "data_prep",
        "words: int = 3  # words\n",
        "import subprocess, sys, time\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(300)']\n"
        "children = [subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True)]\n"
        "run.path('pids').write_text(' '.join(str(child.pid) for child in children))\n"
        "print('ready')\ntime.sleep(300)",
    )
    process = lab.command("-m", "eagle3lab", "run", "tiny", "--only", "data_prep")
    deadline = time.monotonic() + 60
    pids: list[int] = []
    while not pids and time.monotonic() < deadline:
        time.sleep(0.2)
        for path in (lab.root / "runs").glob("*/pids"):
            pids = [int(pid) for pid in path.read_text().split()]
    assert len(pids) == 2 and all(at_work(pid) for pid in pids)
    time.sleep(2.5)  # the watcher looks about every second
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 130, output
    assert not any(at_work(pid) for pid in pids)
    [name] = lab.folders()
    record = lab.read(name, "run.json")
    assert (record["state"], record["error"]["message"]) == ("interrupted", "SIGTERM")
    assert pids[1] in record["process_groups"]  # the one in a session of its own
    assert "Traceback" not in output and "Task" not in output, output


def test_what_can_be_refused_is_refused_before_a_kernel(lab, capsys):
    with pytest.raises(ParameterError, match="did you mean 'words'"):
        run_chain("tiny", CHAIN, {"wrods": 1})
    assert lab.folders() == []
    assert main(["run", "tiny", "--only", "inference"]) == 2
    assert "notebooks/01_data_prep.ipynb first" in capsys.readouterr().err
    assert main(["run", "tiny", "--only", "data_prep", "-p", "words", "many"]) == 2
    assert "'many' cannot be read as int" in capsys.readouterr().err


def test_commands_that_start_nothing(lab, capsys):
    assert main(["plan", "tiny", "--to", "inference", "--from", "data_prep", "-p", "lr", "3e-4"]) == 0
    out = capsys.readouterr().out
    assert "run  01_data_prep" in out and "lr = 0.0003  (command line)" in out and "after data_prep" in out
    assert "python -m eagle3lab run tiny --only data_prep -p lr 3e-4\n" in out
    assert "python -m eagle3lab run tiny --only inference\n" in out  # it knows no lr
    assert "No counts, bytes and hours: params/tiny/plan.yaml" in out
    assert main(["params", "data_prep", "--profile", "tiny"]) == 0
    assert "words: int = 4  # words  [params/tiny/common.yaml]" in capsys.readouterr().out
    assert main(["status"]) == 0 and "## Next" in capsys.readouterr().out
    assert lab.folders() == []


def test_kernelspec_must_be_this_python(monkeypatch):
    assert check_kernelspec()[1:3] == ["-m", "ipykernel_launcher"]
    monkeypatch.setattr(guards, "_INTERPRETER_NAMES", ())
    with pytest.raises(KernelspecError, match="ipykernel install --sys-prefix"):
        check_kernelspec()


def test_signals_interrupt_once_and_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"), signals_as_interrupts(None):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # ignored: cleaning up goes on
    with pytest.raises(WallClockLimit), signals_as_interrupts(0.05):
        time.sleep(5)
    assert signal.getsignal(signal.SIGTERM) is before
    assert sys.exc_info() == (None, None, None)
