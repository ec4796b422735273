"""The choice of an engine hands on what it was told, whichever engine it is."""

import pytest

from eagle3lab.engines import choice
from eagle3lab.engines.choice import EngineChoice, Policy, Sampling
from eagle3lab.engines.vllm.engine import VllmEngine
from tests.engines.dispatch.fakes import work
from tests.engines.sglang.drafters import write_target


@pytest.fixture
def told(monkeypatch):
    """What reaches the two ways of answering."""
    calls = {}

    def dispatch(works, backends, folder, target, policy, sampling, retry_set_aside):
        calls["sglang"] = ([one.name for one in backends], folder, target, policy, sampling, retry_set_aside)
        return iter(["view"])

    def dispatch_embedded(works, engine, folder, target, batch_size, sampling, retry_set_aside):
        calls["embedded"] = (folder, target, batch_size, sampling, retry_set_aside)
        return iter(["view"])

    monkeypatch.setattr(choice, "dispatch", dispatch)
    monkeypatch.setattr(choice, "dispatch_embedded", dispatch_embedded)
    monkeypatch.setattr(choice, "EmbeddedEngine", lambda *args, **options: None)
    return calls


@pytest.mark.parametrize("retry", [False, True])
def test_rows_that_were_set_aside_are_asked_again_by_either_engine(told, tmp_path, retry):
    sampling, policy = Sampling(0.5, 3), Policy(deadline_s=7.0)
    urls = ["http://a:1", "http://b:2"]
    for engine, servers in (("embedded", []), ("sglang", urls)):
        one = EngineChoice(engine, "target", "float32", frozenset({1}), servers)
        assert list(one.answer([work(2)], tmp_path, 16, sampling, policy, retry)) == ["view"]
    assert told["embedded"] == (tmp_path, "target", 16, sampling, retry)
    assert told["sglang"] == (urls, tmp_path, "target", policy, sampling, retry)


def test_code_of_the_target_runs_in_a_server_only_when_it_is_allowed():
    for allowed in (False, True):
        choice = EngineChoice("sglang", "target", "float32", frozenset({1}), trust_remote_code=allowed)
        assert choice.spec.trust_remote_code is choice.vllm_spec.trust_remote_code is allowed


@pytest.mark.parametrize("on", [False, True])
def test_cuda_graphs_are_those_of_the_server(on):
    choice = EngineChoice("sglang", "target", "float32", frozenset({1}), cuda_graphs=on)
    assert choice.spec.cuda_graphs is choice.vllm_spec.cuda_graphs is on


def test_servers_are_for_sglang_alone():
    with pytest.raises(ValueError, match="the embedded engine uses none"):
        EngineChoice("embedded", "target", "float32", frozenset(), ["http://a:1"])
    with pytest.raises(ValueError, match="the vllm engine uses none"):
        EngineChoice("vllm", "target", "float32", frozenset(), ["http://a:1"])
    with pytest.raises(ValueError, match="none of embedded, sglang, vllm"):
        EngineChoice("tgi", "target", "float32", frozenset())


def test_vllm_is_opened_with_its_own_flags_and_answers_nothing_in_bulk(tmp_path):
    target = write_target(tmp_path / "target")
    options = {"device": "cpu", "options": ["--max-num-seqs", "2"], "logs": tmp_path}
    one = EngineChoice("vllm", target, "float32", frozenset({1}), **options)
    with one.open([2, 4, 5], most_servers=3) as engine:
        assert isinstance(engine, VllmEngine) and engine.aux_layers == [2, 4, 5] and engine.end_ids == {1}
        assert (engine.spec.device, engine.spec.dtype, engine.spec.extra) == ("cpu", "float32", ("--max-num-seqs", "2"))
    with pytest.raises(ValueError, match="let embedded or sglang answer"):
        list(one.answer([work(2)], tmp_path, 16, Sampling(0.0, 0), Policy()))
