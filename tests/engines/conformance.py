"""What every engine must do, whatever runs behind it: one set of tests, run by test_conformance_embedded.py here,
tests/sglang/test_conformance.py and tests/vllm/test_conformance.py. The right tokens and states come from
transformers' own forward pass.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from eagle3lab.analysis.accept import PromptCycles
from eagle3lab.engines.base import ContextError, Engine, Request


@dataclass
class Case:
    """An engine under test: `make` and `make_speculating` give one with these end tokens (None: the target's own) that
    generates, or speculates with the drafter's folder `draft` at `num_steps`. `positions` is how many tokens prompt
    and answer may hold together, `aux_layers` what `capturing` captures."""

    make: Callable[[Collection[int] | None], Engine]
    make_speculating: Callable[[Collection[int] | None], Engine]
    capturing: Engine
    reference: torch.nn.Module
    prompts: list[list[int]]
    draft: Path
    num_steps: int
    positions: int
    aux_layers: list[int]

    def greedy(self, prompt: list[int], max_tokens: int) -> list[int]:
        """transformers' own greedy answer, end tokens ignored."""
        out = self.reference.generate(
            torch.tensor([prompt]), max_new_tokens=max_tokens, min_new_tokens=max_tokens, do_sample=False,
            pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
        return out[0, len(prompt) :].tolist()


def by_id(completions):
    return {completion.id: completion for completion in completions}


def asked(case, max_tokens=12):
    """Prompts of different lengths, answers of different lengths."""
    return [Request(f"r{i}", prompt, max_tokens - i % 4) for i, prompt in enumerate(case.prompts)]


def up_to_end(ids, ends):
    """The tokens up to and with the first end token."""
    stop = next((place for place, token in enumerate(ids, 1) if token in ends), len(ids))
    return ids[:stop]


class Conformance:
    """Mixed into a test class that has a fixture `case`."""

    def test_greedy_answers_are_those_of_transformers(self, case):
        requests = asked(case)
        done = by_id(case.make(()).generate(requests, batch_size=4))
        assert {*done} == {request.id for request in requests}
        for request in requests:
            answer = done[request.id]
            assert answer.output_ids == case.greedy(request.input_ids, request.max_tokens)
            assert (answer.prompt_ids, answer.finish_reason) == (request.input_ids, "length")
            assert answer.seconds > 0

    def test_an_answer_ends_with_its_end_token(self, case):
        free = {request.id: case.greedy(request.input_ids, request.max_tokens) for request in asked(case)}
        ends = {free["r0"][3], free["r1"][0], free["r2"][-1]}
        done = by_id(case.make(ends).generate(asked(case), batch_size=3))
        for key, answer in done.items():
            assert answer.output_ids == up_to_end(free[key], ends)
            assert answer.finish_reason == ("stop" if answer.output_ids[-1] in ends else "length")
        assert done["r1"].output_ids == free["r1"][:1] and done["r1"].finish_reason == "stop"

    def test_the_targets_own_end_tokens_are_the_default(self, case):
        engine = case.make(None)
        assert engine.end_ids and engine.end_ids == case.make_speculating(None).end_ids
        eos = case.reference.generation_config.eos_token_id
        assert engine.end_ids == {*([eos] if isinstance(eos, int) else eos)}

    def test_one_token_is_an_answer(self, case):
        request = Request("one", case.prompts[0], 1)
        answer = next(iter(case.make(()).generate([request], batch_size=1)))
        assert answer.output_ids == case.greedy(request.input_ids, 1) and answer.finish_reason == "length"

    def test_the_context_can_be_filled_to_the_last_position(self, case):
        prompt = (case.prompts[0] * case.positions)[: case.positions - 6]
        full = next(iter(case.make(()).generate([Request("full", prompt, 6)], batch_size=1)))
        assert full.output_ids == case.greedy(prompt, 6)
        with pytest.raises(ContextError, match="'over'"):
            list(case.make(()).generate([Request("ok", [7], 1), Request("over", prompt, 7)], batch_size=2))

    @pytest.mark.parametrize(
        ("bad", "what"),
        [
            (Request("bad", [], 3), "no tokens"),
            (Request("bad", [3, 10**6], 3), "vocabulary"),
            (Request("bad", [3, -1], 3), "vocabulary"),
            (Request("bad", [3], 0), "max_tokens=0"),
            (Request("bad", [3], 3, temperature=-1.0), "temperature=-1"),
        ],
    )
    def test_a_request_that_cannot_run_is_named(self, case, bad, what):
        with pytest.raises(ValueError, match=f"'bad'.*{what}"):
            list(case.make(()).generate([Request("good", [3], 1), bad], batch_size=2))
        with pytest.raises(ValueError, match=f"'bad'.*{what}"):
            list(case.make_speculating(()).speculate(case.draft, [bad], case.num_steps))

    def test_nothing_asked_nothing_answered(self, case):
        assert list(case.make(()).generate([], batch_size=2)) == []
        assert list(case.make_speculating(()).speculate(case.draft, [], case.num_steps)) == []
        with pytest.raises(ValueError, match="batch_size=0"):
            list(case.make(()).generate([Request("a", [3], 1)], batch_size=0))
        with pytest.raises(ValueError, match="num_steps=0"):
            list(case.make_speculating(()).speculate(case.draft, [Request("a", [3], 1)], 0))

    def test_speculation_changes_no_answer_and_accounts_for_every_token(self, case):
        requests = asked(case, max_tokens=24)
        done = by_id(case.make_speculating(()).speculate(case.draft, requests, case.num_steps))
        assert {*done} == {request.id for request in requests}
        for request in requests:
            answer = done[request.id]
            assert answer.output_ids == case.greedy(request.input_ids, request.max_tokens)
            assert answer.finish_reason == "length" and answer.prompt_ids == request.input_ids
            PromptCycles.served(answer.id, len(answer.output_ids), answer.accepted)  # adds up, or ValueError
            assert all(0 <= a <= case.num_steps for a in answer.accepted)
        assert sum(sum(answer.accepted) for answer in done.values()) > 0

    def test_speculation_stops_at_end_tokens_and_cuts_its_last_verification(self, case):
        requests = asked(case, max_tokens=24)
        free = {request.id: case.greedy(request.input_ids, request.max_tokens) for request in requests}
        ends = {free["r0"][5], free["r1"][2], free["r2"][9]}
        done = by_id(case.make_speculating(ends).speculate(case.draft, requests, case.num_steps))
        for key, answer in done.items():
            assert answer.output_ids == up_to_end(free[key], ends)
            assert answer.finish_reason == ("stop" if answer.output_ids[-1] in ends else "length")
            PromptCycles.served(answer.id, len(answer.output_ids), answer.accepted)

    def test_speculation_of_one_token_needs_no_verification(self, case):
        done = list(case.make_speculating(()).speculate(case.draft, [Request("one", case.prompts[0], 1)], 3))
        assert (done[0].output_ids, done[0].accepted) == (case.greedy(case.prompts[0], 1), [])

    def test_the_first_token_is_timed_where_it_is_seen(self, case):
        requests = asked(case, max_tokens=8)
        answers = [*case.make(()).generate(requests, batch_size=2, streamed=True)]
        answers += case.make_speculating(()).speculate(case.draft, requests, case.num_steps)
        assert all(0 < answer.first_seconds <= answer.seconds for answer in answers)

    def test_captured_states_are_those_of_transformers(self, case):
        rows = [(f"r{i}", prompt) for i, prompt in enumerate(case.prompts)]
        seen = {features.id: features for features in case.capturing.capture(rows, batch_tokens=64)}
        assert {*seen} == {key for key, _ in rows}
        assert list(case.capturing.aux_layers) == case.aux_layers
        for key, ids in rows:
            with torch.inference_mode():
                out = case.reference(torch.tensor([ids]), output_hidden_states=True)
            features = seen[key]
            assert features.input_ids_T.tolist() == ids
            for place, layer in enumerate(case.aux_layers):
                close(features.aux_TAH[:, place], out.hidden_states[layer][0])
            close(features.last_TH, out.hidden_states[-1][0])

    def test_a_row_that_cannot_be_captured_is_named(self, case):
        with pytest.raises(ValueError, match="'bad'"):
            list(case.capturing.capture([("good", [3, 4]), ("bad", [3, 10**6])], batch_tokens=64))
        with pytest.raises(ContextError, match="'long'"):
            list(case.capturing.capture([("long", [3] * (case.positions + 200))], batch_tokens=64))


def close(found, expected):
    """Relative error of the whole tensor under 1e-4 (float32 with another order of sums)."""
    error = (found.float() - expected.float()).norm() / expected.float().norm()
    assert error < 1e-4, f"relative error {error:.2g}"
