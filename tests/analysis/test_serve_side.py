"""The served side: the embedded engine's answers, and those of a server with what it says of itself."""

from dataclasses import replace

import pytest
import torch

from eagle3lab.analysis import serve_side
from eagle3lab.analysis.doctor.serving import check_server
from eagle3lab.analysis.heldout import capture_answers
from eagle3lab.analysis.parity import ParityError
from eagle3lab.analysis.serve_side import ServeSide, ask_server, layers_beside, serve
from eagle3lab.data.rehearsal.target import write_tokenizer
from eagle3lab.data.rehearsal.tokenizer import KimiStandIn
from eagle3lab.draft.checkpoint import export_draft
from eagle3lab.engines.embedded import EmbeddedEngine
from eagle3lab.engines.sglang import blocking
from eagle3lab.engines.sglang.attach import AttachedServer, parse_server_info
from tests.analysis.overfit import STEPS


@pytest.fixture(scope="module")
def completions(overfit):
    return list(overfit.engine.speculate(overfit.draft, overfit.requests, STEPS))


@pytest.fixture
def folder(overfit, tmp_path):
    return export_draft(overfit.draft, tmp_path / "draft", {}, dtype=torch.float32)


@pytest.fixture
def server(overfit, folder, completions, monkeypatch):
    """A server whose account of itself a test may change, and that answers as the embedded engine does."""
    says = {
        "version": "0.5.23", "model_path": str(overfit.folder), "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": str(folder), "speculative_num_steps": STEPS, "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": STEPS + 1, "device": "cpu", "dtype": "float32",
    }  # fmt: skip

    def info(self):
        return parse_server_info(self.url, says, {"model_path": says["model_path"]})

    monkeypatch.setattr(AttachedServer, "info", info)
    monkeypatch.setattr(serve_side, "attach", AttachedServer)
    monkeypatch.setattr(blocking, "generate_all", lambda url, requests, **options: iter(completions))
    return says


def test_the_embedded_engine_agrees_with_the_simulation(overfit, completions):
    found = ServeSide(completions).compare(overfit.draft, overfit.rows, STEPS, overfit.engine.lm_head_VH)
    assert found.equal and found.causes == ()


def test_a_server_that_is_right_shows_nothing(overfit, folder, server):
    side = ask_server("http://s", overfit.requests, STEPS, folder)
    assert side.name == "SGLang 0.5.23 on cpu, float32"
    assert side.facts == {} and side.excluded == {"flag"}
    assert side.compare(overfit.draft, overfit.rows, STEPS, overfit.engine.lm_head_VH).equal
    assert [(check.found, check.ok) for check in side.checked()] == [("none", True)]


def test_a_fault_that_changes_no_answer_to_token_ids_is_told_all_the_same(overfit, completions):
    side = ServeSide(completions, "SGLang 0.5.23 on cpu, float32", {"template": "another than the target's"})
    assert side.compare(overfit.draft, overfit.rows, STEPS, overfit.engine.lm_head_VH).equal
    assert [(check.found, check.ok) for check in side.checked()] == [("template: another than the target's", False)]
    assert ServeSide(completions).checked() == []  # the embedded engine has no account of itself


def test_what_a_server_says_of_itself_ranks_before_guesses(overfit, folder, server, completions, monkeypatch):
    server["speculative_algorithm"] = "EAGLE"
    never = [replace(one, accepted=[0] * (len(one.output_ids) - 1)) for one in completions]
    monkeypatch.setattr(blocking, "generate_all", lambda url, requests, **options: iter(never))
    side = ask_server("http://s", overfit.requests, STEPS, folder)
    found = side.compare(overfit.draft, overfit.rows, STEPS, overfit.engine.lm_head_VH)
    assert (found.causes[0].cause, found.causes[0].agreement) == ("flag", None)
    assert found.causes[0].why.startswith("server flag: ") and "EAGLE-3 drafter" in found.causes[0].why


def test_nothing_accepted_is_a_symptom_and_not_the_flag(overfit, folder, server):
    """An accept length of 1.00 has many causes; a server that runs EAGLE3 has the right flag."""
    server["internal_states"] = [{"avg_spec_accept_length": 1.0}]
    side = ask_server("http://s", overfit.requests, STEPS, folder)
    assert side.facts == {} and side.excluded == {"flag"}


def test_answers_whose_verifications_were_merged_are_asked_for_again(overfit, folder, server, completions, monkeypatch):
    asked, merged = [], {"p1": 2, "p2": 99}  # how often each is answered without its order

    def answers(url, requests, concurrency, **options):
        asked.append(([request.id for request in requests], concurrency))
        for one in completions:
            if one.id in asked[-1][0]:
                merged[one.id] = merged.get(one.id, 0) - 1
                yield replace(one, accepted=None) if merged[one.id] >= 0 else one

    monkeypatch.setattr(blocking, "generate_all", answers)
    side = ask_server("http://s", overfit.requests, STEPS, folder)
    assert asked[1:] == [(["p1", "p2"], 1), (["p1", "p2"], 1), (["p2"], 1)] and asked[0][1] == serve_side.AT_ONCE
    assert side.untold == ("p2",) and {one.id for one in side.completions} == {r.id for r in overfit.requests} - {"p2"}
    assert side.compare(overfit.draft, overfit.rows, STEPS, overfit.engine.lm_head_VH).equal
    merged.update({request.id: 99 for request in overfit.requests})
    with pytest.raises(ParityError, match="did not tell what each verification accepted: ask it when it is less busy"):
        ask_server("http://s", overfit.requests, STEPS, folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"speculative_algorithm": None}, "does not speculate: start it with the drafter and EAGLE3"),
        ({"speculative_num_steps": 5}, "runs num_steps 5, topk 1; the simulation is of a chain of 3"),
        ({"speculative_eagle_topk": 4}, "runs num_steps 3, topk 4"),
    ],
)
def test_a_server_of_another_setting_is_refused(overfit, folder, server, changes, words):
    server |= changes
    with pytest.raises(ParityError, match=words):
        ask_server("http://s", overfit.requests, STEPS, folder)


def test_a_tokenizer_that_is_code_is_not_run_a_second_time(tmp_path):
    target, other = (write_tokenizer(tmp_path / name) for name in ("target", "other"))
    verdicts = {}
    for path in (target, other):
        info = parse_server_info("http://s", {"model_path": str(target), "tokenizer_path": str(path)}, {})
        checks = {check.check: check for check in check_server(info, None, target, KimiStandIn())}
        verdicts[path] = checks["server template"].verdict
    assert verdicts == {target: "ok", other: "not checked"}


def serve_them(overfit, folder, **more):
    return serve(overfit.engine, overfit.answers, STEPS, overfit.draft, folder, overfit.folder, None, **more)


def test_the_embedded_engine_serves_where_no_server_is_named(overfit, completions):
    seen = []

    def watch(served, total, unit):
        seen.append((total, unit))
        return served

    side = serve_them(overfit, "not looked at", watch=watch)
    assert {one.id: one.accepted for one in side.completions} == {one.id: one.accepted for one in completions}
    assert side.name == "embedded engine, float32" and seen == [(len(completions), "answers served")]


def test_a_named_server_is_asked_and_the_layers_beside_are_looked_at(overfit, folder, server):
    side = serve_them(overfit, folder, url="http://s")
    assert side.name == "SGLang 0.5.23 on cpu, float32"
    assert set(side.beside) == {"layers: one layer later", "layers: one layer earlier"}


def test_an_sglang_engine_is_asked_for_a_server_of_the_drafter(overfit, folder, server):
    class Servers:
        def speculating(self, wanted):
            self.asked = (wanted.draft, wanted.num_steps, wanted.topk)
            return AttachedServer("http://started")

    class Host:
        servers, end_ids = Servers(), frozenset()

    side = serve(Host, overfit.answers, STEPS, overfit.draft, folder, overfit.folder, None)
    assert Host.servers.asked == (str(folder), STEPS, 1)
    assert side.name == "SGLang 0.5.23 on cpu, float32" and side.beside == {}


def test_the_layers_beside_are_those_of_engines_one_layer_off(overfit):
    found = layers_beside(overfit.engine, overfit.answers, 512)
    assert set(found) == {"layers: one layer later", "layers: one layer earlier"}
    for by, words in ((1, "later"), (-1, "earlier")):
        other = EmbeddedEngine(overfit.folder, aux_layers=[k + by for k in overfit.engine.aux_layers], end_ids=())
        expected = {row.id: row.aux_TAH for row in capture_answers(other, overfit.answers, 512)}
        rows = found[f"layers: one layer {words}"]
        assert {row.id for row in rows} == set(expected)
        assert all(torch.equal(row.aux_TAH, expected[row.id]) for row in rows)


def test_layers_beyond_the_target_are_left_out(overfit):
    last = overfit.engine.target.num_layers - 1
    engine = EmbeddedEngine(overfit.folder, aux_layers=[2, last], end_ids=())
    assert set(layers_beside(engine, overfit.answers[:1], 512)) == {"layers: one layer earlier"}
    ends = EmbeddedEngine(overfit.folder, aux_layers=[0, last], end_ids=())
    assert layers_beside(ends, overfit.answers[:1], 512) == {}
