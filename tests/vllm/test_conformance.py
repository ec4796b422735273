"""The vLLM engine on real servers."""

from dataclasses import replace

import pytest

from eagle3lab.engines.base import Request
from tests.engines.conformance import Case, Conformance, asked
from tests.engines.story import AUX_LAYERS

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def case(vllm_engine, story_prompts, story_reference, story_draft):
    return Case(
        make=vllm_engine.with_end_ids,
        make_speculating=vllm_engine.with_end_ids,
        capturing=vllm_engine,
        reference=story_reference,
        prompts=story_prompts[:6],
        draft=story_draft,
        num_steps=3,
        positions=vllm_engine.plain().context(),
        aux_layers=AUX_LAYERS,
    )


class TestVllm(Conformance):
    def test_trees_are_refused(self, case):
        with pytest.raises(ValueError, match="topk=2.*vLLM drafts chains"):
            list(case.capturing.speculate(case.draft, [Request("a", [3], 4)], 3, topk=2, num_draft_tokens=6))

    def test_the_last_token_of_a_full_context_is_verified_without_a_draft(self, case):
        """vLLM does not count that verification, and lists no draft for it."""
        prompt = (case.prompts[0] * case.positions)[: case.positions - 6]
        (full,) = case.capturing.speculate(case.draft, [Request("full", prompt, 6)], case.num_steps)
        assert full.output_ids == case.greedy(prompt, 6)
        assert len(full.accepted) == len(full.stats.accepted) + 1 and full.accepted[-1] == 0
        assert full.stats.proposed[-1] < case.num_steps

    def test_states_come_in_the_order_of_the_layers_asked(self, case):
        engine = case.capturing
        assert engine.aux_layers == AUX_LAYERS  # ascending, as vLLM hands them over
        (row,) = engine.capture([("a", case.prompts[2])])
        assert row.aux_TAH.shape[1] == len(AUX_LAYERS) and row.aux_TAH.dtype == row.last_TH.dtype

    def test_sampled_answers_are_drawn_and_said_to_depend_on_chance(self, case):
        """Several prompts at once, which come in pieces: with seeds this ends a server on a CPU."""
        warm = [replace(request, temperature=1.5, seed=i) for i, request in enumerate(asked(case))]
        with pytest.warns(UserWarning, match="sent no seeds"):
            done = list(case.make(()).generate(warm, batch_size=6))
        assert all(answer.output_ids != case.greedy(answer.prompt_ids, len(answer.output_ids)) for answer in done)
        assert case.capturing.plain().alive()

    def test_sampled_speculation_on_a_cpu_is_refused(self, case):
        with pytest.raises(ValueError, match="'warm'.*temperature=0.5.*other answers with speculation"):
            list(case.capturing.speculate(case.draft, [Request("warm", [3], 4, temperature=0.5)], 3))
