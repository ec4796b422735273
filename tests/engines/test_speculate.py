from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.draft.model import DraftConfig, Eagle3Draft
from eagle3lab.engines.base import ContextError, Request
from eagle3lab.engines.embedded import EmbeddedEngine
from eagle3lab.engines.speculate import accepted_drafts, first_unknown_slot
from tests.engines.stand_ins import OracleDraft, RandomDraft
from tests.engines.test_generate import by_id, requests
from tests.tiny import VOCAB


class ForwardCounter:
    """Counts the target's forward passes and the tokens it runs."""

    def __init__(self, engine):
        self.decoder, self.passes, self.tokens = engine.target.model.get_decoder(), 0, 0

    def __enter__(self):
        def count(module, args, kwargs):
            self.passes += 1
            self.tokens += kwargs["input_ids"].numel()

        self.hook = self.decoder.register_forward_pre_hook(count, with_kwargs=True)
        return self

    def __exit__(self, *error):
        self.hook.remove()


def oracle_for(engine, answer, wrong=()):
    sequence = answer.prompt_ids + answer.output_ids
    return OracleDraft(sequence, next(engine.capture([("x", sequence)])).aux_TAH, wrong)


def greedy_chain(length, prompt, num_steps, wrong):
    """Accepted drafts per verification of a draft that errs at the positions `wrong`, by walking the
    answer."""
    accepted, at = [], prompt + 1
    while at < length:
        drafts = min(num_steps, length - at - 1)  # the last committed token counts as the bonus token
        count = next((i for i in range(drafts) if at + i in wrong), drafts)
        accepted.append(count)
        at += count + 1
    return accepted


def test_slots_with_true_features():
    assert first_unknown_slot(5) == 4  # x_0..x_4 committed, x_4 not run yet: slots 0..3 are true


@given(st.lists(st.integers(0, 2), max_size=7), st.lists(st.integers(0, 2), min_size=8, max_size=8))
@settings(deadline=None)
def test_accepted_is_the_longest_equal_prefix(drafts, choices):
    n = accepted_drafts(drafts, choices)
    assert drafts[:n] == choices[:n] and (n == len(drafts) or drafts[n] != choices[n])


@pytest.fixture(scope="module")
def plain(engine):
    """Greedy answers without speculation; one ends with the end token in most families."""
    asked = requests(4, max_tokens=18)
    return asked, by_id(engine.generate(asked, batch_size=4))


@pytest.mark.parametrize("num_steps", range(1, 8))
def test_any_draft_is_lossless(engine, plain, num_steps):
    asked, answers = plain
    for done in engine.speculate(RandomDraft(num_steps), asked[:3], num_steps):
        assert done.output_ids == answers[done.id].output_ids
        assert done.finish_reason == answers[done.id].finish_reason
        assert len(done.output_ids) == 1 + sum(a + 1 for a in done.accepted)


@pytest.mark.parametrize("num_steps", range(1, 8))
def test_oracle_draft_is_accepted_exactly_as_far_as_it_is_right(engine, plain, num_steps):
    asked, answers = plain
    request = asked[num_steps % 4]
    answer, prompt = answers[request.id], len(request.input_ids)
    length = prompt + len(answer.output_ids)
    some = torch.randperm(length, generator=torch.Generator().manual_seed(1))[: length // 4].tolist()
    for wrong in ({*()}, {*range(prompt + 2, length, 3)}, {*some}):
        draft = oracle_for(engine, answer, wrong)
        with ForwardCounter(engine) as counted:
            done = next(engine.speculate(draft, [request], num_steps))
        assert done.output_ids == answer.output_ids and done.finish_reason == answer.finish_reason
        assert done.accepted == greedy_chain(length, prompt, num_steps, wrong)
        assert counted.passes == 1 + len(done.accepted)  # prefill + verifications, nothing else
        assert counted.tokens <= prompt + len(done.accepted) * (num_steps + 1)  # nothing is run twice
        assert draft.true_slots == list(range(len(draft.true_slots)))  # every slot once, in order
        assert draft.chain_slots <= len(done.accepted) * (num_steps - 1)


def test_perfect_draft_reaches_the_maximum(llama):
    engine = EmbeddedEngine(llama.target.folder, end_ids=())
    request = Request("a", [5, 9, 20], 25)
    answer = next(engine.generate([request]))
    done = next(engine.speculate(oracle_for(engine, answer), [request], 3))
    assert done.accepted == [3] * 6  # 1 + 6 * 4 = 25


def test_a_last_cycle_cut_by_max_tokens_counts_committed_tokens(llama):
    engine = EmbeddedEngine(llama.target.folder, end_ids=())
    request = Request("a", [5, 9, 20], 7)
    answer = next(engine.generate([request]))
    assert next(engine.speculate(oracle_for(engine, answer), [request], 3)).accepted == [3, 1]  # 1 + 4 + 2
    one = Request("a", [5, 9, 20], 1)
    assert next(engine.speculate(oracle_for(engine, answer), [one], 3)).accepted == []


def test_a_last_cycle_cut_by_an_accepted_end_token(llama):
    free = EmbeddedEngine(llama.target.folder, end_ids=())
    request = Request("a", [5, 9, 20], 25)
    answer = next(free.generate([request]))
    position = next(i for i in range(6, 25) if answer.output_ids[i] not in answer.output_ids[:i])
    engine = EmbeddedEngine(llama.target.folder, end_ids={answer.output_ids[position]})
    done = next(engine.speculate(oracle_for(free, answer), [request], 4))
    assert done.finish_reason == "stop" and done.output_ids == answer.output_ids[: position + 1]
    full, rest = divmod(position, 5)  # after the first token, five a cycle
    assert done.accepted == [4] * full + ([rest - 1] if rest else [])


def test_the_context_can_be_filled_and_not_exceeded(llama):
    engine = EmbeddedEngine(llama.target.folder, end_ids=())
    plain = next(engine.generate([Request("full", [7] * 100, 28)]))
    assert next(engine.speculate(RandomDraft(), [Request("full", [7] * 100, 28)], 7)).output_ids == plain.output_ids
    with pytest.raises(ContextError, match="'over'"):
        next(engine.speculate(RandomDraft(), [Request("over", [7] * 100, 29)], 3))


@pytest.mark.parametrize("num_steps", [1, 3, 6])
def test_a_sampled_answer_is_the_one_drawn_without_speculation(engine, num_steps):
    """The same random number chooses the same place's token, whoever asked for it; the drafts are right or wrong."""
    warm = [replace(request, temperature=0.7, seed=i) for i, request in enumerate(requests(4, max_tokens=18))]
    drawn = by_id(engine.generate(warm, batch_size=1))
    greedy = by_id(engine.generate(requests(4, max_tokens=18)))
    assert all(drawn[r.id].output_ids != greedy[r.id].output_ids for r in warm)
    for request in warm:
        answer = drawn[request.id]
        oracle = oracle_for(engine, answer, wrong={len(request.input_ids) + 4, len(request.input_ids) + 9})
        for draft in (oracle, RandomDraft(num_steps)):
            done = next(engine.speculate(draft, [request], num_steps))
            assert (done.output_ids, done.finish_reason) == (answer.output_ids, answer.finish_reason)
            assert len(done.output_ids) == 1 + sum(a + 1 for a in done.accepted)


def test_bad_steps_are_refused(llama):
    with pytest.raises(ValueError, match="num_steps=0"):
        next(llama.speculate(RandomDraft(), [Request("a", [3], 4)], 0))


def test_the_real_draft_network_is_lossless(engine, plain):
    config = DraftConfig.for_target(engine.config, engine.aux_layers, draft_vocab_size=40)
    draft = Eagle3Draft(config, engine.embed_VH, torch.arange(40) + 10)
    asked, answers = plain
    for done in engine.speculate(draft, asked, 4):
        assert done.output_ids == answers[done.id].output_ids
        assert all(0 <= a <= 4 for a in done.accepted)


def test_tokens_are_checked_against_the_vocabulary(llama):
    with pytest.raises(ValueError, match="'foreign'"):
        next(llama.speculate(RandomDraft(), [Request("foreign", [VOCAB], 4)], 3))
