"""The client against a server that fails on demand."""

import asyncio
import socket
import time

import pytest

from eagle3lab.engines.base import ContextError, NonFiniteError, Request
from eagle3lab.engines.servers.errors import (
    BadAnswer,
    ContextRefused,
    RequestRefused,
    ServerFault,
    ServerGone,
)
from eagle3lab.engines.sglang.client import Client
from eagle3lab.engines.sglang.stats import SpecStats
from tests.engines.fake_server import FakeServer, Reset, Status, answer, echo

END = 1


def requests(count, max_tokens=3):
    return [Request(f"r{i}", [10 + i, 5], max_tokens) for i in range(count)]


def ask(reply, asked=None, **options):
    """All answers by id, and the server that gave them."""

    async def run(url):
        async with Client(url, **{"pause_s": 0.001, **options}) as client:
            return {done.id: done async for done in client.generate_many(asked or requests(1))}

    with FakeServer(reply) as server:
        return asyncio.run(run(server.url)), server


def test_token_ids_go_out_and_come_back():
    began = time.monotonic()
    done, server = ask(echo, requests(20), end_ids={END})
    assert {key: value.output_ids for key, value in done.items()} == {f"r{i}": [10 + i] * 3 for i in range(20)}
    first = done["r0"]
    assert (first.prompt_ids, first.finish_reason, first.accepted, first.stats) == (
        [10, 5],
        "length",
        None,
        SpecStats(),
    )
    assert 0 < first.seconds <= time.monotonic() - began
    assert sorted(body["input_ids"][0] for body in server.bodies) == list(range(10, 30))


def test_nothing_is_left_to_the_servers_defaults():
    _, server = ask(echo, [Request("a", [7], 2, temperature=0.5, seed=9)], end_ids={4, END})
    body = server.bodies[0]
    assert body["stream"] is False and "text" not in body
    assert body["sampling_params"] == {
        "max_new_tokens": 2,
        "temperature": 0.5,
        "sampling_seed": 9,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "ignore_eos": False,
        "stop_token_ids": [END, 4],
    }


def test_no_end_tokens_means_that_the_servers_own_are_ignored():
    _, server = ask(echo)
    assert server.bodies[0]["sampling_params"]["ignore_eos"] is True
    assert "stop_token_ids" not in server.bodies[0]["sampling_params"]


def test_at_most_so_many_requests_are_on_their_way():
    def slow(body, attempt):
        time.sleep(0.02)
        return echo(body)

    _, server = ask(slow, requests(24), concurrency=4)
    assert server.most == 4


def test_requests_are_read_as_there_is_room():
    read = []

    def endless():
        for request in requests(1000):
            read.append(request.id)
            yield request

    async def three(url):
        async with Client(url, concurrency=2) as client:
            answers = client.generate_many(endless())
            return [(await anext(answers)).id for _ in range(3)]

    with FakeServer(echo) as server:
        assert len(asyncio.run(three(server.url))) == 3
    assert len(read) <= 8


@pytest.mark.parametrize(
    "failure",
    [
        Status(500, "boom"),
        Status(503, "queue full"),
        Status(429, "later"),
        Reset(),
        Reset(sent=10),
        {"output_ids": [1], "meta_info": {"finish_reason": {"type": "abort", "message": "Aborted"}}},
        {"output_ids": [1], "meta_info": {"finish_reason": {"type": "abort", "message": "down", "status_code": 503}}},
    ],
)
def test_what_may_pass_is_tried_again(failure):
    done, server = ask(lambda body, attempt: failure if attempt < 2 else echo(body), requests(3), retries=2)
    assert {key: value.output_ids for key, value in done.items()} == {f"r{i}": [10 + i] * 3 for i in range(3)}
    assert len(server.bodies) == 9


def test_attempts_are_counted_and_the_last_failure_is_told():
    with pytest.raises(ServerFault, match=r"'r0'.*failed \(500\).*boom.*\(3 attempts\)") as caught:
        ask(lambda body, attempt: Status(500, "boom"), retries=2)
    assert caught.value.row_id == "r0" and caught.value.url.startswith("http://127.0.0.1")


def test_pauses_grow_and_are_not_all_the_same(monkeypatch):
    pauses = []

    async def note(seconds):
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", note)
    with pytest.raises(ServerFault):
        ask(lambda body, attempt: Status(500), retries=8, pause_s=0.5)
    assert len(pauses) == 8 and len({*pauses}) == 8
    for attempt, pause in enumerate(pauses):
        longest = min(0.5 * 2**attempt, 30)
        assert longest / 2 <= pause <= longest


def test_a_server_that_is_not_there_is_named():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"

    async def run():
        async with Client(url, retries=1, pause_s=0.001) as client:
            await client.generate(requests(1)[0])

    with pytest.raises(ServerGone, match=rf"'r0': {url}.*ConnectError.*\(2 attempts\)"):
        asyncio.run(run())


def test_a_server_that_hangs_is_given_up():
    def hang(body, attempt):
        time.sleep(1)
        return echo(body)

    with pytest.raises(ServerGone, match="'r0'.*ReadTimeout"):
        ask(hang, retries=0, timeout_s=0.1)


def test_a_refused_request_is_not_tried_again():
    with pytest.raises(RequestRefused, match=r"'r0'.*\(400\).*top_p must be") as caught:
        ask(lambda body, attempt: Status(400, "top_p must be in (0, 1]"))
    assert not isinstance(caught.value, ContextError) and isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "text",
    [
        "The input (200 tokens) is longer than the model's context length (128 tokens).",
        "Input length (130 tokens) exceeds the maximum allowed length (122 tokens).",
        "Requested token count exceeds the model's maximum context length of 128 tokens.",
        "Request prompt exceeds the KV memory budget: input_len=900.",
    ],
)
def test_a_row_that_is_too_long_for_the_server_is_a_context_error(text):
    with pytest.raises(ContextError, match="'r0'"):
        ask(lambda body, attempt: Status(400, text))


def test_an_answer_cut_short_by_the_servers_context_is_not_taken_for_whole():
    with pytest.raises(ContextRefused, match="'r0'.*after 2 of 3 tokens.*max_total_tokens"):
        ask(lambda body, attempt: answer([5, 6]))


@pytest.mark.parametrize(
    ("reply", "what"),
    [
        (Status(200, body="<html>hello</html>"), "no JSON.*hello"),
        (Status(200, body="[1, 2]"), "not an answer"),
        (Status(200, body="{}"), "not an answer"),
        (Status(204), "status 204"),
        ({"meta_info": {"finish_reason": {"type": "length"}}}, "no output_ids.*too old"),
        ({"output_ids": [], "meta_info": {"finish_reason": {"type": "length"}}}, "no output_ids"),
        ({"output_ids": [], "meta_info": {"finish_reason": {"type": "stop", "matched": 2}}}, "no output_ids"),
        ({"output_ids": ["5"], "meta_info": {"finish_reason": {"type": "length"}}}, "no output_ids"),
        ({"output_ids": [5, 5, 5], "meta_info": {}}, "without a finish_reason"),
        ({"output_ids": [5, 5, 5], "meta_info": {"finish_reason": 7}}, "not understood"),
        (answer([5, 5, 5], "mystery"), "unknown reason 'mystery'"),
        (answer([5] * 4), "4 tokens, max_tokens is 3"),
    ],
)
def test_an_answer_that_is_none_is_told_with_the_row(reply, what):
    with pytest.raises(BadAnswer, match=f"'r0'.*{what}") as caught:
        ask(lambda body, attempt: reply, end_ids={END})
    assert caught.value.row_id == "r0"


def test_nan_logits_are_told_as_such():
    with pytest.raises(NonFiniteError, match="'r0'"):
        ask(lambda body, attempt: answer([5, END], "stop", "NaN happened"), end_ids={END})


def test_the_end_token_is_kept():
    done, _ = ask(lambda body, attempt: answer([5, END], "stop", END), end_ids={END})
    assert (done["r0"].output_ids, done["r0"].finish_reason) == ([5, END], "stop")


def test_an_end_token_in_the_last_place_counts_as_stop():
    done, _ = ask(lambda body, attempt: answer([5, 5, END]), end_ids={END})
    assert done["r0"].finish_reason == "stop"


def test_an_end_token_that_only_the_server_has_does_not_end_an_answer():
    """Asked again with all end tokens ignored, and cut at the first of ours; the server's counts no longer fit."""
    whole = [5, 2, 6, END, 7, 8]

    def reply(body, attempt):
        if not body["sampling_params"]["ignore_eos"]:
            return answer([5, 2], "stop", 2)
        return answer(whole, spec_verify_ct=2, spec_accept_length=3.0)

    done, server = ask(reply, requests(1, max_tokens=6), end_ids={END})
    assert (done["r0"].output_ids, done["r0"].finish_reason) == ([5, 2, 6, END], "stop")
    assert done["r0"].stats == SpecStats() and len(server.bodies) == 2


def test_the_first_error_ends_it_after_the_answers_at_hand():
    async def run(url):
        seen = []
        async with Client(url, concurrency=2) as client:
            with pytest.raises(RequestRefused, match="'r5'"):
                async for done in client.generate_many(requests(50)):
                    seen.append(done.id)
        return seen

    with FakeServer(lambda body, attempt: Status(400, "no") if body["input_ids"][0] == 15 else echo(body)) as server:
        seen = asyncio.run(run(server.url))
    assert {"r0", "r1", "r2", "r3"} <= {*seen} and len(server.bodies) < 12


def test_cancelling_takes_the_request_off_the_server():
    async def run(url):
        async with Client(url, concurrency=1) as client:
            slow, waiting = (asyncio.create_task(client.generate(request)) for request in requests(2))
            await asyncio.sleep(0.1)
            slow.cancel()
            return await waiting, slow.cancelled() or isinstance(slow.exception(), asyncio.CancelledError)

    def reply(body, attempt):
        if body["input_ids"][0] == 10:
            time.sleep(0.5)
        return echo(body)

    with FakeServer(reply) as server:
        done, cancelled = asyncio.run(run(server.url))
    assert done.id == "r1" and cancelled


def test_a_key_is_sent_and_a_wrong_address_refused():
    _, server = ask(echo, api_key="secret")
    assert server.bodies[0]["headers"]["Authorization"] == "Bearer secret"
    with pytest.raises(ValueError, match="'localhost:30000' is not the address"):
        Client("localhost:30000")
    with pytest.raises(ValueError, match="concurrency=0"):
        Client("http://localhost", concurrency=0)
