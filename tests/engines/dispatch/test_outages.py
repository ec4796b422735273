"""A dispatch over fake servers that fail for a while, go away, come back, or are taken down by a row."""

import asyncio

import pytest

from eagle3lab.engines.dispatch.policy import GaveUp
from eagle3lab.engines.servers.errors import ServerFault, ServerGone
from tests.engines.dispatch.fakes import QUICK, FakeServer, answers, aside, expected, run, work
from tests.engines.dispatch.test_dispatcher import patient


def test_while_a_server_fails_everything_no_row_is_blamed(tmp_path):
    works, asked = [work(60)], []

    def for_a_while(row, n):
        asked.append(row)
        return ServerFault("503: no worker") if 15 < len(asked) < 60 else None

    last = run(works, [FakeServer(trouble=for_a_while)], tmp_path, policy=patient(bad_in_a_row=5, retries=1))[-1]
    assert answers(tmp_path) == expected(works) and last.set_aside == 0


class Flaky(FakeServer):
    """Goes away at the n-th request for one of `when`, and comes back a little later."""

    def __init__(self, when, away=0.03, **more):
        super().__init__(delay=lambda row: 0.002, **more)
        self.when, self.away, self.deaths = set(when), away, 0

    async def generate(self, request):
        if self.up and self.kills(request.id):
            self.up = False
            self.deaths += 1
            asyncio.get_running_loop().call_later(self.away, setattr, self, "up", True)
        return await super().generate(request)

    def kills(self, row_id):
        asked = sum(self.asked.values())
        if asked in self.when:
            self.when.discard(asked)
            return True
        return False


def test_a_server_that_goes_and_comes_back_loses_no_row(tmp_path):
    works = [work(120)]
    server = Flaky({10, 40, 90})
    last = run(works, [server], tmp_path)[-1]
    assert server.deaths == 3
    assert answers(tmp_path) == expected(works) and last.set_aside == 0 and last.retries > 0


def test_a_second_server_goes_on_alone(tmp_path):
    works = [work(150)]
    gone, well = Flaky({5}, away=60.0, name="gone"), FakeServer("well", delay=lambda row: 0.001)
    last = run(works, [gone, well], tmp_path)[-1]
    assert answers(tmp_path) == expected(works) and [server.up for server in last.servers] == [False, True]


def test_a_row_that_takes_its_server_down_is_found_and_set_aside_alone(tmp_path):
    class Killed(Flaky):
        def kills(self, row_id):
            return row_id == "set-11"

    works = [work(60)]
    server = Killed(())
    run(works, [server], tmp_path)
    assert aside(tmp_path) == {"set-11": "lost"}
    assert answers(tmp_path) == {key: row for key, row in expected(works).items() if key != "set-11"}
    assert server.deaths == QUICK.lost + 2


def test_without_a_server_it_gives_up_past_the_deadline_and_keeps_everything(tmp_path):
    works = [work(100)]
    server = Flaky({30}, away=3600.0)
    with pytest.raises(GaveUp, match=r"no server for .* rows wait"):
        run(works, [server], tmp_path, policy=patient(deadline_s=0.05))
    kept = answers(tmp_path)
    assert 0 < len(kept) < 100 and kept.items() <= expected(works).items() and aside(tmp_path) == {}
    after = FakeServer()
    run(works, [after], tmp_path)
    assert answers(tmp_path) == expected(works)
    assert not set(after.asked) & set(kept)


def test_a_server_that_is_there_but_drops_every_connection_takes_no_row_with_it(tmp_path):
    works = [work(300)]
    server = FakeServer(trouble=lambda row, n: ServerGone("connection reset"))
    with pytest.raises(GaveUp, match="connection reset"):
        run(works, [server], tmp_path, policy=patient(bad_in_a_row=10, deadline_s=0.2))
    assert aside(tmp_path) == {}
    run(works, [FakeServer()], tmp_path)
    assert answers(tmp_path) == expected(works)


def test_a_server_that_is_not_there_yet_is_waited_for(tmp_path):
    server = FakeServer()
    server.up = False

    class Later(FakeServer):
        async def alive(self):
            server.up = True
            return True

    late = Later()
    late.up = False
    late.generate = server.generate
    assert run([work(10)], [late], tmp_path)[-1].done == 10
