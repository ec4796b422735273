"""Starting, watching and ending a server's processes, with a stand-in that behaves as badly as servers do."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from eagle3lab.analysis.doctor import check_leftover_servers
from eagle3lab.engines.servers.http import answer
from eagle3lab.engines.servers.process import (
    SERVER_VARIABLE,
    ServerProcess,
    ServerStartError,
    free_port,
    leftover_servers,
    port_is_free,
)

STAND_IN = Path(__file__).with_name("stand_in.py")


class Server(ServerProcess):
    """A stand-in that is surely gone after the test."""

    def __init__(self, log, *behaviour):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        super().__init__([sys.executable, str(STAND_IN), str(self.port), *behaviour], dict(os.environ), log)

    def launch(self, deadline_s=30.0):
        self.start()
        self.wait_ready(self.url, deadline_s)


@pytest.fixture
def server(tmp_path, request):
    made = []

    def make(*behaviour):
        made.append(Server(tmp_path / "logs" / "server.log", *behaviour))
        return made[-1]

    yield make
    for each in made:
        each.stop(patience_s=0.1)


def wait_for(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def test_a_server_gets_ready_and_leaves_nothing_behind(server):
    process = server()
    process.launch()
    assert process.alive() and answer(process.url, "/health")[0] == 200
    assert [p.pid for p in process.members()] == [process.pid]
    process.stop()
    assert not process.alive() and process.members() == [] and port_is_free(process.port)
    process.stop()


def test_a_dead_server_is_an_error_at_once_with_the_end_of_its_log(server):
    process = server("dies")
    with pytest.raises(ServerStartError, match=r"ended with code 3 before it was ready\n(?s:.*)out of memory"):
        process.launch(deadline_s=3600)


def test_a_server_that_a_signal_ended_says_which(server):
    with pytest.raises(ServerStartError, match="ended by SIGKILL"):
        server("dies by signal").launch(deadline_s=3600)


@pytest.mark.parametrize(
    ("behaviour", "reason"), [("never ready", "/health answered 503"), ("never listens", "nothing listens there")]
)
def test_a_server_that_is_not_ready_in_time(server, behaviour, reason):
    process = server(behaviour)
    with pytest.raises(ServerStartError, match=f"not ready after 1 s .*{reason}(?s:.*)server started with"):
        process.launch(deadline_s=1)


def test_the_log_of_an_earlier_start_is_not_shown(server):
    process = server("dies")
    process.log.parent.mkdir()
    process.log.write_text("an old story\n")
    with pytest.raises(ServerStartError) as error:
        process.launch()
    assert "an old story" not in str(error.value) and "out of memory" in str(error.value)
    assert process.log.read_text().startswith("an old story\n")


def test_a_command_that_is_not_there(tmp_path):
    process = ServerProcess([str(tmp_path / "python")], {}, tmp_path / "log")
    with pytest.raises(ServerStartError, match="cannot be run"):
        process.start()


@pytest.mark.parametrize("behaviour", ["ignores SIGTERM", "has a child", "has a child in a session of its own"])
def test_nothing_is_left_of_a_server_that_does_not_end_by_itself(server, behaviour):
    process = server(behaviour)
    process.launch()
    members = process.members()
    assert len(members) == (1 if behaviour == "ignores SIGTERM" else 2)
    process.stop(patience_s=0.5)
    assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in members)
    assert port_is_free(process.port)


def test_a_killed_server_is_noticed_and_its_children_are_ended(server):
    process = server("has a child")
    process.launch()
    _, child = sorted(process.members(), key=lambda p: p.pid != process.pid)
    os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: not process.alive())
    assert process.members() == [child]
    process.stop()
    assert process.members() == []


def test_it_starts_again_on_the_same_port(server):
    process = server()
    process.launch()
    first = process.pid
    process.stop()
    process.launch()
    assert process.pid != first and process.alive()


def test_other_processes_of_the_same_owner_are_left_alone(server):
    process, other = server(), server()
    process.launch()
    other.launch()
    process.stop()
    assert other.alive()


def test_a_server_is_marked_by_its_owner(server):
    process = server()
    process.launch()
    _, body = answer(process.url, "/environment")
    pid, started, token = json.loads(body)[SERVER_VARIABLE].split(":")
    assert int(pid) == os.getpid() and abs(float(started) - psutil.Process().create_time()) < 0.01 and len(token) == 16


OWNER = """
import os, signal, sys
from eagle3lab.engines.servers.process import ServerProcess, free_port

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGTERM, interrupt)  # as the runner does
port, (stand_in, log, *behaviour) = free_port(), sys.argv[1:]
process = ServerProcess([sys.executable, stand_in, str(port), *behaviour], dict(os.environ), log)
try:
    process.start()
    print(process.pid, flush=True)
    process.wait_ready(f"http://127.0.0.1:{port}", 600)
finally:
    process.stop(patience_s=0.2)
"""


@contextmanager
def owner_of_a_loading_server(log, *behaviour):
    """(the process that started a server and waits for it, the server's group)."""
    command = [sys.executable, "-c", OWNER, str(STAND_IN), str(log), "never ready", *behaviour]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as owner:
        group = int(owner.stdout.readline())
        try:
            wait_for(lambda: "server started" in log.read_text())
            yield owner, group
        finally:
            owner.kill()
            for process in members_of(group):
                process.kill()


def members_of(group):
    def belongs(process):
        try:
            return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
        except (OSError, psutil.Error):
            return False

    return [process for process in psutil.process_iter() if belongs(process)]


def test_an_interrupt_while_it_loads_ends_it(tmp_path):
    with owner_of_a_loading_server(tmp_path / "log", "ignores SIGTERM", "has a child") as (owner, group):
        wait_for(lambda: len(members_of(group)) == 2)
        owner.terminate()
        assert b"KeyboardInterrupt" in owner.communicate(timeout=60)[1]
        assert members_of(group) == []


def test_a_server_whose_owner_was_killed_is_found_as_a_leftover(tmp_path):
    with owner_of_a_loading_server(tmp_path / "log", "has a child") as (owner, group):
        wait_for(lambda: len(members_of(group)) == 2)
        assert group not in [process.pid for process in leftover_servers()]
        owner.kill()
        owner.wait()
        assert [process.pid for process in leftover_servers() if os.getpgid(process.pid) == group] == [group]
        (row,) = [row for row in check_leftover_servers() if row.check == f"server {group}"]
        assert row.verdict == "warning" and row.command == f"kill -- -{group}" and "stand_in.py" in row.found
    wait_for(lambda: group not in [process.pid for process in leftover_servers()])  # a killed process takes its time


def test_free_ports_are_free_and_differ():
    ports = [free_port() for _ in range(5)]
    assert len(set(ports)) == 5 and all(map(port_is_free, ports))
