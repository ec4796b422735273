"""kill -9 of a server in the middle of inference: a clear error, and nothing is lost by asking again."""

import os
import signal

import pytest

from eagle3lab.engines.base import Request
from eagle3lab.engines.servers.errors import ServerGone
from tests.engines.story import greedy_answers
from tests.engines.story_fixtures import ANSWER

pytestmark = pytest.mark.sglang


def test_a_killed_server_is_told_and_the_rest_is_answered_by_a_new_one(story_engine, story_embedded, story_prompts):
    requests = [Request(f"r{i}", ids, ANSWER) for i, ids in enumerate(story_prompts)]
    done = {}
    server = story_engine.servers.plain()
    with pytest.raises(ServerGone, match=f"server has ended.*{server.log}.*ask again"):
        for answer in story_engine.generate(requests, batch_size=4):
            done[answer.id] = answer.output_ids
            if len(done) == 5:
                os.kill(server.pid, signal.SIGKILL)
    assert 5 <= len(done) < len(requests)
    missing = [request for request in requests if request.id not in done]
    done |= {answer.id: answer.output_ids for answer in story_engine.generate(missing, batch_size=4)}
    assert done == {row["id"]: row["output_ids"] for row in greedy_answers(story_embedded, story_prompts, ANSWER)}
