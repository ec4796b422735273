"""Streamed answers: which verifications they tell, and when they cannot be told."""

import pytest

from eagle3lab.engines.servers.errors import (
    BadAnswer,
    ContextRefused,
    RequestRefused,
)
from eagle3lab.engines.sglang.stats import SpecStats
from tests.engines.fake_server import Status, Stream, answer, echo, partial
from tests.engines.sglang.test_client import END, ask, requests

SPEC = {"spec_verify_ct": 2, "spec_correct_drafts_histogram": [0, 1, 0, 1]}


@pytest.mark.parametrize("carried", ["whole", "new"])
def test_a_streamed_answer_tells_its_verifications_in_order(carried):
    """Releases send the whole answer so far in every event, or only what is new."""
    ids = [5, 6, 7, 8, 9, 4, 3]
    cuts = [(0, 1), (1, 5), (5, 7)]
    parts = [ids[start if carried == "new" else 0 : stop] for start, stop in cuts]
    events = [partial(part, stop) for part, (_, stop) in zip(parts, cuts, strict=True)]
    last = {**answer(ids, **SPEC), "output_ids": parts[-1]}
    done, server = ask(lambda b, a: Stream([*events[:-1], last]), requests(1, 7), ordered=True)
    assert server.bodies[0]["stream"] is True
    assert (done["r0"].output_ids, done["r0"].accepted) == (ids, [3, 1])
    assert done["r0"].stats == SpecStats(verifications=2, histogram=(0, 1, 0, 1))


def test_a_stream_that_merged_verifications_has_no_order_but_its_counts():
    ids = [5, 6, 7, 8, 9, 4, 3]
    events = [partial(ids[:1]), answer(ids, **SPEC)]
    done, _ = ask(lambda b, a: Stream(events), requests(1, 7), ordered=True)
    assert done["r0"].accepted is None and done["r0"].stats.histogram == (0, 1, 0, 1)


def test_a_request_that_was_started_anew_has_no_order():
    ids = [5, 6, 7, 8, 9, 4, 3]
    events = [partial(ids[:1]), partial(ids[:5]), answer(ids, num_retractions=1, **SPEC)]
    done, _ = ask(lambda b, a: Stream(events), requests(1, 7), ordered=True)
    assert done["r0"].accepted is None


def test_a_stream_that_contradicts_its_histogram_is_refused():
    ids = [5, 6, 7, 8, 9, 4, 3]
    last = answer(ids, spec_verify_ct=2, spec_correct_drafts_histogram=[0, 0, 2, 0])
    with pytest.raises(BadAnswer, match=r"'r0'.*\[3, 1\].*\[0, 0, 2, 0\]"):
        ask(lambda b, a: Stream([partial(ids[:1]), partial(ids[:5]), last]), requests(1, 7), ordered=True)


def test_a_streamed_answer_cut_at_our_end_token_keeps_its_order():
    ids = [5, 6, END, 8, 9, 4, 3]

    def reply(body, attempt):
        if not body["sampling_params"]["ignore_eos"]:
            return Stream([answer(ids[:2], "stop", 6)])
        return Stream([partial(ids[:1]), partial(ids[:5]), answer(ids, **SPEC)])

    done, _ = ask(reply, requests(1, 7), ordered=True, end_ids={END})
    assert (done["r0"].output_ids, done["r0"].accepted) == ([5, 6, END], [1])


@pytest.mark.parametrize("broken", [Stream([partial([5])], end=False), Stream([partial([5])]), Status(502)])
def test_a_stream_that_breaks_off_is_tried_again(broken):
    reply = lambda body, attempt: broken if attempt == 0 else Stream([echo(body)])  # noqa: E731
    done, server = ask(reply, ordered=True)
    assert done["r0"].output_ids == [10] * 3 and len(server.bodies) == 2


def test_a_refusal_within_a_stream_is_one():
    event = {"error": {"message": "The input is longer than the model's context length", "code": 400}}
    with pytest.raises(ContextRefused, match="'r0'.*longer than the model"):
        ask(lambda b, a: Stream([event]), ordered=True)
    aborted = {
        "output_ids": [],
        "meta_info": {"finish_reason": {"type": "abort", "message": "bad", "status_code": 400}},
    }
    with pytest.raises(RequestRefused, match="'r0'.*bad"):
        ask(lambda b, a: Stream([aborted]), ordered=True)
