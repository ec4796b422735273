"""A dispatch over fake servers: everything is answered exactly once, whatever rows and servers do."""

from math import fsum

import pytest

from eagle3lab.engines.dispatch.journal import read_set_aside
from eagle3lab.engines.dispatch.policy import GaveUp, Policy
from eagle3lab.engines.dispatch.run import dispatch
from eagle3lab.engines.dispatch.work import Partition, Sampling, Work, WorkError
from eagle3lab.engines.servers.errors import ContextRefused, RequestRefused, ServerFault, ServerGone
from tests.engines.dispatch.fakes import PARTITION, QUICK, FakeServer, answers, aside, expected, run, work


def patient(**more):
    return Policy(**{**QUICK.__dict__, **more})


def test_every_row_is_answered_once_with_the_answer_it_must_have(tmp_path):
    works, server = [work(50, "a"), work(30, "b")], FakeServer()
    last = run(works, [server], tmp_path)[-1]
    assert answers(tmp_path) == expected(works)
    assert set(server.asked.values()) == {1}
    assert (last.rows, last.done, last.set_aside, last.waiting) == (80, 80, 0, 0)
    lengths = [len(row[2]) for row in expected(works).values()]
    assert last.tokens == sum(lengths)
    reasons = [row[3] for row in expected(works).values()]
    assert last.finish == {reason: reasons.count(reason) for reason in set(reasons)}


def test_sets_run_in_order_after_a_few_rows_of_each(tmp_path):
    one = Partition("one", concurrency=1, max_tokens=64)
    server = FakeServer()
    run([work(5, "a", one), work(4, "b", one)], [server], tmp_path)
    pilot, rest = ["a-0", "a-1", "b-0", "b-1"], ["a-2", "a-3", "a-4", "b-2", "b-3"]
    assert server.order == pilot + rest


def test_a_server_never_has_more_rows_than_its_partitions_allow(tmp_path):
    short, long = Partition("short", 6, 64), Partition("long", 2, 64)
    server = FakeServer(delay=lambda row: 0.001)
    run([work(40, "a", short), work(10, "b", long)], [server], tmp_path)
    shares = [fsum(1 / 6 if row[0] == "a" else 1 / 2 for row in rows) for rows in server.together]
    assert max(shares) <= 1 + 1e-9
    assert {len(rows) for rows in server.together if all(row[0] == "a" for row in rows)} >= {6}


def test_max_tokens_and_sampling_reach_the_server(tmp_path):
    seen = {}

    class Listening(FakeServer):
        async def generate(self, request):
            seen[request.id] = (request.max_tokens, request.temperature, request.seed)
            return await super().generate(request)

    works = [work(2, "a", Partition("s", 4, 20)), work(2, "b", Partition("l", 2, 50))]
    run(works, [Listening()], tmp_path, sampling=Sampling(0.7, 5))
    assert seen == {f"{s}-{i}": (n, 0.7, 5) for s, n in (("a", 20), ("b", 50)) for i in range(2)}


def test_work_goes_to_whoever_is_free(tmp_path):
    slow, fast = FakeServer("slow", delay=lambda row: 0.05), FakeServer("fast", delay=lambda row: 0.001)
    works = [work(300)]
    last = run(works, [slow, fast], tmp_path)[-1]
    assert answers(tmp_path) == expected(works)
    assert {server.name: server.answered for server in last.servers}.keys() == {"slow", "fast"}
    assert 0 < len(slow.asked) < len(fast.asked) and len(slow.asked) + len(fast.asked) == 300


@pytest.mark.parametrize(
    "error, kind, requests",
    [
        (lambda: RequestRefused("400: no"), "refused", 1),
        (lambda: ContextRefused("too long"), "context", 1),
        (lambda: ServerFault("500"), "failed", 3),
        (lambda: ValueError("nonsense came back"), "failed", 3),
    ],
)
def test_a_row_that_always_fails_is_set_aside_with_its_reason_and_blocks_nothing(tmp_path, error, kind, requests):
    works = [work(40)]
    server = FakeServer(trouble=lambda row, n: error() if row in ("set-3", "set-30") else None)
    last = run(works, [server], tmp_path)[-1]
    poison = {"set-3", "set-30"}
    assert answers(tmp_path) == {key: row for key, row in expected(works).items() if key not in poison}
    assert aside(tmp_path) == dict.fromkeys(poison, kind)
    assert {server.asked[row] for row in poison} == {requests}
    assert (last.done, last.set_aside, last.waiting, last.errors) == (38, 2, 0, {kind: 2})


def test_words_of_a_server_that_are_no_unicode_end_nothing(tmp_path):
    works = [work(10)]
    server = FakeServer(trouble=lambda row, n: RequestRefused("bad \ud800 \x00 token") if row == "set-3" else None)
    run(works, [server], tmp_path)
    assert len(answers(tmp_path)) == 9 and aside(tmp_path) == {"set-3": "refused"}
    assert "bad \ud800 \x00 token" in read_set_aside(tmp_path)[0]["reason"]


def test_a_row_that_never_answers_times_out_and_is_set_aside(tmp_path):
    works = [work(20, partition=Partition("short", 4, 64, timeout_s=0.05))]
    server = FakeServer(delay=lambda row: 60.0 if row == "set-2" else 0.0)
    run(works, [server], tmp_path)
    assert aside(tmp_path) == {"set-2": "timeout"} and len(answers(tmp_path)) == 19
    assert server.asked["set-2"] == 3 and not server.running


def test_a_row_that_failed_for_a_while_is_answered(tmp_path):
    works = [work(20)]
    server = FakeServer(trouble=lambda row, n: ServerFault("503") if n <= 2 else None)
    last = run(works, [server], tmp_path)[-1]
    assert answers(tmp_path) == expected(works)
    assert last.retries == 40 and last.set_aside == 0


def test_set_aside_rows_stay_aside_until_asked_for(tmp_path):
    works = [work(20)]
    run(works, [FakeServer(trouble=lambda row, n: RequestRefused("no") if row == "set-7" else None)], tmp_path)
    well = FakeServer()
    last = run(works, [well], tmp_path)[-1]
    assert not well.asked and (last.done, last.set_aside) == (19, 1)
    run(works, [well], tmp_path, retry_set_aside=True)
    assert dict(well.asked) == {"set-7": 1}
    assert answers(tmp_path) == expected(works) and aside(tmp_path) == {}


def test_a_row_that_one_server_refuses_is_asked_of_another(tmp_path):
    works = [work(60)]
    broken = FakeServer("broken", trouble=lambda row, n: RequestRefused("404: no such model"))
    well = FakeServer("well", delay=lambda row: 0.002)
    last = run(works, [broken, well], tmp_path, policy=patient(bad_in_a_row=10))[-1]
    assert answers(tmp_path) == expected(works) and last.set_aside == 0
    assert [server.up for server in last.servers] == [False, True]
    assert sum(broken.asked.values()) < 60  # it is left alone after a while


def test_servers_that_refuse_everything_end_the_dispatch_with_the_rest_waiting(tmp_path):
    works = [work(500)]
    server = FakeServer(trouble=lambda row, n: RequestRefused("401: who are you?"))
    with pytest.raises(GaveUp, match="401: who are you"):
        run(works, [server], tmp_path, policy=patient(bad_in_a_row=10))
    assert len(aside(tmp_path)) < 10 + PARTITION.concurrency
    run(works, [FakeServer()], tmp_path, retry_set_aside=True)
    assert answers(tmp_path) == expected(works)


def test_many_rows_that_are_too_long_do_not_make_a_server_suspect(tmp_path):
    works = [work(100)]
    server = FakeServer(trouble=lambda row, n: None if row.endswith("9") else ContextRefused("too long"))
    last = run(works, [server], tmp_path, policy=patient(bad_in_a_row=5))[-1]
    assert last.errors == {"context": 90} and last.done == 10


def test_an_answer_to_another_row_or_a_longer_one_than_asked_for_is_refused(tmp_path):
    class Mixed(FakeServer):
        async def generate(self, request):
            completion = await super().generate(request)
            if request.id == "set-1":
                completion.id = "set-2"
            if request.id == "set-3":
                completion.output_ids = [5] * 65
            return completion

    run([work(10)], [Mixed()], tmp_path)
    assert aside(tmp_path) == {"set-1": "failed", "set-3": "failed"} and len(answers(tmp_path)) == 8


def test_a_loop_that_is_left_cancels_what_is_on_its_way_and_the_next_one_goes_on(tmp_path):
    works = [work(400)]
    server = FakeServer(delay=lambda row: 0.02)
    views = dispatch(works, [server], tmp_path, "fake target", QUICK)
    assert next(views).waiting > 0
    views.close()
    assert not server.running
    before = set(answers(tmp_path))
    after = FakeServer()
    assert run(works, [after], tmp_path)[-1].done == 400
    assert answers(tmp_path) == expected(works) and set(after.asked) == set(expected(works)) - before


def test_a_full_disk_ends_the_dispatch_with_whole_lines(tmp_path, monkeypatch):
    import os

    real, calls = os.write, []

    def write(handle, data):
        calls.append(1)
        if len(calls) == 25:
            return real(handle, data[:10])
        if len(calls) == 26:
            raise OSError(28, "No space left on device")
        return real(handle, data)

    works = [work(100)]
    with monkeypatch.context() as patch:
        patch.setattr("eagle3lab.engines.dispatch.journal.os.write", write)
        with pytest.raises(OSError, match="No space left"):
            run(works, [FakeServer()], tmp_path)
    assert 0 < len(answers(tmp_path)) < 100
    assert (tmp_path / "completions.jsonl").read_bytes().endswith(b"}\n")
    run(works, [FakeServer()], tmp_path)
    assert answers(tmp_path) == expected(works)


def test_rows_are_done_set_aside_or_waiting_in_every_view(tmp_path, monkeypatch):
    monkeypatch.setattr("eagle3lab.engines.dispatch.view.FIRST_GAP_S", 0.005)
    works = [work(150, "a"), work(100, "b")]
    server = FakeServer(
        delay=lambda row: 0.003, trouble=lambda row, n: ServerGone("lost") if row.endswith("7") and n < 3 else None
    )
    views = run(works, [server], tmp_path)
    assert len(views) > 5
    for view in views:
        assert view.rows == 250 == view.done + view.set_aside + view.waiting
        for one in view.sets:
            assert one.rows == one.done + one.set_aside + one.waiting and one.on_way <= one.waiting
    assert [view.done for view in views] == sorted(view.done for view in views)


@pytest.mark.parametrize(
    "works, words",
    [
        ([Work("a", PARTITION, [("x", [1]), ("x", [2])])], "'x' comes twice"),
        ([Work("a", PARTITION, [("x", [1])]), Work("b", PARTITION, [("x", [2])])], "sets 'a' and 'b'"),
        ([work(1, "a", prefix="p"), work(1, "a", prefix="q")], "two sets are called 'a'"),
        ([Work("a", PARTITION, (row for row in [("x", [1])]))], "read only once"),
        ([Work("a", PARTITION, [])], "no row"),
        ([Work("a", PARTITION, [("x", [])])], "row 'x' of set 'a'.*list of token ids"),
    ],
)
def test_work_that_cannot_be_told_apart_is_refused(tmp_path, works, words):
    with pytest.raises(WorkError, match=words):
        run(works, [FakeServer()], tmp_path)


@pytest.mark.parametrize("bad", [{"concurrency": 0}, {"max_tokens": 0}, {"timeout_s": 0}])
def test_an_impossible_partition_or_policy_is_refused(bad):
    with pytest.raises(WorkError, match="partition 'x'"):
        Partition("x", **{"concurrency": 1, "max_tokens": 1, **bad})
    with pytest.raises(ValueError, match="deadline_s=0"):
        Policy(deadline_s=0)
