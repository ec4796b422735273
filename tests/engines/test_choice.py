"""The choice of an engine hands on what it was told, whichever engine it is."""

import pytest

from eagle3lab.engines import choice
from eagle3lab.engines.choice import EngineChoice, Policy, Sampling
from tests.engines.dispatch.fakes import work


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
        spec = EngineChoice("sglang", "target", "float32", frozenset({1}), trust_remote_code=allowed).spec
        assert spec.trust_remote_code is allowed


def test_servers_are_for_sglang_alone():
    with pytest.raises(ValueError, match="the embedded engine uses none"):
        EngineChoice("embedded", "target", "float32", frozenset(), ["http://a:1"])
    with pytest.raises(ValueError, match="none of embedded, sglang"):
        EngineChoice("vllm", "target", "float32", frozenset())
