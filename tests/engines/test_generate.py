import pytest
import torch

from eagle3lab.engines.base import ContextError, NonFiniteError, Request
from eagle3lab.engines.embedded import EmbeddedEngine
from tests.tiny import END, VOCAB


def prompts(count, seed=0, longest=40):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(2, VOCAB, (n,), generator=generator).tolist() for n in lengths]


def requests(count, max_tokens=14, **more):
    return [Request(f"r{i}", ids, max_tokens - i % 5, **more) for i, ids in enumerate(prompts(count))]


def by_id(completions):
    return {completion.id: completion for completion in completions}


def hf_greedy(model, request, end_ids=(END,)):
    out = model.generate(
        torch.tensor([request.input_ids]),
        max_new_tokens=request.max_tokens,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=list(end_ids) or None,
    )
    return out[0, len(request.input_ids) :].tolist()


def test_greedy_equals_transformers_generate(engine, reference):
    done = by_id(engine.generate(requests(13), batch_size=4))  # several refills of the batch
    assert len(done) == 13
    for request in requests(13):
        answer = done[request.id]
        assert answer.output_ids == hf_greedy(reference, request)
        assert answer.prompt_ids == request.input_ids
        stopped = answer.output_ids[-1] == END
        assert answer.finish_reason == ("stop" if stopped else "length")
        assert stopped or len(answer.output_ids) == request.max_tokens
        assert answer.seconds > 0
    assert {answer.finish_reason for answer in done.values()} == {"stop", "length"}


def test_ragged_batches_equal_single_rows(engine):
    alone = by_id(c for r in requests(8) for c in engine.generate([r], batch_size=1))
    for batch_size in (3, 8):
        together = by_id(engine.generate(requests(8), batch_size))
        assert {i: c.output_ids for i, c in together.items()} == {i: c.output_ids for i, c in alone.items()}


def test_end_tokens_can_be_named_or_switched_off(folders, reference, family):
    request = Request("a", [5, 9, 20], 30)
    free = EmbeddedEngine(folders[family], end_ids=())
    answer = next(free.generate([request]))
    assert answer.output_ids == hf_greedy(reference, request, ()) and answer.finish_reason == "length"
    ends = EmbeddedEngine(folders[family], end_ids={answer.output_ids[6]})
    short = next(ends.generate([request]))
    assert short.output_ids == answer.output_ids[: answer.output_ids.index(answer.output_ids[6]) + 1]
    assert short.finish_reason == "stop"


def test_end_token_in_the_first_place_and_single_token_answers(llama):
    first = next(llama.generate([Request("a", [5, 9, 20], 1)])).output_ids
    assert len(first) == 1
    engine = EmbeddedEngine(llama.target.folder, end_ids=first)
    answer = next(engine.generate([Request("a", [5, 9, 20], 30)]))
    assert answer.output_ids == first and answer.finish_reason == "stop"


def test_the_context_can_be_filled_to_its_last_position(llama, folders):
    engine = EmbeddedEngine(folders["llama"], end_ids=())
    assert len(next(engine.generate([Request("full", [7] * 100, 28)])).output_ids) == 28
    with pytest.raises(ContextError, match="'over'"):
        list(engine.generate([Request("ok", [7], 1), Request("over", [7] * 100, 29)]))


def test_nothing_runs_when_one_request_is_bad(llama):
    with pytest.raises(ValueError, match="'b' has no tokens"):
        next(llama.generate([Request("a", [3], 1), Request("b", [], 1)]))
    with pytest.raises(ValueError, match="batch_size=0"):
        next(llama.generate([Request("a", [3], 1)], batch_size=0))
    assert list(llama.generate([])) == []


def test_sampling_is_reproducible_by_seed_and_independent_of_the_batch(engine):
    def sample(batch_size, seed):
        asked = requests(6, temperature=1.0, seed=seed)
        return {i: c.output_ids for i, c in by_id(engine.generate(asked, batch_size)).items()}

    alone = sample(1, 5)
    assert alone == sample(4, 5)
    assert alone != sample(4, 6)
    assert alone != {i: c.output_ids for i, c in by_id(engine.generate(requests(6), 6)).items()}


def test_greedy_and_sampled_rows_share_a_batch(llama):
    plain = by_id(llama.generate(requests(6), 6))
    mixed = requests(6)[:3] + requests(6, temperature=0.7)[3:]
    done = by_id(llama.generate(mixed, 6))
    assert all(done[f"r{i}"].output_ids == plain[f"r{i}"].output_ids for i in range(3))
    assert any(done[f"r{i}"].output_ids != plain[f"r{i}"].output_ids for i in range(3, 6))


def test_nan_logits_are_refused_by_row(folders):
    engine = EmbeddedEngine(folders["qwen3"])  # untied: the head stays whole
    engine.target.model.get_input_embeddings().weight[50] = float("nan")
    with pytest.raises(NonFiniteError, match="'bad'"):
        list(engine.generate([Request("good", [4, 5], 3), Request("bad", [4, 50, 6], 3)], 2))
