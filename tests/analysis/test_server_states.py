"""The states that a server gives, compared with the embedded engine's: the same, of other layers, of another target."""

import json

import pytest
import torch

from eagle3lab.analysis import server_states as module
from eagle3lab.analysis.heldout import capture_answers
from eagle3lab.analysis.serve_side import ServeSide
from eagle3lab.analysis.server_states import TOKENS, compare_states
from eagle3lab.engines.embedded import EmbeddedEngine
from eagle3lab.engines.sglang.assemble import RowError
from eagle3lab.engines.sglang.attach import AttachedServer, parse_server_info
from tests.analysis.overfit import STEPS


@pytest.fixture
def server(overfit, monkeypatch):
    """A server whose account of itself a test may change, and that gives the states of the layers `says["layers"]`."""
    says = {"version": "0.5.23", "model_path": "t", "dtype": "float32", "enable_return_hidden_states": True}
    says["layers"], says["asked"] = overfit.engine.aux_layers, []

    def states(url, rows):
        says["asked"] += [len(ids) for _, ids in rows]
        engine = EmbeddedEngine(overfit.folder, aux_layers=says["layers"], end_ids=())
        for features in engine.capture(rows):
            yield features.id, features.aux_TAH.flatten(1) * says.get("factor", 1)

    monkeypatch.setattr(AttachedServer, "info", lambda self: parse_server_info(self.url, says, {}))
    monkeypatch.setattr(module, "attach", AttachedServer)
    monkeypatch.setattr(module, "capture_json", states)
    return says


def compared(overfit):
    return compare_states("http://s", overfit.engine, overfit.rows)


def test_the_same_states_rule_causes_out(overfit, server):
    found = compared(overfit)
    assert found.equal and found.facts == {} and found.excluded == {"layers", "target"}
    assert [(one.layer, one.nearest_layer) for one in found.layers] == [(k, k) for k in overfit.engine.aux_layers]
    assert server["asked"] == [min(len(row.input_ids_T), TOKENS) for row in overfit.rows[:3]]
    (check,) = found.checked()
    assert check.ok and f": relative error of {found.tokens} tokens at most " in check.found
    said = json.loads(json.dumps(found.to_dict()))
    assert said["equal"] and said["found"] == check.found and said["layers"][0]["layer"] == found.layers[0].layer
    side = ServeSide([], facts={"flag": "x"}, excluded={"tensors"}).with_states(found)
    assert (side.facts, side.excluded) == ({"flag": "x"}, {"tensors", "layers", "target"})


def test_layers_off_by_one_are_a_fact_that_names_them_and_ranks_first(overfit, server):
    layers = overfit.engine.aux_layers
    server["layers"] = [k + 1 for k in layers]
    found = compared(overfit)
    assert not found.equal and [one.nearest_layer for one in found.layers] == server["layers"]
    assert all(one.error > 0.01 > 1e-4 > one.error_there for one in found.layers)
    assert f"for hs[{layers[0]}] it gives hs[{layers[0] + 1}]; " in found.facts["layers"]
    later = EmbeddedEngine(overfit.folder, aux_layers=server["layers"], end_ids=())
    rows = {"layers: one layer later": list(capture_answers(later, overfit.answers, 512))}
    completions = list(later.speculate(overfit.draft, overfit.requests, STEPS))
    side = ServeSide(completions, beside=rows).with_states(found)
    first = side.compare(overfit.draft, overfit.rows, STEPS, overfit.engine.lm_head_VH).causes[0]
    assert (first.cause, first.name, first.why) == ("layers", "one layer later", found.facts["layers"])


def test_other_values_of_the_right_layers_are_another_target(overfit, server):
    server["factor"] = 1.02
    found = compared(overfit)
    assert [round(one.error, 3) for one in found.layers] == [0.02] * 3 and not found.equal
    assert set(found.facts) == {"target"} and not found.checked()[0].ok
    server["dtype"] = "bfloat16"  # rounding alone is less than three per cent
    assert compared(overfit).equal


def test_states_of_one_layer_show_the_wrong_flag(overfit, server):
    server["layers"] = overfit.engine.aux_layers[:1]
    found = compared(overfit)
    assert found.facts["flag"].startswith(f"{overfit.engine.config.hidden_size} numbers a token in place of 3 x ")
    assert not found.equal and not found.checked()[0].ok and found.layers == ()


def test_where_nothing_is_compared_a_sentence_says_why(overfit, server, monkeypatch):
    def pieces(url, rows):
        raise RowError("row 'p0': only the last piece of a chunked prefill")

    monkeypatch.setattr(module, "capture_json", pieces)
    chunked = compared(overfit)
    server["return_hidden_states_mode"] = "last"
    for found, words in (
        (compare_states(None, overfit.engine, overfit.rows), "no server was named (server_url)"),
        (chunked, "only the last piece"),
        (compared(overfit), "http://s gives none; start it with --enable-return-hidden-states"),
    ):
        assert str(found).startswith("states of the server not compared: ") and words in str(found)
        assert found.to_dict()["equal"] is None
        assert (found.checked(), found.facts, found.excluded) == ([], {}, set())


def test_every_layer_is_that_of_transformers(overfit):
    """hs[k] of every k, in order, row after row."""
    reference = overfit.engine.target.model
    few = overfit.rows[:2]
    wanted = [reference(row.input_ids_T[None], output_hidden_states=True).hidden_states[:-1] for row in few]
    wanted_TLH = torch.cat([torch.cat(layers).transpose(0, 1) for layers in wanted])
    torch.testing.assert_close(module.every_layer(overfit.engine, few), wanted_TLH, rtol=1e-3, atol=1e-4)
