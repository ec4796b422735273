"""Notebook 05 with `server_url`: a server that runs already, as it should be and with the wrong flag."""

import json

import pytest

from eagle3lab.data.corpus import write_corpus
from eagle3lab.engines.embedded import EmbeddedEngine
from eagle3lab.engines.sglang.pool import Speculation
from eagle3lab.workbench.runner import run_chain
from tests.engines.story import greedy_answers
from tests.engines.story_fixtures import ANSWER
from tests.sglang.conftest import TRAINED_PROMPTS

pytestmark = [pytest.mark.sglang, pytest.mark.notebooks]


@pytest.fixture(scope="module")
def corpus(story, story_prompts, tmp_path_factory):
    """The prompts that the drafter was trained on and as many others, with the target's answers up to its end token."""
    answers = greedy_answers(EmbeddedEngine(story), story_prompts[: 2 * TRAINED_PROMPTS], ANSWER)
    path = tmp_path_factory.mktemp("corpus") / "corpus.parquet"
    write_corpus(path, map(corpus_row, answers))
    return path


def corpus_row(answer):
    ids, start = answer["prompt_ids"] + answer["output_ids"], len(answer["prompt_ids"])
    return {
        "id": answer["id"], "set": "story", "split": "heldout", "origin": "target", "input_ids": ids,
        "loss_spans": [[start, len(ids)]], "finish_reason": "length",
    }  # fmt: skip


@pytest.fixture
def diagnose(story, story_draft, corpus, tmp_path):
    """url -> (results, checks) of notebook 05."""

    def run(url):
        overrides = {
            "runs_dir": str(tmp_path / "runs"), "target": str(story), "draft": str(story_draft), "corpus": str(corpus),
            "training_run": "none", "inference_run": "none", "server_url": url, "heart_answers": 0,
        }  # fmt: skip
        (result,) = run_chain("smoke", stages=["diagnostics"], overrides=overrides)
        record = json.loads((result.folder / "run.json").read_text())
        assert record["state"] == "ok", record["error"]
        return (json.loads((result.folder / name).read_text()) for name in ("results.json", "checks.json"))

    return run


def test_a_sound_server_accepts_what_was_simulated(diagnose, story_engine, story_draft):
    url = story_engine.servers.speculating(Speculation(str(story_draft), num_steps=3)).url
    results, report = diagnose(url)
    assert (results["cycles_differing"], results["lossless"]) == (0, "8/8")
    assert results["accept_length_served"]["accept_length"] > 2.0
    account = {check["check"]: check["ok"] for check in report["checks"]}
    assert account["the server's account of itself shows no fault"]
    assert report["states"]["layers"] and not results["verdict"].startswith("bug")


def test_the_wrong_flag_is_the_verdict(diagnose, wrong_flag_server):
    results, report = diagnose(wrong_flag_server.url)
    simulated, served = results["accept_length_simulated"], results["accept_length_served"]
    assert served["accept_length"] < 1.3 < 2.0 < simulated["accept_length"]
    assert results["verdict"] == "bug in serving" and results["cycles_differing"] > 10
    assert "EAGLE instead of EAGLE3" in report["verdict"], report["verdict"]
