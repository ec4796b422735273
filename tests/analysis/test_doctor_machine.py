"""Every check of the machine: the good case passes, the planted fault is found."""

import os
import signal
import subprocess
import sys
import time
from importlib import metadata

import pytest

from eagle3lab.analysis import doctor
from eagle3lab.analysis.doctor import machine
from eagle3lab.analysis.doctor.machine import Process

GIB = 2**30
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
    assert "requirements.lock" in rows["transformers"].remedy


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


@pytest.mark.parametrize("check", [doctor.check_memory, doctor.check_disk])
def test_memory_and_disk(check):
    assert check(100 * GIB, 80 * GIB).verdict == "ok"
    tight = check(100 * GIB, 90 * GIB)
    assert tight.verdict == "warning"
    assert (tight.found, tight.expected) == ("100.0 GiB free", "90.0 GiB needed")
    assert check(100 * GIB, 101 * GIB).verdict == "fault"


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
    assert doctor.available_memory() > 0


def test_memory_limit_of_a_container(tmp_path):
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.max").write_text("1000000\n")
    assert doctor.available_memory(tmp_path) == 300_000
    (tmp_path / "memory.max").write_text("max\n")
    assert doctor.available_memory(tmp_path) > 1_000_000


def test_kernelspec():
    arguments = ["-m", "ipykernel_launcher", "-f", "{connection_file}"]
    assert doctor.check_kernelspec([sys.executable, *arguments]).verdict == "ok"
    assert doctor.check_kernelspec(["python", *arguments]).verdict == "ok"  # jupyter_client puts its own in
    row = doctor.check_kernelspec(["/other/env/bin/python3", *arguments])
    assert row.verdict == "fault" and sys.executable in row.remedy
    assert doctor.check_kernelspec([]).verdict == "fault"


ENDED = "2026-03-01T12:00:00+00:00"
ENDED_S = 1772366400.0


def record(**changes):
    ended = {"run_id": "demo-serving-1", "state": "ok", "pid": 10, "process_groups": [20], "ended": ENDED}
    return {**ended, **changes}


def test_no_leftovers():
    other = [Process(30, 30, ENDED_S - 5, "bash")]
    (row,) = doctor.check_leftovers([record()], other)
    assert row.verdict == "ok"
    assert doctor.check_leftovers([], other)[0].verdict == "ok"


def test_a_server_left_behind():
    (row,) = doctor.check_leftovers([record()], [Process(21, 20, ENDED_S - 5, "server")])
    assert row.verdict == "warning"
    assert "demo-serving-1" in row.check and "server (21)" in row.found and "kill -- -20" in row.remedy


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


def test_rows_need_a_known_verdict_and_a_remedy():
    with pytest.raises(ValueError, match="needs a remedy"):
        doctor.Check("disk", "1", "2", "fault")
    with pytest.raises(ValueError, match="is none of"):
        doctor.Check("disk", "1", "2", "good")
    rows = [doctor.Check("a", "", "", "ok"), doctor.Check("b", "", "", "fault", "mend")]
    assert doctor.faults(rows) == rows[1:]
    assert doctor.verdict_counts(rows) == {"ok": 1, "warning": 0, "fault": 1, "not checked": 0}
