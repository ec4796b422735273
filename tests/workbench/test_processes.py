"""Processes of a run are found by their mark and ended, stubborn ones too; the terminal's line."""

import io
import os
import subprocess
import sys

import psutil

from eagle3lab.workbench.processes import (
    DRIVEN_VARIABLE,
    end_marked_processes,
    marked_processes,
    process_groups,
)
from eagle3lab.workbench.terminal import Terminal

STUBBORN = (
    "import signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "code = 'import time; print(1, flush=True); time.sleep(60)'\n"
    "child = subprocess.Popen([sys.executable, '-c', code], start_new_session=True, stdout=subprocess.PIPE)\n"
    "child.stdout.readline()\n"  # until it has begun, its environment cannot be read
    "print('ready', flush=True)\ntime.sleep(60)"
)


def at_work(process):
    """Whether it runs: one that ended may be a zombie until whoever inherited it looks."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_leftovers_are_found_and_ended():
    mark = f"tiny-training-00000000:{os.getpid()}"
    environment = {**os.environ, DRIVEN_VARIABLE: mark}
    parent = subprocess.Popen([sys.executable, "-c", STUBBORN], env=environment, stdout=subprocess.PIPE)
    assert parent.stdout.readline() == b"ready\n"
    found = marked_processes(mark)
    assert len(found) == 2 and parent.pid in {process.pid for process in found}
    assert len(process_groups(found)) == 2  # the grandchild has a session of its own
    assert marked_processes(mark + "x") == []
    assert sorted(end_marked_processes(mark, patience=0.5)) == sorted(process.pid for process in found)
    assert marked_processes(mark) == []
    assert parent.poll() is not None
    assert not any(map(at_work, found))


class Screen(io.StringIO):
    def isatty(self):
        return True


PROGRESS = {
    "done": 1200,
    "total": 5000,
    "unit": "rows",
    "note": "loss 2.1",
    "rate": 40.0,
    "seconds_left": 95.0,
}


def test_a_terminal_line_is_drawn_in_place(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    screen = Screen()
    terminal = Terminal(screen)
    terminal.begin("[4/9] 04_training")
    terminal.step("train")
    terminal.draw(PROGRESS)
    assert screen.getvalue().split("\r")[-1].strip() == (
        "[4/9] 04_training · 0:00 · train · 1,200/5,000 rows · 40.0 rows/s · 1:35 left · loss 2.1"
    )
    terminal.say("done")
    assert screen.getvalue().endswith("\rdone\n") and "\n" not in screen.getvalue()[:-1]


def test_without_a_terminal_lines_are_few():
    stream = io.StringIO()
    terminal = Terminal(stream)
    terminal.begin("[4/9] 04_training")
    for _ in range(100):
        terminal.draw(PROGRESS)
    assert len(stream.getvalue().splitlines()) == 1
