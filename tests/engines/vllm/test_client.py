"""The client against a stand-in that answers as vLLM 0.32.0 was seen to, and as it must not."""

import pytest

from eagle3lab.engines.base import ContextError, Request
from eagle3lab.engines.servers.errors import BadAnswer, ContextRefused, RequestRefused, ServerGone
from eagle3lab.engines.servers.verifications import CountsDisagree
from eagle3lab.engines.vllm.client import answer_all
from eagle3lab.engines.vllm.stats import VllmStats, server_counts
from tests.engines.fake_server import FakeServer, Status, Stream

END = 1


def counted(accepted, proposed=None, num_steps=3):
    """The metrics of an answer."""
    histogram = [accepted.count(k) for k in range(num_steps + 1)]
    told = {"acceptance_histogram": histogram, "num_spec_tokens": num_steps}
    if accepted:  # left out where nothing was verified
        told |= {"per_step_accepted": accepted, "per_step_drafted": proposed or [num_steps] * len(accepted)}
    return {"speculative_decoding": told}


def whole(ids, reason="length", metrics=None):
    return {"choices": [{"index": 0, "token_ids": ids, "finish_reason": reason}], "metrics": metrics}


def streamed(parts, reason="length", metrics=None):
    events = [{"choices": [{"token_ids": part, "finish_reason": None}]} for part in parts]
    events[-1]["choices"][0]["finish_reason"] = reason
    return Stream([*events, {"choices": [], "metrics": metrics}])


def ask(reply, request=None, **options):
    """The one answer."""
    with FakeServer(reply if callable(reply) else lambda body, attempt: reply) as server:
        options = {"pause_s": 0.001, "retries": 1, **options}
        (answer,) = answer_all(server.url, [request or Request("a", [7, 8], 5)], **options)
    return answer, server.bodies


def test_nothing_is_left_to_the_servers_defaults():
    answer, bodies = ask(whole([5, 6, 9, 9, 9]), end_ids={4, END})
    assert (answer.output_ids, answer.finish_reason, answer.accepted) == ([5, 6, 9, 9, 9], "length", None)
    del bodies[0]["headers"]
    assert bodies == [{
        "model": "target", "prompt": [7, 8], "max_tokens": 5, "temperature": 0.0, "top_p": 1.0, "top_k": 0,
        "min_p": 0.0, "repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0,
        "ignore_eos": True, "stop_token_ids": [END, 4], "return_token_ids": True, "stream": False,
    }]  # fmt: skip


def test_a_sampled_request_carries_its_seed():
    _, bodies = ask(whole([5] * 5), Request("a", [7], 5, temperature=0.5, seed=9))
    assert (bodies[0]["temperature"], bodies[0]["seed"]) == (0.5, 9)
    _, bodies = ask(whole([5] * 5), Request("a", [7], 5, temperature=0.5, seed=9), seeded=False)
    assert bodies[0]["temperature"] == 0.5 and "seed" not in bodies[0]


def test_a_streamed_answer_tells_every_verification_and_its_first_token():
    answer, bodies = ask(streamed([[5], [6, 7], [9, 9]], metrics=counted([1, 1])), ordered=True)
    assert (answer.output_ids, answer.accepted) == ([5, 6, 7, 9, 9], [1, 1])
    assert 0 < answer.first_seconds <= answer.seconds
    assert answer.stats.histogram == (0, 2, 0, 0) and answer.stats.proposed == (3, 3)
    assert bodies[0]["stream"] is True and bodies[0]["stream_options"] == {"include_usage": True}


def test_the_last_verification_is_cut_at_the_answers_end():
    answer, _ = ask(whole([5, 6, 7, END], "stop", counted([0, 3])), end_ids={END})
    assert (answer.finish_reason, answer.accepted, answer.stats.accepted) == ("stop", [0, 1], (0, 3))


def test_an_answer_that_ends_with_the_prefills_token_was_never_verified():
    answer, _ = ask(whole([5], metrics=counted([])), Request("a", [7], 1))
    assert answer.accepted == [] and answer.stats.histogram == (0, 0, 0, 0)


def test_the_last_token_of_a_full_context_is_a_verification_without_drafts():
    answer, _ = ask(whole([5, 6, 7, 8, 9], metrics=counted([0, 0, 0], [3, 2, 1])))
    assert answer.accepted == [0, 0, 0, 0]
    with pytest.raises(BadAnswer, match="'a'.*end 1 tokens before"):  # with drafts in hand it is none
        ask(whole([5, 6, 7, 8, 9], metrics=counted([0, 0, 0], [3, 3, 3])))


def test_counts_that_contradict_each_other():
    metrics = counted([1, 1])
    metrics["speculative_decoding"]["acceptance_histogram"] = [1, 1, 0, 0]
    with pytest.raises(CountsDisagree, match="histogram is"):
        VllmStats.read(metrics)
    assert VllmStats.read(None) is VllmStats.read({"speculative_decoding": None}) is None


@pytest.mark.parametrize(
    ("answer", "error", "what"),
    [
        (whole([5, 6]), ContextError, "after 2 of 5 tokens"),  # vLLM cuts max_tokens to what its context holds
        (whole([5] * 6), BadAnswer, "6 tokens of at most 5"),
        (whole([5, 6], "stop"), BadAnswer, "ended for 'stop'"),
        (whole([END, 6], "stop"), BadAnswer, "first end token"),
        (whole([5], "abort"), BadAnswer, "ended for 'abort'"),
        ({"text": "hello"}, BadAnswer, "not an answer of /v1/completions"),
        ({"choices": []}, BadAnswer, "no choice"),
        ({"choices": [{"text": "hello"}]}, BadAnswer, "no token_ids"),
        (Status(400, "This model's maximum context length is 128 tokens"), ContextRefused, "maximum context length"),
        (Status(400, "Token id 9 is out of vocabulary"), RequestRefused, "out of vocabulary"),
    ],
)
def test_an_answer_that_is_none_names_the_row(answer, error, what):
    with pytest.raises(error, match=f"'a'.*{what}"):
        ask(answer, end_ids={END})


def test_a_stream_that_breaks_off_is_asked_again():
    def reply(body, attempt):
        cut = Stream([{"choices": [{"token_ids": [5], "finish_reason": None}]}], end=False)
        return streamed([[5, 5, 5, 5, 5]], metrics=None) if attempt else cut

    answer, bodies = ask(reply, ordered=True)
    assert len(answer.output_ids) == 5 and len(bodies) == 2
    with pytest.raises(ServerGone, match="'a'.*broke off.*2 attempts"):
        ask(Stream([{"choices": [{"token_ids": [5], "finish_reason": "length"}]}]), ordered=True)


METRICS = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
vllm:spec_decode_num_drafts_total{engine="0",model_name="target"} 646.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="target"} 1.7960079872387152e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="target"} 1929.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="target"} 356.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="target",position="0"} 236.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="target",position="1"} 80.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="target",position="2"} 40.0
"""


def test_the_servers_counters_are_read(monkeypatch):
    monkeypatch.setattr("eagle3lab.engines.vllm.stats.answer", lambda url, path: (200, METRICS.encode()))
    counts = server_counts("http://a:1")
    assert (counts.verifications, counts.proposed_drafts, counts.accepted_drafts) == (646, 1929, 356)
    assert counts.joint == (236, 80, 40) and counts.accept_length == 1 + 356 / 646
    monkeypatch.setattr("eagle3lab.engines.vllm.stats.answer", lambda url, path: (200, b"other:metric 1"))
    with pytest.raises(BadAnswer, match="counts no speculation"):
        server_counts("http://a:1")
