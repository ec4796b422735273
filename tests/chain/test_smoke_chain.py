"""What nine notebooks on a small real model leave behind, checked with values computed apart from them."""

import hashlib
import html
import json
import math
import shutil
import subprocess
import sys
from collections import Counter

import matplotlib.image
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

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
    trained = {row["id"] for row in corpus if row["split"] == "train"}
    assert smoke_chain.read("training", "results.json")["rows"] == len(trained) == 60


def test_simulated_equals_served_and_the_trained_drafter_beats_the_random_one(smoke_chain):
    results = smoke_chain.read("diagnostics", "results.json")
    assert results["cycles_differing"] == 0 and results["lossless"] == "8/8"
    report = smoke_chain.read("diagnostics", "checks.json")
    assert [check["check"] for check in report["checks"] if not check["ok"]] == [] and len(report["checks"]) == 7
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


def as_speculators_writes_it(folder, out):
    """The drafter's folder with the names and the config of another project, and nothing that only ours has."""
    out.mkdir()
    tensors = {name.replace("midlayer", "layers.0"): t for name, t in load_file(folder / "model.safetensors").items()}
    save_file(tensors, out / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
             "num_hidden_layers")  # fmt: skip
    theirs = {
        "architectures": ["Eagle3Speculator"],
        "transformer_layer_config": {name: config[name] for name in sizes},
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
        "draft_vocab_size": config["draft_vocab_size"],
    }
    (out / "config.json").write_text(json.dumps(theirs))
    return out


def test_anybodys_drafter_and_corpus_stand_in_for_the_runs(smoke_chain, tmp_path):
    folder = as_speculators_writes_it(smoke_chain.folder("training") / "draft", tmp_path / "theirs")
    overrides = {
        "runs_dir": str(tmp_path / "runs"), "training_run": "none", "inference_run": "none", "draft": str(folder),
        "corpus": str(smoke_chain.folder("inference") / "corpus.parquet"), "heart_answers": 0,
        "scaling_run": smoke_chain.folder("scaling").name,
    }  # fmt: skip
    shutil.copytree(smoke_chain.folder("scaling"), tmp_path / "runs" / smoke_chain.folder("scaling").name)
    (result,) = run_chain("smoke", stages=["diagnostics"], overrides=overrides)
    record = json.loads((result.folder / "run.json").read_text())
    assert (record["state"], record["upstream"]) == ("ok", {}), record["error"]
    found = json.loads((result.folder / "results.json").read_text())
    own = smoke_chain.read("diagnostics", "results.json")
    for name in ("accept_length_simulated", "accept_length_served", "cycles_differing", "lossless", "lost"):
        assert found[name] == own[name], name
    assert found["learned"] == {"overfit": None, "shuffled": None, "trained": None}
    slope, low, high = json.loads((smoke_chain.folder("scaling") / "curve.json").read_text())["slope"]
    shown = "".join(
        str(cell.get("outputs", ""))
        for cell in json.loads((result.folder / "05_diagnostics.ipynb").read_text())["cells"]
    )
    assert f"{slope:+.2f} [{low:+.2f}, {high:+.2f}] accept length by ten times the data" in shown


def test_every_cell_of_the_grid_was_measured_and_sampled_answers_are_distributed_alike(smoke_chain):
    results = smoke_chain.read("serving", "results.json")
    rows = [one["row"] for one in results["grid"]]
    assert {one["reason"] for one in results["grid"]} == {""}
    settings = [(row["temperature"], row["num_steps"], row["differing"]) for row in rows]
    assert settings == [(0.0, 1, 0), (0.0, 3, 0), (0.7, 1, None), (0.7, 3, None)]
    for one in results["grid"]:
        row, histogram = one["row"], one["histogram"]
        committed = sum(count * (drafts + 1) for drafts, count in enumerate(histogram))
        assert row["accept_length"] == pytest.approx(committed / sum(histogram))
        assert 0 < row["first_s"][0] < row["request_s"][0] and row["errors"] == 0
    sampled = results["sampled"]
    assert sampled["answers"] == 100 and sampled["groups"] > 1 and sampled["p"] > 0.001


def test_the_benchmark_asks_second_turns_and_says_what_its_numbers_are_of(smoke_chain):
    results = smoke_chain.read("serving", "results.json")
    benched = smoke_chain.read("serving", "benchmark.json")
    firsts = [line["id"] for line in smoke_chain.lines("serving", "turns.jsonl")[1:]]
    asked = {run["id"] for run in benched["runs"]}
    seconds = {name for name in asked if name.endswith("-turn2")}
    assert len(firsts) == 2 and set(firsts) <= asked and {f"{firsts[0]}-turn2"} <= seconds
    assert seconds <= {f"{name}-turn2" for name in firsts} and len(asked) == 4 + len(seconds)
    too_long = [name for name in firsts if f"{name}-turn2" not in seconds]
    said = f"{len(seconds)} second turns" + (f", {len(too_long)} too long for the context" if too_long else "")
    assert said in printed(smoke_chain.folder("serving") / "06_serving.ipynb")
    drafter = smoke_chain.results["training"].run_id
    assert f"target glassllm/en, drafter {drafter}" in results["setting"]
    assert "prompts of sharegpt, mt_bench;" in results["setting"]
    assert (results["failed"], [row["errors"] for row in results["rows"]]) == ({}, [0, 0, 0])
    assert results["rows"] == benched["rows"][:3]
    lines = smoke_chain.lines("serving", "bench.jsonl")
    assert [(line["round"], len(line["runs"])) for line in lines[1:]] == [(0, 3)] * len(asked)


def test_the_curve_has_a_point_for_every_training(smoke_chain):
    points = smoke_chain.read("scaling", "results.json")["points"]
    assert [(one["amount"], one["rows"], one["seed"]) for one in points] == [(60, 60, 0), (15, 15, 0), (30, 30, 0)]
    assert points[0]["source"] == smoke_chain.results["training"].run_id
    assert {one["source"] for one in points[1:]} == {smoke_chain.results["scaling"].run_id}
    for one in points:
        assert set(one["by_set"]) == {"sharegpt", "mt_bench"} and 1.0 <= one["accept_length"] <= 4.0


def test_a_wanted_accept_length_is_answered_with_a_range_or_with_why_there_is_none(smoke_chain):
    results = smoke_chain.read("scaling", "results.json")
    shown = printed(smoke_chain.folder("scaling") / "07_scaling.ipynb")
    assert [one["target"] for one in results["wanted"]] == [1.1, 1.9]
    for one in results["wanted"]:
        assert (one["amount"] is None) == bool(one["reason"])
        assert one["amount"] is None or one["low"] <= one["amount"] <= (one["high"] or math.inf)
        assert f"wanted, training rows: accept length {one['target']:.2f}" in shown
    assert smoke_chain.read("scaling", "curve.json")["wanted"] == results["wanted"]


def test_a_finished_study_and_a_finished_training_are_points_of_another_study(smoke_chain, tmp_path):
    runs_dir = shutil.copytree(smoke_chain.runs_dir, tmp_path / "runs")
    training, scaling = (smoke_chain.results[stage].run_id for stage in ("training", "scaling"))
    overrides = {"runs_dir": str(runs_dir), "collect_runs": [training, scaling], "amounts": [], "num_steps": 2}
    (result,) = run_chain("smoke", stages=["scaling"], overrides=overrides)
    record = json.loads((result.folder / "run.json").read_text())
    assert record["state"] == "ok" and result.run_id != scaling, record["error"]
    first = smoke_chain.read("scaling", "results.json")["points"]
    found = json.loads((result.folder / "results.json").read_text())
    told = ("amount", "rows", "slots", "seed", "source")
    assert [[one[name] for name in told] for one in found["points"]] == [[one[name] for name in told] for one in first]
    assert not list(result.folder.glob("trainings/*"))  # nothing was trained
    lengths = [one["accept_length"] for one in found["points"]]
    assert max(lengths) == lengths[0] > 1.3 and max(lengths) <= 3.0  # all rows are better than some of them
    assert "simulated, chain of 2, 3 drafters" in found["setting"]  # a parameter wins over the best of 06
    assert found["break_even"] is None and "served no chain of 2 (add it" in found["needed"]


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
