"""Every check of the machine: the good case passes, the planted fault is found."""

import os
import shlex
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest

from eagle3lab.analysis import doctor
from eagle3lab.analysis.doctor import machine
from eagle3lab.analysis.doctor.machine import Process
from eagle3lab.workbench.params import all_parameter_names
from eagle3lab.workbench.stages import STAGES

GIB = 2**30
MAKEFILE = Path(__file__).parents[3] / "Makefile"
LOCK = """\
# frozen
--extra-index-url somewhere
torch==2.13.0+cpu
Transformers==5.19.0  # with a comment
tokenizers[extra]==0.23.0 ; python_version >= "3.11"
local-thing @ file:///somewhere
safetensors==0.8.0 \\
    --hash=sha256:abc
"""


@pytest.fixture
def lock(tmp_path):
    path = tmp_path / "requirements.lock"
    path.write_text(LOCK)
    return path


def versions(lock, **installed):
    def version(package):
        if package not in installed:
            raise metadata.PackageNotFoundError(package)
        return installed[package]

    rows = doctor.check_versions(lock, ("torch", "transformers"), version)
    return {row.check.removeprefix("version of "): row for row in rows}


def test_pins_are_read_from_a_freeze_file():
    expected = {
        "torch": "2.13.0+cpu",
        "transformers": "5.19.0",
        "tokenizers": "0.23.0",
        "safetensors": "0.8.0",
    }
    assert machine.read_pins(LOCK) == expected


def test_versions_as_locked(lock):
    rows = versions(lock, torch="2.13.0+cu130", transformers="5.19.0")
    assert [row.verdict for row in rows.values()] == ["ok", "ok"]


def test_version_faults(lock):
    rows = versions(lock, transformers="5.18.0")
    assert rows["torch"].verdict == "fault" and rows["torch"].found == "not installed"
    assert rows["transformers"].verdict == "warning"
    assert (rows["transformers"].found, rows["transformers"].expected) == ("5.18.0", "5.19.0")
    for row in rows.values():
        assert (
            "requirements.lock" in row.remedy and row.command == f"{sys.executable} -m pip install -r requirements.lock"
        )


def test_versions_without_a_lock_or_a_pin(tmp_path, lock):
    (row,) = doctor.check_versions(tmp_path / "absent.lock")
    assert row.verdict == "not checked"
    (row,) = doctor.check_versions(lock, ["papermill"], lambda name: "2.7.0")
    assert row.verdict == "not checked" and "pin papermill" in row.remedy


def test_python(tmp_path):
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text('[project]\nname = "x"\nrequires-python = ">=3.11,<3.13"\n')
    assert doctor.check_python(pyproject, "3.11.9").verdict == "ok"
    assert doctor.check_python(pyproject, "3.10.1").verdict == "fault"
    assert doctor.check_python(pyproject, "3.13.0").verdict == "fault"
    pyproject.write_text("[project]\n")
    assert doctor.check_python(pyproject, "3.11.9").verdict == "not checked"
    assert doctor.check_python(tmp_path / "absent.toml").verdict == "not checked"


def test_disk():
    assert doctor.check_disk(100 * GIB, 80 * GIB).verdict == "ok"
    tight = doctor.check_disk(100 * GIB, 90 * GIB)
    assert tight.verdict == "warning"
    assert (tight.found, tight.expected) == ("100.0 GiB free", "90.0 GiB needed")
    assert doctor.check_disk(100 * GIB, 101 * GIB).verdict == "fault"


def test_the_case_does_not_fit_on_a_2_tib_disk():
    # 3 aux states and the last one of 7168 in bfloat16, and the id: 56 KiB + 4 bytes a token
    row = doctor.check_disk(2 * 2**40, 88_000 * 2_000 * (56 * 1024 + 4))
    assert row.verdict == "fault" and row.expected == "9.2 TiB needed"


def test_cores_and_hours():
    assert doctor.check_cores(2, 2).verdict == "ok"
    assert doctor.check_cores(1, 2).verdict == "warning"
    assert doctor.check_hours(0.2, 0.25).verdict == "ok"
    assert doctor.check_hours(0.24, 0.25).verdict == "warning"
    row = doctor.check_hours(55, 24)
    assert row.verdict == "fault" and row.found == "55.0 h estimated"


def test_measured_resources_are_plausible(tmp_path):
    assert 1 <= doctor.usable_cores() <= os.cpu_count()
    assert doctor.free_disk(tmp_path / "not" / "there") > 0


def test_kernelspec():
    arguments = ["-m", "ipykernel_launcher", "-f", "{connection_file}"]
    assert doctor.check_kernelspec([sys.executable, *arguments]).verdict == "ok"
    assert doctor.check_kernelspec(["python", *arguments]).verdict == "ok"  # jupyter_client puts its own in
    row = doctor.check_kernelspec(["/other/env/bin/python3", *arguments])
    assert row.verdict == "fault" and row.command.startswith(f"{sys.executable} -m ipykernel install ")
    assert doctor.check_kernelspec([]).verdict == "fault"


ENDED = "2026-03-01T12:00:00+00:00"
ENDED_S = 1772366400.0


def record(**changes):
    ended = {"run_id": "demo-serving-1", "state": "ok", "pid": 10, "process_groups": [20], "ended": ENDED}
    return {**ended, "profile": "demo", "stage": "serving", **changes}


def test_no_leftovers():
    other = [Process(30, 30, ENDED_S - 5, "bash")]
    (row,) = doctor.check_leftovers([record()], other)
    assert row.verdict == "ok"
    assert doctor.check_leftovers([], other)[0].verdict == "ok"


def test_a_server_left_behind():
    (row,) = doctor.check_leftovers([record()], [Process(21, 20, ENDED_S - 5, "server")])
    assert row.verdict == "warning"
    assert "demo-serving-1" in row.check and "server (21)" in row.found and row.command == "kill -- -20"


def test_a_group_number_used_again_is_nobodys_leftover():
    (row,) = doctor.check_leftovers([record()], [Process(20, 20, ENDED_S + 60, "editor")])
    assert row.verdict == "ok"


def test_a_running_run_is_left_alone():
    alive = [Process(10, 10, ENDED_S, "python"), Process(20, 20, ENDED_S, "server")]
    (row,) = doctor.check_leftovers([record(state="running", ended=None)], alive)
    assert row.verdict == "ok"


def test_a_run_that_says_running_but_is_gone():
    rows = doctor.check_leftovers([record(state="running", ended=None)], [Process(21, 20, ENDED_S, "server")])
    assert [row.verdict for row in rows] == ["warning", "warning"]
    assert "process gone" in rows[0].found and "server (21)" in rows[1].found
    assert [row.command for row in rows] == ["python -m eagle3lab run demo --only serving", "kill -- -20"]


def test_a_real_process_left_behind_is_found():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        records = [record(process_groups=[child.pid], ended="2100-01-01T00:00:00+00:00")]
        (row,) = doctor.check_leftovers(records, doctor.processes())
        assert row.verdict == "warning" and f"({child.pid})" in row.found
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    time.sleep(0.05)
    assert doctor.check_leftovers(records, doctor.processes())[0].verdict == "ok"


def planted_rows(tmp_path, lock):
    """Every check of the machine with what it finds when something is wrong; tests above plant each by itself."""
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text('[project]\nrequires-python = ">=3.11"\n')
    gone = record(state="running", ended=None)
    return [
        doctor.check_python(pyproject, "3.10.1"),
        *versions(lock, transformers="5.18.0").values(),
        doctor.check_cores(1, 2),
        doctor.check_disk(100 * GIB, 90 * GIB),
        doctor.check_disk(100 * GIB, 101 * GIB),
        doctor.check_hours(0.24, 0.25),
        doctor.check_hours(55, 24),
        doctor.check_kernelspec([]),
        *doctor.check_leftovers([gone], [Process(21, 20, ENDED_S - 5, "server")]),
        *doctor.check_contexts(8192, 8000, 512),
    ]


def test_every_fault_of_the_machine_has_a_command_of_its_own(tmp_path, lock):
    rows = planted_rows(tmp_path, lock)
    assert {row.verdict for row in rows} == {"warning", "fault"} and len({row.check for row in rows}) == 9
    assert not [row.check for row in rows if not row.command or row.command in row.remedy]


def test_what_could_not_be_checked_of_the_machine_has_one_too(tmp_path, lock):
    rows = [
        doctor.check_python(tmp_path / "pyproject.toml"),
        *doctor.check_versions(tmp_path / "absent.lock"),
        *doctor.check_versions(lock, ["papermill"], lambda name: "2.7.0"),
    ]
    assert [(row.verdict, bool(row.command)) for row in rows] == [("not checked", True)] * 3


def test_commands_of_the_machine_name_what_there_is(tmp_path, lock):
    for row in planted_rows(tmp_path, lock):
        words = shlex.split(row.command)
        if words[:3] == ["python", "-m", "eagle3lab"]:
            assert words[3] in ("run", "params")
            assert {words[at + 1] for at, word in enumerate(words) if word == "-p"} <= all_parameter_names()
            assert {words[at + 1] for at, word in enumerate(words) if word in ("--only", "--from")} <= set(STAGES)
        elif words[0] == "make":
            assert f"\n{words[1]}:" in MAKEFILE.read_text(encoding="utf-8")
        else:
            assert words[0] in (sys.executable, "du", "kill")


def test_rows_need_a_known_verdict_and_a_remedy():
    with pytest.raises(ValueError, match="needs a remedy"):
        doctor.Check("disk", "1", "2", "fault")
    with pytest.raises(ValueError, match="is none of"):
        doctor.Check("disk", "1", "2", "good")
    rows = [doctor.Check("a", "", "", "ok"), doctor.Check("b", "", "", "fault", "mend")]
    assert doctor.faults(rows) == rows[1:]
    assert doctor.verdict_counts(rows) == {"ok": 1, "warning": 0, "fault": 1, "not checked": 0}
