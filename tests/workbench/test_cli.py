"""What the command says to somebody who sees it for the first time."""

import json
import subprocess

import pytest

from eagle3lab.workbench.cli import main
from eagle3lab.workbench.machine import git_state
from eagle3lab.workbench.opening import open_run
from eagle3lab.workbench.params import CommandLineText, ParameterError, resolve_parameters, share_overrides
from eagle3lab.workbench.plan import plan
from eagle3lab.workbench.progress import progress_text
from eagle3lab.workbench.standing import standing_warnings

ROWS = [
    {"check": "cores", "found": "2", "expected": "2 or more", "verdict": "ok", "remedy": "", "command": ""},
    {"check": "versions", "found": "torch 2.0", "expected": "2.13", "verdict": "warning", "remedy": "install the lock",
     "command": "python -m eagle3lab params doctor --profile PROFILE"},
    {"check": "aux layers", "found": "[2, 2, 1] collide", "expected": "different layers of 4", "verdict": "fault",
     "remedy": "set aux_layers", "command": 'python -m eagle3lab run PROFILE --from extraction'},
]  # fmt: skip
DOCTOR = """\
import json
run.path("report.json").write_text({rows!r})
run.add("report", "report.json", "report")
run.result(verdicts={{}}, faults={faults!r})
run.finish()"""


@pytest.mark.notebooks
def test_a_stage_is_found_by_its_number_and_its_notebook(lab, capsys):
    lab.notebook("data_prep", "words: int = 3  # how many words\n")
    said = []
    for name in ("data_prep", "01", "01_data_prep"):
        assert main(["params", name]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] == said[2] and "words: int = 3  # how many words" in said[0]
    assert main(["params", "10"]) == 2
    assert "no stage '10'" in capsys.readouterr().err


def test_the_doctor_alone_says_what_it_can_be_given(capsys):
    with pytest.raises(SystemExit):
        main(["doctor"])
    told = capsys.readouterr().err
    assert "doctor PROFILE" in told and "[--target TARGET]" in told
    assert "name a profile, or what is to be checked" in told


def test_the_doctor_of_a_profile_tells_what_it_found_and_fails_by_a_fault(lab, capsys):
    lab.notebook("doctor", "", DOCTOR.format(rows=json.dumps(ROWS), faults=["aux layers: [2, 2, 1] collide"]))
    assert main(["doctor", "tiny"]) == 1
    told = capsys.readouterr().out
    for words in ("FAULT       aux layers: [2, 2, 1] collide", "-> set aux_layers", "warning     versions: torch 2.0"):
        assert words in told
    assert told.count("aux layers") == 1  # each fault once
    assert "$ python -m eagle3lab run tiny --from extraction" in told and "PROFILE" not in told
    (run,) = lab.folders()
    assert main(["status", "tiny"]) == 0
    assert "| tiny | 00_doctor | fault: aux layers: [2, 2, 1] collide |" in capsys.readouterr().out
    assert main(["run", "tiny", "--only", "doctor"]) == 0  # a chain goes on, and says so
    assert f"00_doctor: 1 fault, see runs/{run}/report.json\n" in capsys.readouterr().out


@pytest.mark.notebooks
def test_a_stage_that_ends_well_says_what_was_lost_and_so_does_one_that_is_unchanged(lab, capsys):
    lost = "4 of 30 rows lost to errors (1 more skipped); first: mine, line 4: not JSON"
    lab.notebook(
        "data_prep", "words: int = 3  # words\n",
        "run.path('p').write_text('x')\nrun.add('prepared', 'p', 'data')",
        f"run.result(lost_rows={lost!r})\nrun.finish()",
    )  # fmt: skip
    for _ in range(2):
        assert main(["run", "tiny", "--only", "data_prep"]) == 0
        told = capsys.readouterr().out
        assert f"    {lost}\n" in told and "nbconvert --to html PATH" in told
        assert told.endswith(f"  runs/{lab.folders()[0]}/01_data_prep.ipynb\n")
    assert standing_warnings({"data_prep": {"lost_rows": lost}}) == [("data_prep", lost)]
    assert standing_warnings({"data_prep": {"lost_rows": None}, "doctor": {"faults": []}}) == []


def test_what_a_benchmark_could_not_measure_stands_as_a_warning():
    row = {"errors": 2}
    serving = {"rows": [{"errors": 0}, row], "failed": {"chain 3": "RuntimeError: no memory"},
               "grid": [{"row": row, "reason": ""}, {"row": None, "reason": "ValueError: greedy only"}]}  # fmt: skip
    assert standing_warnings({"serving": serving}) == [
        ("serving", "2 settings could not be measured; the first: RuntimeError: no memory"),
        ("serving", "4 requests of the benchmark got no usable answer"),
    ]
    assert standing_warnings({"serving": {"rows": [{"errors": 0}], "grid": [], "failed": {}}}) == []


def test_a_stage_at_work_is_said_to_be_running(lab):
    open_run("data_prep", {"profile": "tiny", "runs_dir": "runs", "words": 4, "lr": 1e-3, "suite": None})
    (row,) = plan("tiny", stages=["data_prep"])
    assert (row.state, row.why) == ("running", "is running now")


def test_output_that_nobody_reads_on_ends_the_command_quietly(lab):
    closed = "import os, sys\nread, write = os.pipe()\nos.close(read)\nos.dup2(write, 1)\n"
    command = "from eagle3lab.workbench.cli import main\nsys.exit(main(['params', 'data_prep']))"
    process = lab.command("-c", closed + command)
    assert process.communicate(timeout=120)[0] == "" and process.returncode == 141


def test_one_value_for_a_parameter_that_is_a_list_in_one_stage_and_a_number_in_another(lab):
    lab.layer("common", "profile: tiny\n")
    lab.notebook("inference", "words: list[int] = [1, 2]  # words\n")
    given = {"words": CommandLineText("2")}
    assert resolve_parameters("data_prep", "tiny", given).values["words"] == 2
    assert resolve_parameters("inference", "tiny", given).values["words"] == [2]


def test_a_parameter_of_a_stage_that_is_not_selected_is_named_with_its_stage(lab):
    with pytest.raises(ParameterError, match="'times' belongs to inference, which is not selected; selected: data"):
        share_overrides(["data_prep"], {"times": 3})
    lab.notebook("inference", "serving_run: str = 'latest'  # a run\n")
    with pytest.raises(ParameterError) as refused:
        share_overrides(["data_prep", "inference"], {"learning_rate": 3})
    assert "unknown parameter 'learning_rate' in data_prep, inference" in str(refused.value)  # and no far guess


@pytest.mark.parametrize(
    ("unit", "rate", "told"),
    [
        ("answers", 41.3, "3/8 answers · 41.3 answers/s"),
        ("answers", 1 / 22.8, "3/8 answers · 22.8 s each"),
        ("answers of part 2 of 2", 1.7, "3/8 answers of part 2 of 2 · 1.7 answers/s"),
    ],
)
def test_a_rate_reads_as_a_sentence(unit, rate, told):
    state = {"done": 3, "total": 8, "unit": unit, "rate": rate, "seconds_left": None, "note": ""}
    assert progress_text(state) == told


def test_only_changes_of_tracked_files_count_as_changes(lab):
    def git(*words):
        subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@x", *words], cwd=lab.root, check=True)

    git("init", "-q")
    git("add", "notebooks")
    git("commit", "-q", "-m", "x")
    assert git_state()["dirty"] is False  # though params/ is there, untracked
    lab.notebook("inference", "times: int = 5  # times\n")
    assert git_state()["dirty"] is True
