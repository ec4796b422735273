"""Speculation on real servers, in float32: lossless, accepted as simulated, and nothing at all with the wrong flag."""

from collections import Counter
from dataclasses import replace

import pytest

from eagle3lab.analysis.accept import accept_length, disagreements, histogram
from eagle3lab.analysis.heldout import capture_answers
from eagle3lab.analysis.server_states import compare_states
from eagle3lab.engines.base import Request
from eagle3lab.engines.embedded import EmbeddedEngine
from eagle3lab.engines.servers.findings import LaunchRefused
from eagle3lab.engines.sglang.blocking import generate_all
from eagle3lab.engines.sglang.engine import SGLangEngine
from eagle3lab.engines.sglang.pool import Speculation
from tests.engines.story import AUX_LAYERS, greedy_answers, served_cycles, simulated_cycles
from tests.engines.story_fixtures import ANSWER
from tests.sglang.conftest import TRAINED_PROMPTS

pytestmark = pytest.mark.sglang
AT_ONCE = 6


@pytest.fixture(scope="module")
def requests(story_prompts):
    return [Request(f"r{i}", ids, ANSWER - i % 7) for i, ids in enumerate(story_prompts)]


@pytest.fixture(scope="module")
def plain(story_engine, requests):
    """Answers of a server without speculation, several at once."""
    return {done.id: done.output_ids for done in story_engine.generate(requests, AT_ONCE)}


@pytest.fixture(scope="module")
def chain(story_engine, story_draft, requests):
    return list(story_engine.speculate(story_draft, requests, num_steps=3, batch_size=AT_ONCE))


def tau(answers):
    """Accept length of all answers together."""
    return accept_length(sum(len(done.output_ids) - 1 for done in answers), sum(len(done.accepted) for done in answers))


def test_a_chain_changes_no_answer(plain, chain, requests):
    assert len(requests) >= 20 and len({len(request.input_ids) for request in requests}) >= 15
    assert {done.id: done.output_ids for done in chain} == plain


def test_a_tree_changes_no_answer_and_accepts_more(story_engine, story_draft, plain, chain, requests):
    shape = {"num_steps": 3, "topk": 4, "num_draft_tokens": 8}
    tree = list(story_engine.speculate(story_draft, requests, **shape, batch_size=AT_ONCE))
    assert {done.id: done.output_ids for done in tree} == plain
    assert sum(len(done.accepted) for done in tree) < sum(len(done.accepted) for done in chain)
    assert len(served_cycles(tree)) == len(tree)  # each adds up, or ValueError


def test_every_verification_is_the_simulated_one(story_embedded, story_draft, chain):
    """The drafter trained here, on the same prompts: the offline walk over the target's answers predicts what the
    server accepts, verification for verification."""
    simulated, served = simulated_cycles(story_embedded, story_draft, chain, 3), served_cycles(chain)
    assert disagreements(served, simulated) == []
    counts = histogram([a for row in served for a in row.accepted], 3)
    assert counts == histogram([a for row in simulated for a in row.accepted], 3)
    assert min(counts) > 0  # every number of accepted drafts occurs, or this shows little


def test_the_embedded_engine_speculates_the_same_way(story_embedded, story_draft, chain, requests):
    own = {done.id: done.accepted for done in story_embedded.speculate(story_draft, requests[:6], num_steps=3)}
    assert own == {done.id: done.accepted for done in chain if done.id in own}


def test_the_servers_counts_are_the_ordered_ones_with_the_last_verification_uncut(chain):
    for done in chain:
        stats = done.stats
        assert stats.verifications == len(done.accepted)
        assert stats.accept_length == pytest.approx(len(done.output_ids) / stats.verifications)
        assert stats.proposed_drafts == 3 * stats.verifications
        assert stats.accepted_drafts == sum(k * count for k, count in enumerate(stats.histogram))
        assert stats.accept_rate == pytest.approx(stats.accepted_drafts / stats.proposed_drafts)
        counted, ordered = Counter(dict(enumerate(stats.histogram))), Counter(done.accepted[:-1])
        (last,) = (counted - ordered).elements()
        assert last >= done.accepted[-1]


def test_an_overfit_drafter_is_accepted(chain):
    """At 3 steps a verification commits 4 tokens at most."""
    assert tau([done for done in chain if int(done.id[1:]) < TRAINED_PROMPTS]) >= 3.0


def test_the_same_drafter_served_with_the_flag_eagle_is_hardly_accepted(wrong_flag_server, plain, requests):
    options = {"concurrency": AT_ONCE, "ordered": True}
    done = list(generate_all(wrong_flag_server.url, requests[:TRAINED_PROMPTS], **options))
    assert {answer.id: answer.output_ids for answer in done} == {r.id: plain[r.id] for r in requests[:TRAINED_PROMPTS]}
    assert tau(done) < 1.3  # 1.00 on real targets; this one has 128 dimensions, and the embedding alone tells a little


def test_the_states_that_a_server_feeds_its_drafter_are_the_embedded_engines(
    story, story_engine, story_embedded, story_draft, story_prompts
):
    url = story_engine.servers.speculating(Speculation(str(story_draft), num_steps=3)).url
    answers = greedy_answers(story_embedded, story_prompts[:3], ANSWER)
    same = compare_states(url, story_embedded, list(capture_answers(story_embedded, answers, 1024)))
    assert same.equal and max(one.error for one in same.layers) < 1e-4
    again = compare_states(url, story_embedded, list(capture_answers(story_embedded, answers, 1024)))
    assert again.tokens == same.tokens and again.equal  # the server has these prompts in its prefix cache now
    earlier = EmbeddedEngine(story, aux_layers=[k - 1 for k in AUX_LAYERS], end_ids=())
    wrong = compare_states(url, earlier, list(capture_answers(earlier, answers, 1024)))
    assert [one.nearest_layer for one in wrong.layers] == AUX_LAYERS and set(wrong.facts) == {"layers"}


def test_a_server_that_serves_something_else_is_not_asked(story_engine, story_draft, wrong_flag_server, requests):
    chain = story_engine.servers.speculating(Speculation(str(story_draft), num_steps=3))
    plain = story_engine.servers.plain()
    for url, steps, error, what in (
        (chain.url, 2, ValueError, "serves draft .* with num_steps=3.*num_steps=2"),
        (plain.url, 3, ValueError, "does not speculate"),
        (wrong_flag_server.url, 3, LaunchRefused, "EAGLE3"),
    ):
        with pytest.raises(error, match=what):
            list(SGLangEngine(url).speculate(story_draft, requests, steps))
    with pytest.raises(ValueError, match="does not capture"):
        list(SGLangEngine(chain.url).capture([("a", [3])]))


def test_sampled_answers_are_drawn_and_said_to_depend_on_chance(story_engine, plain, requests):
    warm = [replace(request, temperature=1.5, seed=i) for i, request in enumerate(requests[:6])]
    with pytest.warns(UserWarning, match="does not keep to seeds.*--enable-deterministic-inference"):
        done = {answer.id: answer.output_ids for answer in story_engine.generate(warm, AT_ONCE)}
    assert all(len(done[request.id]) == request.max_tokens for request in warm)
    assert all(done[request.id] != plain[request.id] for request in warm)


def test_greedy_answers_are_the_embedded_engines(story_embedded, plain, story_prompts):
    own = greedy_answers(story_embedded, story_prompts, ANSWER)
    for answer in own:
        assert plain[answer["id"]] == answer["output_ids"][: len(plain[answer["id"]])]
