"""What nine notebooks on a small real model leave behind, checked with values computed apart from them."""

import hashlib
import html
import json
import shutil
import subprocess
import sys
from collections import Counter

import matplotlib.image
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from eagle3lab.analysis.heldout import heldout_answers
from eagle3lab.data.chat import end_token_ids, load_tokenizer
from eagle3lab.data.targets import resolve_target
from eagle3lab.draft.checkpoint import load_draft, read_draft_config
from eagle3lab.engines.base import Request
from eagle3lab.engines.embedded import EmbeddedEngine
from eagle3lab.workbench.plan import plan
from eagle3lab.workbench.root import package_parent
from eagle3lab.workbench.runner import run_chain

pytestmark = pytest.mark.notebooks

STAGES = [
    "doctor", "data_prep", "inference", "extraction", "training", "diagnostics", "serving", "scaling", "status",
]  # fmt: skip
FIGURES = {
    "data_prep": {"prompt_lengths"},
    "inference": {"answer_lengths", "answers", "time_left"},
    "training": {"training_curves", "acceptance_gained"},
    "diagnostics": {
        "acceptance_by_position",
        "accept_histogram",
        "waterfall",
        "slices",
        "entropy_by_position",
        "calibration",
    },
    "serving": {"serving_speed", "break_even", "served_by_position", "grid", "what_if", "what_if_1"},
    "scaling": {"scaling_curve", "scaling_by_position"},
}
ALWAYS = {"doctor", "status"}


def printed(notebook):
    cells = json.loads(notebook.read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return "".join("".join(output["text"]) for output in outputs if output["output_type"] == "stream")


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_every_stage_ended_ok_on_the_runs_before_it(smoke_chain):
    assert list(smoke_chain.results) == STAGES
    for stage, result in smoke_chain.results.items():
        record = smoke_chain.read(stage, "run.json")
        assert (record["state"], record["driver"], record["error"]) == ("ok", "runner", None), stage
        assert record["run_id"] == result.run_id == result.folder.name and result.ran
        assert record["profile"] == "smoke" and record["seconds"] > 0
        for upstream, entry in record["upstream"].items():
            assert entry["run_id"] == smoke_chain.results[upstream].run_id
    total = sum(smoke_chain.read(stage, "run.json")["seconds"] for stage in STAGES)
    print(f"smoke chain: {total:.0f} s")


@pytest.mark.parametrize("stage", STAGES)
def test_the_manifest_tells_the_files_as_they_are(smoke_chain, stage):
    folder, manifest = smoke_chain.folder(stage), smoke_chain.read(stage, "manifest.json")
    for key, entry in manifest.items():
        path = folder / entry["path"]
        if "files" not in entry:
            assert (entry["bytes"], entry["sha256"]) == (path.stat().st_size, sha256(path)), key
            continue
        found = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
        assert {name: e["sha256"] for name, e in entry["files"].items()} == {
            name: sha256(file) for name, file in found.items()
        }, key
        assert entry["bytes"] == sum(file.stat().st_size for file in found.values())
    results = smoke_chain.read(stage, "results.json")
    assert stage == "status" or len(results) > 1


def test_every_row_is_accounted_for(smoke_chain):
    import pyarrow.parquet as pq

    prepared = smoke_chain.folder("data_prep") / "prepared"
    summary = json.loads((prepared / "sharegpt" / "summary.json").read_text())
    prompts, others = (
        [json.loads(line) for line in (prepared / "sharegpt" / f"{name}.jsonl").read_text().splitlines()]
        for name in ("prompts", "errors")
    )
    suites = [json.loads(line) for line in (prepared / "suites.jsonl").read_text().splitlines()]
    # the file holds 17,671 whole conversations and one that is cut off; each line of errors.jsonl is a row's fate
    assert summary["input"] == 17_672 == len(prompts) + len(others)
    for kind, told in (("skipped", summary["skipped"]), ("error", summary["errors"])):
        assert Counter(row["reason"] for row in others if row["kind"] == kind) == told
    assert [row["row"] for row in others if row["kind"] == "error"] == [17_671]
    ids = {row["id"]: row for row in prompts + suites}
    assert len(ids) == len(prompts) + len(suites) == 60 + 12 + 4

    completions = {row["id"]: row for row in smoke_chain.lines("inference", "completions.jsonl")}
    assert completions.keys() == ids.keys()  # nothing was skipped, nothing was in error
    assert all(completions[i]["prompt_ids"] == ids[i]["prompt_ids"] for i in ids)
    assert all(1 <= len(row["output_ids"]) <= 40 for row in completions.values())

    corpus = pq.read_table(smoke_chain.folder("inference") / "corpus.parquet").to_pylist()
    assert {row["id"] for row in corpus} == ids.keys() and len(corpus) == len(ids)
    for row in corpus:
        answer, start = completions[row["id"]], len(ids[row["id"]]["prompt_ids"])
        assert row["input_ids"] == answer["prompt_ids"] + answer["output_ids"]
        assert row["loss_spans"] == [[start, len(row["input_ids"])]]
        assert row["split"] == ids[row["id"]].get("split", "heldout")

    index = {row["id"]: row for row in smoke_chain.lines("extraction", "features/index-00.jsonl")}
    assert {i: row["n"] for i, row in index.items()} == {r["id"]: len(r["input_ids"]) for r in corpus}
    results = smoke_chain.read("extraction", "results.json")
    assert results["tokens"] == sum(len(row["input_ids"]) for row in corpus)
    assert (results["train_rows"], results["heldout_rows"]) == (60, 16)
    rest = [row for i, row in enumerate(corpus) if i % 4 or i > 60]  # the estimate's sample: 16 of 76 rows
    assert (results["rest"]["rows"], results["rest"]["tokens"]) == (60, sum(len(row["input_ids"]) for row in rest))
    assert set(results["rest"]) == {"rows", "tokens", "estimated_s", "seconds"}
    trained = {row["id"] for row in corpus if row["split"] == "train"}
    assert smoke_chain.read("training", "results.json")["rows"] == len(trained) == 60


def test_simulated_equals_served_and_the_trained_drafter_beats_the_random_one(smoke_chain):
    results = smoke_chain.read("diagnostics", "results.json")
    assert results["cycles_differing"] == 0 and results["lossless"] == "8/8"
    report = smoke_chain.read("diagnostics", "checks.json")
    assert [check["check"] for check in report["checks"] if not check["ok"]] == [] and len(report["checks"]) == 8
    assert len(report["slices"]) == 7  # each holds every draft that counted
    assert len({sum(part["attempts"] for part in parts) for parts in report["slices"].values()}) == 1
    simulated, served = report["accept"][-2:]
    for field in ("prompts", "verifications", "committed", "histogram"):
        assert simulated[field] == served[field]
    for summary in report["accept"]:
        histogram = summary["histogram"]  # verifications by accepted drafts
        assert sum(histogram) == summary["verifications"]
        assert sum(n * (accepted + 1) for accepted, n in enumerate(histogram)) == summary["committed"]
        assert summary["accept_length"] == pytest.approx(summary["committed"] / summary["verifications"])
    trained, control = results["accept_length_simulated"], results["accept_length_random"]
    print(f"accept length {trained['accept_length']:.2f}, random {control['accept_length']:.2f}")
    assert control["accept_length"] < 1.1 and trained["interval"][0] > 1.5


def test_the_losses_add_up_and_the_verdict_has_its_evidence(smoke_chain):
    results = smoke_chain.read("diagnostics", "results.json")
    trained = results["accept_length_simulated"]
    assert 4 - sum(results["lost"].values()) == pytest.approx(trained["accept_length"])
    assert set(results["lost"]) == {"draft vocabulary", "position 1", "position 2", "position 3", "end of answer"}
    learned = results["learned"]
    assert learned["overfit"] > learned["trained"] > learned["shuffled"] >= 1
    assert results["verdict"] in ("too little data", "too little training")
    page = (smoke_chain.folder("diagnostics") / "tokens.html").read_text()
    assert "<script" not in page and "http" not in page
    corpus = heldout_answers(smoke_chain.folder("inference") / "corpus.parquet")
    assert all(html.escape(answer["id"]) in page for answer in corpus)


@pytest.fixture(scope="module")
def target():
    return resolve_target("glassllm/en")


def test_answers_and_speculation_equal_transformers_own_greedy_decoding(smoke_chain, target):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    answers = heldout_answers(smoke_chain.folder("inference") / "corpus.parquet")
    assert len(answers) == 16
    for answer in answers:
        prompt = torch.tensor([answer["prompt_ids"]])
        with torch.no_grad():
            whole = model.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=40, do_sample=False
            )  # fmt: skip
        assert answer["output_ids"] == whole[0, prompt.shape[1] :].tolist(), answer["id"]

    folder = smoke_chain.folder("training") / "draft"
    ends = end_token_ids(load_tokenizer(target), target)
    engine = EmbeddedEngine(target, "float32", read_draft_config(folder).aux_layers, end_ids=ends)
    requests = [Request(a["id"], a["prompt_ids"], len(a["output_ids"])) for a in answers]
    served = {done.id: done for done in engine.speculate(load_draft(folder, engine.embed_VH), requests, 3)}
    assert all(served[a["id"]].output_ids == a["output_ids"] for a in answers)
    # first token of each answer comes from the prefill, every other from a verification
    kept = np.concatenate([served[a["id"]].accepted for a in answers[:8]])
    told = smoke_chain.read("diagnostics", "results.json")["accept_length_served"]
    assert np.bincount(kept, minlength=4).tolist() == told["histogram"]
    assert int((kept + 1).sum()) == sum(len(a["output_ids"]) - 1 for a in answers[:8]) == told["committed"]


def test_the_exported_drafter_is_whole(smoke_chain, target):
    folder = smoke_chain.folder("training") / "draft"
    tensors = load_file(folder / "model.safetensors")
    H, W, V = 128, 200, 1024
    config = json.loads((folder / "config.json").read_text())
    assert (config["hidden_size"], config["draft_vocab_size"], config["vocab_size"]) == (H, W, V)
    assert tensors["fc.weight"].shape == (H, 3 * H) and tensors["lm_head.weight"].shape == (W, H)
    assert tensors["midlayer.self_attn.q_proj.weight"].shape[1] == 2 * H
    targets = torch.arange(W) + tensors["d2t"]
    assert tensors["t2d"].nonzero().flatten().tolist() == targets.tolist()
    embed = load_file(next(target.glob("*.safetensors")))["model.embed_tokens.weight"]
    draft = load_draft(folder, embed)
    state = draft.state_dict()
    for name in ("fc.weight", "midlayer.mlp.up_proj.weight", "lm_head.weight"):
        assert torch.equal(state[name], tensors[name].float())


def test_figures_are_pictures(smoke_chain):
    for stage, names in FIGURES.items():
        manifest = smoke_chain.read(stage, "manifest.json")
        found = {key for key, entry in manifest.items() if entry["kind"] == "figure"}
        assert found | (unmeasured := names & {"what_if", "what_if_1"}) == names
        if unmeasured:  # speeds of a busy machine give no cost model, and the notebook says so
            assert printed(smoke_chain.folder(stage) / "06_serving.ipynb").count("no cost model:") == len(names - found)
        for name in found:
            path = smoke_chain.folder(stage) / "figures" / f"{name}.png"
            assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
            pixels = matplotlib.image.imread(path)
            assert min(pixels.shape[:2]) > 200
            grey = pixels[..., :3].mean(axis=2)
            assert len(np.unique(grey.round(2))) > 10, name


def test_the_status_names_every_stage_and_headline(smoke_chain):
    text = (smoke_chain.folder("status") / "status.md").read_text()
    for number, stage in enumerate(STAGES):
        assert f"{number:02d}_{stage}" in text and smoke_chain.results[stage].run_id in text
        for line in smoke_chain.read(stage, "results.json")["headline"]:
            assert html.escape(line, quote=False).replace("|", "\\|") in text
    assert "## Running\n\nnothing" in text and "## Next\n\nnothing" in text


def test_a_changed_parameter_runs_training_and_what_is_below_it(smoke_chain):
    rows = plan("smoke", {**smoke_chain.overrides, "lr": 1e-3})
    runs = {row.stage.name: row.will_run for row in rows}
    below = {"training", "diagnostics", "serving", "scaling"}
    assert {name for name, will_run in runs.items() if will_run} == below | ALWAYS
    why = {row.stage.name: row.why for row in rows}
    assert why["training"] == "parameters changed: lr 0.003 -> 0.001"
    assert why["diagnostics"] == "training runs first" and why["extraction"] == "unchanged"


def test_plain_papermill_trains_the_same_drafter(smoke_chain, tmp_path):
    training, extraction = smoke_chain.results["training"], smoke_chain.results["extraction"]
    runs_dir = tmp_path / "runs"
    shutil.copytree(extraction.folder, runs_dir / extraction.run_id)
    command = [
        sys.executable, "-m", "papermill", "notebooks/04_training.ipynb", str(tmp_path / "out.ipynb"),
        "-f", "params/smoke/common.yaml", "-f", "params/smoke/training.yaml", "-p", "runs_dir", str(runs_dir),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=package_parent(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    plain = runs_dir / training.run_id  # the same id
    record = json.loads((plain / "run.json").read_text())
    assert (record["state"], record["driver"]) == ("ok", "kernel")
    for name in ("draft/model.safetensors", "draft/config.json", "draft/training.json"):
        assert sha256(plain / name) == sha256(training.folder / name), name


def test_a_second_run_of_the_chain_skips_what_is_unchanged(smoke_chain):
    again = {result.stage: result for result in run_chain("smoke", overrides=smoke_chain.overrides)}
    assert {name for name, result in again.items() if result.ran} == ALWAYS
    assert {name: result.state for name, result in again.items()} == dict.fromkeys(STAGES, "ok")
    assert {n: r.run_id for n, r in again.items()} == {n: r.run_id for n, r in smoke_chain.results.items()}
