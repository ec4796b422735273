import pytest
import torch

from eagle3lab.engines.base import ContextError
from eagle3lab.engines.capture import batches_by_length
from eagle3lab.engines.embedded import EmbeddedEngine
from eagle3lab.features.checks import NonFiniteStateError
from tests.engines.test_generate import prompts


def rows(count):
    return [(f"r{i}", ids) for i, ids in enumerate(prompts(count, seed=3))]


@pytest.mark.parametrize("batch_tokens", [1, 60, 4096])
def test_states_are_transformers_hidden_states(engine, reference, batch_tokens):
    captured = {f.id: f for f in engine.capture(rows(9), batch_tokens)}
    assert len(captured) == 9
    for row_id, ids in rows(9):
        with torch.no_grad():
            hs = reference(torch.tensor([ids]), output_hidden_states=True).hidden_states
        got = captured[row_id]
        assert got.input_ids_T.tolist() == ids and engine.aux_layers == [2, 4, 5]
        assert got.aux_TAH.shape == (len(ids), 3, 32)
        expected = torch.stack([hs[2][0], hs[4][0], hs[5][0]], dim=1)
        torch.testing.assert_close(got.aux_TAH, expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(got.last_TH, hs[8][0], atol=1e-4, rtol=1e-4)


def test_layers_keep_the_order_they_are_named_in(folders, family, reference):
    engine = EmbeddedEngine(folders[family], aux_layers=[7, 0])
    got = next(engine.capture([("a", [4, 9, 33])]))
    with torch.no_grad():
        hs = reference(torch.tensor([[4, 9, 33]]), output_hidden_states=True).hidden_states
    torch.testing.assert_close(got.aux_TAH[:, 0], hs[7][0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(got.aux_TAH[:, 1], hs[0][0])


def test_the_head_turns_last_states_into_the_models_logits(engine, reference):
    got = next(engine.capture([("a", [4, 9, 33])]))
    with torch.no_grad():
        logits = reference(torch.tensor([[4, 9, 33]])).logits[0]
    torch.testing.assert_close(got.last_TH @ engine.lm_head_VH.T, logits, atol=1e-4, rtol=1e-4)


def test_bfloat16_states_stay_bfloat16(folders, family):
    got = next(EmbeddedEngine(folders[family], "bfloat16").capture([("a", [4, 9, 33])]))
    assert got.aux_TAH.dtype == got.last_TH.dtype == torch.bfloat16
    assert not got.aux_TAH.is_inference()  # may be used in training


def test_nan_is_refused_by_row_and_layer(folders, family):
    engine = EmbeddedEngine(folders[family])
    engine.target.model.get_decoder().layers[3].input_layernorm.weight[0] = float("nan")
    with pytest.raises(NonFiniteStateError, match=r"'sick'.*hs\[4\].*3 of 3 tokens"):
        list(engine.capture([("sick", [4, 9, 33])]))


def test_nan_of_one_row_names_that_row(folders):
    engine = EmbeddedEngine(folders["qwen3"])
    engine.target.model.get_input_embeddings().weight[50] = float("nan")
    with pytest.raises(NonFiniteStateError, match=r"'bad'.*hs\[2\].*of 4 tokens"):
        list(engine.capture([("good", [4, 9, 33]), ("bad", [4, 50, 9, 9])]))


def test_rows_that_cannot_run_are_named(llama):
    with pytest.raises(ContextError, match="'long' has 129 tokens.*128"):
        list(llama.capture([("long", [3] * 129)]))
    with pytest.raises(ValueError, match="'empty' has no tokens"):
        list(llama.capture([("empty", [])]))
    with pytest.raises(ValueError, match="batch_tokens=0"):
        list(llama.capture([("a", [3])], 0))


def test_batches_hold_at_most_their_padded_tokens():
    batches = list(batches_by_length([(str(n), [0] * n) for n in (9, 2, 3, 50, 2, 10)], 20))
    assert [[len(ids) for _, ids in batch] for batch in batches] == [[2, 2, 3], [9, 10], [50]]


def test_capture_reads_a_stream_lazily(llama):
    def endless():
        while True:
            yield "a", [3, 4, 5]

    assert next(llama.capture(endless())).id == "a"
