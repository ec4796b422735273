"""Held-out answers from a feature store against the same answers captured by an engine."""

import pytest
import torch

from eagle3lab.analysis.heldout import simulate, stored_answers
from eagle3lab.features.store import FeatureStore, FeatureWriter
from tests.analysis.overfit import STEPS


@pytest.fixture(scope="module")
def stored(overfit, tmp_path_factory):
    """A store of whole conversations: every answer is followed by a turn that is not an answer's."""
    folder = tmp_path_factory.mktemp("heldout") / "store"
    sizes = (overfit.engine.aux_layers, overfit.engine.config.hidden_size)
    writer = FeatureWriter(folder, {"corpus": "c"}, *sizes, codec="float32")
    texts = {a["id"]: a["prompt_ids"] + a["output_ids"] + [5, 6, 7] for a in overfit.answers}
    prompts = {a["id"]: len(a["prompt_ids"]) for a in overfit.answers}
    for one in overfit.engine.capture(texts.items(), 512):
        # the first answer of the conversation is one token of the prompt
        spans = [[1, 2], [prompts[one.id], len(texts[one.id]) - 3]]
        writer.add(one.id, texts[one.id], spans, one.aux_TAH, one.last_TH, "heldout", "s")
    writer.close()
    return FeatureStore(folder)


def test_the_stored_states_are_those_that_are_captured(overfit, stored):
    found = {row.id: row for row in stored_answers(stored, overfit.answers)}
    assert found.keys() == {row.id for row in overfit.rows}
    for row in overfit.rows:
        other = found[row.id]
        assert (other.set, other.n_prompt) == (row.set, row.n_prompt)
        for name in ("input_ids_T", "loss_mask_T", "last_slots"):
            assert torch.equal(getattr(other, name), getattr(row, name)), name
        torch.testing.assert_close(other.aux_TAH, row.aux_TAH, rtol=1e-4, atol=1e-4)  # captured in other batches
        torch.testing.assert_close(other.last_MH, row.last_MH, rtol=1e-4, atol=1e-4)


def test_the_simulation_of_both_is_the_same(overfit, stored):
    wanted = {cycle.id: cycle.accepted for cycle in simulate(overfit.draft, overfit.rows, STEPS).cycles}
    found = simulate(overfit.draft, stored_answers(stored, overfit.answers), STEPS)
    assert {cycle.id: cycle.accepted for cycle in found.cycles} == wanted
    assert max(map(max, wanted.values())) == STEPS


def test_an_answer_that_the_store_does_not_hold_is_named(overfit, stored):
    answer = overfit.answers[0]
    other = [("id", "q9"), ("output_ids", [*answer["output_ids"][:-1], 63]), ("prompt_ids", answer["prompt_ids"][:-1])]
    for name, value in other:
        with pytest.raises(ValueError, match="hold no states of the answer '.*': they are of another corpus"):
            list(stored_answers(stored, [answer | {name: value}]))
