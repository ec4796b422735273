"""Chains on real vLLM servers, in float32: lossless, and accepted as simulated, verification for verification. The
drafter has a pruned vocabulary, names its layers, and was trained on other prompts than those that are served."""

import json
import shutil
from dataclasses import replace

import pytest

from eagle3lab.analysis.accept import accept_length, disagreements, histogram
from eagle3lab.engines.base import Request
from eagle3lab.engines.servers.findings import LaunchRefused
from eagle3lab.engines.sglang.blocking import generate_all
from eagle3lab.engines.sglang.server import SGLangServer
from eagle3lab.engines.sglang.spec import ServerSpec
from eagle3lab.engines.vllm.client import answer_all
from eagle3lab.engines.vllm.server import VllmServer
from tests.engines.story import served_cycles, simulated_cycles
from tests.engines.story_fixtures import ANSWER

pytestmark = pytest.mark.vllm
AT_ONCE, STEPS = 6, 3


@pytest.fixture(scope="module")
def requests(story_prompts):
    return [Request(f"r{i}", ids, ANSWER - i % 7) for i, ids in enumerate(story_prompts)]


@pytest.fixture(scope="module")
def chain(vllm_engine, story_draft, requests):
    """Answers, and what the server counted of them."""
    server = vllm_engine.speculating(story_draft, STEPS)
    list(vllm_engine.speculate(story_draft, requests[:1], STEPS))  # the counters begin with the first answer
    before = server.counts()
    answers = list(vllm_engine.speculate(story_draft, requests, STEPS, batch_size=AT_ONCE))
    return answers, before, server.counts()


@pytest.fixture(scope="module")
def simulated(story_embedded, story_draft, chain):
    return simulated_cycles(story_embedded, story_draft, chain[0], STEPS)


def tau(cycles):
    return accept_length(sum(row.committed for row in cycles), sum(len(row.accepted) for row in cycles))


def test_a_chain_changes_no_answer(vllm_engine, chain, requests):
    plain = {done.id: done.output_ids for done in vllm_engine.generate(requests, AT_ONCE)}
    assert len(requests) >= 20 and {done.id: done.output_ids for done in chain[0]} == plain


def test_every_verification_is_the_simulated_one(chain, simulated):
    cycles = served_cycles(chain[0])
    assert len(cycles) >= 20 and disagreements(cycles, simulated) == []
    counts = histogram([a for row in cycles for a in row.accepted], STEPS)
    assert min(counts) > 0  # every number of accepted drafts occurs, or this shows little
    assert 1.2 < tau(cycles) < 2.5  # it learned, and does not know these answers by heart


def test_the_servers_own_counts_are_those_of_its_answers(chain):
    answers, before, after = chain
    stats = [done.stats for done in answers]
    assert after.verifications - before.verifications == sum(len(one.accepted) for one in stats)
    assert after.accepted_drafts - before.accepted_drafts == sum(sum(one.accepted) for one in stats)
    assert after.proposed_drafts - before.proposed_drafts == sum(sum(one.proposed) for one in stats)
    reached = [sum(a > place for one in stats for a in one.accepted) for place in range(STEPS)]
    assert [new - old for new, old in zip(after.joint, before.joint, strict=True)] == reached
    assert after.accept_length > 1.0


def test_one_folder_is_served_alike_by_both_engines(story, story_draft, chain, requests, tmp_path):
    """The same folder behind SGLang: the same answers, and the same drafts accepted by every verification."""
    limits = {"max_running_requests": 8, "max_total_tokens": 4096, "mem_fraction": 0.3}
    spec = ServerSpec(str(story), draft=str(story_draft), dtype="float32", device="cpu", **limits)
    with SGLangServer(spec, log=tmp_path / "server.log") as server:
        options = {"concurrency": AT_ONCE, "ordered": True}
        others = {done.id: done for done in generate_all(server.url, requests, **options)}
    assert {done.id: done.output_ids for done in chain[0]} == {key: done.output_ids for key, done in others.items()}
    assert {done.id: done.accepted for done in chain[0]} == {key: done.accepted for key, done in others.items()}


def test_layers_one_off_are_refused_and_would_be_seen(story_spec, story_draft, chain, simulated, requests, tmp_path):
    """Ids in SGLang's form, which vLLM takes as they are: the guard names them, and served in spite of it the replay
    differs. No answer does, which is why nobody notices."""
    folder = tmp_path / "draft"
    shutil.copytree(story_draft, folder)
    config = json.loads((folder / "config.json").read_text())
    config["eagle_aux_hidden_state_layer_ids"] = config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    (folder / "config.json").write_text(json.dumps(config))
    spec = replace(story_spec, draft=str(folder), num_steps=STEPS)
    with pytest.raises(LaunchRefused, match=r"makes vLLM take hs\[0, 1, 2\].*was trained on hs\[1, 2, 3\]"):
        VllmServer(spec).start()
    with pytest.warns(UserWarning, match="was trained on"):
        server = VllmServer(spec, log=tmp_path / "server.log", unguarded=True).start()
    with server:
        answers = list(answer_all(server.url, requests, concurrency=AT_ONCE))
    assert {done.id: done.output_ids for done in answers} == {done.id: done.output_ids for done in chain[0]}
    assert len(disagreements(served_cycles(answers), simulated)) > len(requests) // 2
    assert tau(served_cycles(answers)) < tau(served_cycles(chain[0]))
