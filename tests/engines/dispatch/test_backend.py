"""Real HTTP to a server that fails on demand: its failures are told apart, and rows go where they must."""

import asyncio

from eagle3lab.engines.dispatch.backend import ServerBackend
from eagle3lab.engines.dispatch.policy import Policy
from eagle3lab.engines.dispatch.run import dispatch
from eagle3lab.engines.dispatch.work import Partition, Work
from tests.engines.dispatch.fakes import answers, aside
from tests.engines.fake_server import FakeServer, Reset, Status, answer

END = 1
PARTITION = Partition("short", concurrency=6, max_tokens=5, timeout_s=20.0)
POLICY = Policy(retries=1, pause_s=0.001, probe_s=0.01, deadline_s=20.0)
ROWS = [(f"r{i}", [i, 5, 5]) for i in range(2, 40)]


def reply(body, attempt):
    first = body["input_ids"][0]
    if first == 7:
        return Status(400, "no such thing")
    if first == 9:
        return Status(400, "The input is longer than the model's context length")
    if first == 11:
        return Status(500, "out of luck")
    if first in (13, 15) and attempt == 0:
        return Reset()
    if first == 17 and attempt == 0:
        return Status(503, "later")
    return answer([first, END], "stop", END) if first % 2 else answer([first] * 5)


def run(urls, folder, **more):
    backends = [ServerBackend(url, {END}, PARTITION.concurrency) for url in urls]
    return list(dispatch([Work("set", PARTITION, ROWS)], backends, folder, "t", POLICY, **more))


def test_refusals_failures_and_lost_connections_are_told_apart(tmp_path):
    with FakeServer(reply) as server:
        last = run([server.url], tmp_path)[-1]
        assert server.most <= 6
    assert aside(tmp_path) == {"r7": "refused", "r9": "context", "r11": "failed"}
    right = {
        key: ("set", ids, [ids[0], END] if ids[0] % 2 else [ids[0]] * 5, "stop" if ids[0] % 2 else "length")
        for key, ids in ROWS
        if ids[0] not in (7, 9, 11)
    }
    assert answers(tmp_path) == right
    assert last.errors == {"refused": 1, "context": 1, "failed": 1} and last.servers[0].name == server.url


def test_two_urls_share_the_work_and_one_that_is_not_there_is_left_out(tmp_path):
    def calm(body, attempt):
        return reply(body, 9)

    with FakeServer(calm) as one, FakeServer(calm) as two:
        run([one.url, two.url, "http://127.0.0.1:9"], tmp_path)
        assert one.bodies and two.bodies
    assert len(answers(tmp_path)) == len(ROWS) - 3


def test_a_server_is_alive_as_long_as_it_answers():
    async def asked(url):
        async with ServerBackend(url, (), 1) as backend:
            return await backend.alive()

    with FakeServer(reply) as server:
        assert asyncio.run(asked(server.url))
    assert not asyncio.run(asked(server.url))
