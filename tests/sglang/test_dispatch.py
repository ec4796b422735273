"""Inference left alone with a real server: its answers, rows it will not take, and its death on the way."""

import os
import signal
import threading

import pytest

from eagle3lab.engines.dispatch.backend import ServerBackend
from eagle3lab.engines.dispatch.policy import Policy
from eagle3lab.engines.dispatch.run import dispatch
from eagle3lab.engines.dispatch.work import Partition, Work
from tests.engines.dispatch.fakes import answers, aside
from tests.engines.story import greedy_answers
from tests.engines.story_fixtures import ANSWER

pytestmark = pytest.mark.sglang
PARTITION = Partition("short", concurrency=6, max_tokens=ANSWER, timeout_s=120.0)


@pytest.fixture(scope="module")
def rows(story_prompts):
    return [(f"r{i}", ids) for i, ids in enumerate(story_prompts)]


@pytest.fixture(scope="module")
def right(story_embedded, story_prompts):
    rows = greedy_answers(story_embedded, story_prompts, ANSWER)
    return {row["id"]: ("set", row["prompt_ids"], row["output_ids"], "length") for row in rows}


def run(works, url, folder, policy=None, sees=lambda view: None):
    for view in dispatch(works, [ServerBackend(url, (), PARTITION.concurrency)], folder, "glassllm", policy):
        sees(view)
    return view


def test_a_dispatch_gives_the_answers_of_the_embedded_engine(story_engine, rows, right, tmp_path):
    too_long = ("too long", [5] * 120)
    last = run([Work("set", PARTITION, [*rows, too_long])], story_engine.servers.plain().url, tmp_path)
    assert answers(tmp_path) == right
    assert aside(tmp_path) == {"too long": "context"}
    assert (last.done, last.set_aside, last.waiting) == (len(rows), 1, 0)


def test_a_server_killed_on_the_way_is_waited_for_and_no_row_is_lost(story_engine, rows, right, tmp_path):
    policy = Policy(probe_s=0.5, longest_probe_s=1.0, deadline_s=600.0)
    again = []

    def kill_once(view):
        if view.done >= 3 and not again:
            os.kill(server.pid, signal.SIGKILL)
            again.append(threading.Thread(target=server.restart))
            again[0].start()

    server = story_engine.servers.plain()
    first = server.pid
    last = run([Work("set", PARTITION, rows)], server.url, tmp_path / "journal", policy, kill_once)
    again[0].join()
    assert answers(tmp_path / "journal") == right and aside(tmp_path / "journal") == {}
    assert last.retries > 0 and server.alive() and server.pid != first
