"""Whatever the moment it is cut off at: the next dispatch goes on, and in the end every row is done exactly once."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3lab.engines.dispatch import journal as journal_module
from eagle3lab.engines.dispatch.journal import Journal
from eagle3lab.engines.servers.errors import RequestRefused
from tests.engines.dispatch.fakes import FakeServer, answers, aside, expected, run, work
from tests.engines.dispatch.kill_child import POISON, works

ROOT = Path(__file__).parents[3]


class Crash(BaseException):
    """The power goes."""


def undisturbed(all_works, poison):
    return {key: row for key, row in expected(all_works).items() if key not in poison}


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_fifty_crashes_at_any_write_lose_nothing(tmp_path_factory, monkeypatch, data):
    folder = tmp_path_factory.mktemp("crash")
    all_works, poison = [work(40, "a"), work(25, "b")], {"a-3", "b-20"}
    writes = [0]
    real = os.write

    def server():
        return FakeServer(trouble=lambda row, n: RequestRefused("400") if row in poison else None)

    for _ in range(data.draw(st.integers(1, 3), label="crashes")):
        crash_at = writes[0] + data.draw(st.integers(1, 70), label="at write")
        share = data.draw(st.floats(0, 1), label="share of the line that is written")

        def write(handle, line, crash_at=crash_at, share=share):
            writes[0] += 1
            if writes[0] == crash_at:
                real(handle, line[: int(share * len(line))])
                raise Crash
            return real(handle, line)

        with monkeypatch.context() as patch:
            patch.setattr(journal_module.os, "write", write)
            patch.setattr(journal_module.os, "ftruncate", lambda handle, size: None)  # nobody tidies up after a crash
            try:
                run(all_works, [server(), server()], folder)
            except Crash:
                pass
        lines = (folder / "completions.jsonl").read_bytes().count(b"\n")
        with Journal(folder, {}) as journal:
            assert len(journal.done) == lines
    run(all_works, [server(), server()], folder)
    assert answers(folder) == undisturbed(all_works, poison)
    assert set(aside(folder)) == poison


@settings(max_examples=25, deadline=None)
@given(cut=st.floats(0, 1), cut_aside=st.floats(0, 1))
def test_files_cut_anywhere_as_by_a_power_cut_are_made_whole(tmp_path_factory, cut, cut_aside):
    folder = tmp_path_factory.mktemp("cut")
    all_works, poison = [work(40)], {"set-3", "set-30"}

    def server():
        return FakeServer(trouble=lambda row, n: RequestRefused("400") if row in poison else None)

    run(all_works, [server()], folder)
    for name, share in (("completions.jsonl", cut), ("set_aside.jsonl", cut_aside)):
        os.truncate(folder / name, int(share * (folder / name).stat().st_size))
    kept = {line.split(b'"')[3].decode() for line in (folder / "completions.jsonl").read_bytes().split(b"\n")[:-1]}
    second = server()
    run(all_works, [second], folder)
    assert answers(folder) == undisturbed(all_works, poison) and set(aside(folder)) == poison
    assert not kept & set(second.asked)


@pytest.mark.slow
def test_kill_9_at_random_moments_loses_nothing(tmp_path):
    chance, kills, before = random.Random(7), 0, 0
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.engines.dispatch.kill_child", str(tmp_path / "journal")]
    journal = tmp_path / "journal" / "completions.jsonl"
    for _ in range(6):
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env=environment)
        child.stdout.readline()
        while child.poll() is None and not (journal.exists() and journal.stat().st_size > before):
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.08))
        child.send_signal(signal.SIGKILL)
        child.stdout.close()
        kills += child.wait() == -signal.SIGKILL
        before = journal.stat().st_size
    assert kills >= 4 and len(journal.read_bytes().splitlines()) < 998
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    assert answers(tmp_path / "journal") == undisturbed(works(), POISON)
    assert set(aside(tmp_path / "journal")) == POISON
