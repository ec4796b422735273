"""The client from ordinary code: threads begin and end with the loop over the answers."""

import asyncio
import threading
import time

import pytest

from eagle3lab.engines.base import Request
from eagle3lab.engines.servers.errors import RequestRefused
from eagle3lab.engines.sglang.blocking import generate_all
from tests.engines.fake_server import FakeServer, Status, echo

REQUESTS = [Request(f"r{i}", [10 + i], 2) for i in range(12)]


def request_threads():
    return [thread for thread in threading.enumerate() if thread.name == "eagle3lab-requests"]


def test_answers_come_as_they_end():
    arrived = threading.Event()

    def reply(body, attempt):
        if body["input_ids"] == [10]:
            assert arrived.wait(20)
        return echo(body)

    with FakeServer(reply) as server:
        ids = []
        for done in generate_all(server.url, REQUESTS, concurrency=3):
            ids.append(done.id)
            if len(ids) == 11:
                arrived.set()  # the first request is answered only after all others arrived here
    assert ids[-1] == "r0" and sorted(ids) == sorted(r.id for r in REQUESTS)
    assert not request_threads()


def test_it_works_inside_a_running_event_loop():
    """As in a notebook's kernel."""

    async def cell():
        return sorted(done.id for done in generate_all(server.url, REQUESTS))

    with FakeServer(echo) as server:
        assert asyncio.run(cell()) == sorted(request.id for request in REQUESTS)


def test_a_loop_left_early_cancels_what_is_on_its_way():
    def slow(body, attempt):
        if body["input_ids"][0] > 12:
            time.sleep(0.3)
        return echo(body)

    with FakeServer(slow) as server:
        answers = generate_all(server.url, REQUESTS, concurrency=2)
        next(answers)
        answers.close()
        assert not request_threads()
        time.sleep(0.4)  # what was sent already arrives
        asked = len(server.bodies)
        time.sleep(0.4)
        assert len(server.bodies) == asked <= 4


def test_an_interrupt_while_waiting_ends_the_thread(monkeypatch):
    real = asyncio.run_coroutine_threadsafe
    calls = []

    def interrupted(coroutine, loop):
        future = real(coroutine, loop)
        calls.append(future)
        if len(calls) == 2:
            future.result = lambda: (_ for _ in ()).throw(KeyboardInterrupt)
        return future

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
    with FakeServer(lambda body, attempt: time.sleep(0.2) or echo(body)) as server:
        answers = generate_all(server.url, REQUESTS, concurrency=2)
        next(answers)
        with pytest.raises(KeyboardInterrupt):
            next(answers)
    assert not request_threads()


def test_errors_reach_the_caller():
    with FakeServer(lambda body, attempt: Status(400, "no")) as server:
        with pytest.raises(RequestRefused, match="refuses it"):
            list(generate_all(server.url, REQUESTS))
    assert not request_threads()


def test_no_requests_no_answers():
    with FakeServer(echo) as server:
        assert list(generate_all(server.url, [])) == [] and not server.bodies
