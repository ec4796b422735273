"""A drafter's model card from run records, and the folder that a hub takes."""

import hashlib
import json
import re

import mistune
import pytest
from huggingface_hub import ModelCard

from eagle3lab.workbench.artefacts import ArtefactError, describe
from eagle3lab.workbench.card import Given, card, training_run, write_hub_folder
from eagle3lab.workbench.cli import main
from eagle3lab.workbench.lineage import UpstreamError

NASTY = "<script>x</script> | [a](http://b) *c* `d`"  # a set's name as nobody should choose it
SETTING = {"num_steps": 3, "topk": 1, "num_draft_tokens": 4, "temperature": 0.0}
WEIGHTS = b"the drafter's weights"


class Records:
    """Run folders written by hand, as finished notebooks leave them."""

    def __init__(self, root):
        self.runs, self.minute = root / "runs", 0

    def add(self, stage, upstream, parameters, results, files, profile="tiny", run_id=None):
        run_id, self.minute = run_id or f"{profile}-{stage}-1", self.minute + 1
        folder = self.runs / run_id
        folder.mkdir(parents=True)
        manifest = {}
        for key, (path, content) in files.items():
            for name, data in content.items() if isinstance(content, dict) else [("", content)]:
                (folder / path / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / path / name).write_bytes(data)
            manifest[key] = describe(folder, folder / path, "data")
        record = {
            "run_id": run_id, "stage": stage, "profile": profile, "state": "ok", "seconds": 3723.0,
            "started": f"2026-01-01T00:{self.minute:02d}:00.000+00:00",
            "parameters": {name: {"value": value, "origin": "test"} for name, value in parameters.items()},
            "upstream": {name: {"run_id": one, "manifest_sha256": ""} for name, one in upstream.items()},
            "git": {"commit": "c0ffee", "dirty": False}, "versions": {"python": "3.11.7", "torch": "2.13.0"},
            "device": {"cpu": "Some CPU", "cores": 2, "gpu": None},
        }  # fmt: skip
        for name, value in (("run.json", record), ("results.json", results), ("manifest.json", manifest)):
            (folder / name).write_text(json.dumps(value))
        return run_id


@pytest.fixture
def records(tmp_path, monkeypatch):
    """The chain up to the training."""
    monkeypatch.setenv("EAGLE3LAB_ROOT", str(tmp_path))
    made = Records(tmp_path)
    prep = made.add("data_prep", {}, {"sets": ["sharegpt", "own:messages:/data/secret", "h:messages:hub:o/d"]}, {},
                    {"prepared": ("prepared", {"x": b"x"})})  # fmt: skip
    quality = [{"set": f"{NASTY}, train", "answers": 1200, "tokens": 34567, "cut": 0.25}]
    asked = {"temperature": 0.0, "max_tokens": 96, "dtype": "bfloat16", "engine": "embedded"}
    answers = made.add("inference", {"data_prep": prep}, asked, {"quality": quality}, {"corpus": ("c", {"x": b"x"})})
    store = json.dumps({"fingerprint": {"target": "ab" * 32, "template": "cd" * 32}}).encode()
    states = made.add("extraction", {"inference": answers}, {}, {"coverage": {"heldout": 0.8874}},
                      {"features": ("features", {"store.json": store})})  # fmt: skip
    config = {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 576, "intermediate_size": 1536,
              "draft_vocab_size": 6144, "vocab_size": 49152, "torch_dtype": "bfloat16"}  # fmt: skip
    training = {"draft_config": {"aux_layers": [2, 15, 27]}, "recipe": {"ttt_steps": 5, "lr": 3e-3, "max_length": None},
                "rows": 510, "trained_length": 2048, "oldest_engines": {"sglang": "0.5.12"}}  # fmt: skip
    draft = {"config.json": json.dumps(config).encode(), "training.json": json.dumps(training).encode(),
             "model.safetensors": WEIGHTS}  # fmt: skip
    made.add("training", {"extraction": states}, {"target": "owner/Model-1B", "serve_with": "sglang==0.5.23"},
             {"weights": 8628480, "steps": 472, "slots_per_epoch": 84969}, {"draft": ("draft", draft)})  # fmt: skip
    return made


def accepted(engine, length, interval, prompts=36, set_name="all"):
    setting = {**SETTING, "engine": engine, "set": set_name}
    return {"setting": setting, "prompts": prompts, "accept_length": length, "interval": interval}


def diagnose(records, length, run_id=None, **parameters):
    trained = accepted("simulated, trained", length, [1.4495, 1.5807])
    checks = json.dumps({"accept": [trained, accepted("simulated, shuffled states", 1.13, None)]}).encode()
    files = {"checks": ("checks.json", checks)}
    return records.add("diagnostics", {"training": "tiny-training-1"}, parameters, {}, files, run_id=run_id)


def row(text, start):
    """The cells of the table row that begins with `start`."""
    [line] = [line for line in text.splitlines() if line.startswith(f"| {start} |")]
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_a_hub_reads_the_front_matter(records, tmp_path):
    run = training_run("tiny")
    folder = write_hub_folder(run, tmp_path / "hub", Given("apache-2.0"))
    found = ModelCard.load(folder / "README.md").data
    assert (found.base_model, found.license, found.library_name) == ("owner/Model-1B", "apache-2.0", "sglang")
    assert {"eagle3", "speculative-decoding"} <= set(found.tags) and found.pipeline_tag == "text-generation"
    own = ModelCard(card(run, Given("other", license_name="modified-mit"))).data
    assert (own.license, own.license_name) == ("other", "modified-mit")


def test_a_license_that_nobody_stated_is_left_out_and_asked_for(records):
    text = card(training_run("tiny"))
    assert "\nlicense" not in text.split("---")[1] and ModelCard(text).data.license is None
    assert "whoever publishes this drafter must state one" in text
    assert "inherits the terms of the target's license (see the model card of owner/Model-1B)" in text
    assert "The drafter's license is mit, as its maker states." in card(training_run("tiny"), Given("mit"))
    for wrong in ({"license": "other"}, {"license_name": "mine"}, {"license": "mit", "license_name": "mine"}):
        with pytest.raises(ValueError, match="--license other --license-name NAME"):
            Given(**wrong)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"README.md": "---\nlicense: llama3.2\n---\n# x"}, " (README.md of the target names llama3.2)"),
        ({"README.md": "no front matter", "LICENSE.txt": "x"}, " (its folder holds LICENSE.txt)"),
        ({"README.md": "---\n: [\n---\n"}, ""),
        ({"README.md": "---\nlicense: other\n---\n", "LICENSE": "x"},
         " (README.md of the target names other; its folder holds LICENSE)"),
    ],
)  # fmt: skip
def test_a_target_in_a_folder_tells_where_its_license_stands(records, tmp_path, files, told):
    folder = tmp_path / "models/Mine"
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_text(content)
    record = json.loads((records.runs / "tiny-training-1/run.json").read_text())
    record["parameters"]["target"]["value"] = str(folder)
    (records.runs / "tiny-training-1/run.json").write_text(json.dumps(record))
    assert f"inherits the terms of the target's license{told}.\n" in card(training_run("tiny"))


def test_the_folder_holds_the_drafter_as_it_was_exported_and_the_run_stays_as_it_was(records, tmp_path):
    before = sorted(path for path in records.runs.rglob("*") if path.name != "verified.json")
    folder = write_hub_folder(training_run("tiny-training-1"), tmp_path / "hub")
    names = ["README.md", "config.json", "model.safetensors", "training.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert sorted(path for path in records.runs.rglob("*") if path.name != "verified.json") == before
    with pytest.raises(UpstreamError, match="exists"):
        write_hub_folder(training_run("tiny"), folder)


def test_what_the_records_say_stands_in_the_card(records):
    text = card(training_run("tiny"))
    assert row(text, "sha256 of model.safetensors")[1] == hashlib.sha256(WEIGHTS).hexdigest()
    assert row(text, "draft vocabulary")[1] == "6,144 of 49,152 ids"
    assert row(text, "target layers it reads (indices of hidden_states)")[1] == "2, 15, 27"
    assert "abababababababab, cdcdcdcdcdcdcdcd" in text
    assert "510 rows, 84,969 tokens a pass, 472 optimizer steps, 1:02:03 on 2 cores of Some CPU." in text
    assert "at most 2,048 tokens" in text and "names 88.7% of held-out answer tokens" in text
    assert "Trained on greedy answers" in text and "sglang from 0.5.12 on" in text
    assert "commit c0ffee" in text and "tiny-inference-1" in text


def test_before_any_measurement_it_says_so_and_launches_the_trained_chain(records):
    text = card(training_run("tiny"))
    assert text.count("Not measured yet") == 2 and "run tiny --only diagnostics" in text
    assert "--speculative-algorithm EAGLE3" in text and "--speculative-num-steps 5" in text
    assert "--speculative-num-draft-tokens 6" in text and '"num_speculative_tokens": 5' in text


def test_numbers_are_those_of_the_newest_measurement_with_their_setting(records):
    diagnose(records, 1.3)
    diagnose(records, 1.5094, "tiny-diagnostics-2")
    bench = {"setting": "chain 1", "num_steps": 1, "topk": 1, "num_draft_tokens": 2, "concurrency": 1, "tok_s": 26.12,
             "speedup": 1.1959, "accept_length": 1.319, "break_even": 1.103, "differing": 0,
             "prompts": 4, "rounds": 2}  # fmt: skip
    plain = {**bench, "setting": "baseline", "tok_s": 21.84, "speedup": 1.0, "accept_length": None, "break_even": None}
    asked = {"engine": "embedded", "dtype": "float32", "max_tokens": 32}
    records.add("serving", {"training": "tiny-training-1"}, asked, {"rows": [plain, bench], "best": bench}, {})
    text = card(training_run("tiny"))
    assert row(text, "all") == ["all", "36", "simulated, trained", "1.51", "1.45 to 1.58", "3, 1, 4", "0"]
    assert row(text, "chain 1") == ["chain 1", "1", "26.1", "x1.20", "1.32", "1.10", "0"]
    assert row(text, "baseline")[2:5] == ["21.8", "", ""]
    assert "4 held-out prompts, at most 32 tokens each, 2 rounds, on 2 cores of Some CPU" in text
    assert "--speculative-num-steps 1 " in text and "--speculative-num-draft-tokens 2" in text
    busy = "not measurable at one stream: baseline rounds 5.1 to 16.3 tok/s: the machine was busy"
    results = json.loads((records.runs / "tiny-serving-1/results.json").read_text()) | {"advice": [busy]}
    (records.runs / "tiny-serving-1/results.json").write_text(json.dumps(results))
    text = card(training_run("tiny"))
    assert row(text, "chain 1")[5] == "not measurable" and row(text, "baseline")[5] == ""
    assert "Above its break-even" not in text and f"- 06_serving: {busy}." in text


def test_a_diagnosis_of_somebody_elses_drafter_is_not_this_ones(records):
    diagnose(records, 9.99, draft="/some/folder")
    assert "Not measured yet" in card(training_run("tiny")) and "9.99" not in card(training_run("tiny"))


def test_words_of_records_appear_letter_for_letter_and_do_nothing(records):
    body = card(training_run("tiny")).split("---\n", 2)[2]
    page = mistune.create_markdown(escape=False, plugins=["table"])(body)
    assert "<script" not in page and "<a " not in page and "<em>c" not in page
    shown = re.sub(r"<[^>]+>", "", page)
    assert mistune.util.unescape(shown).count(f"{NASTY}, train") == 1


def test_paths_of_the_machine_stay_out(records):
    record = json.loads((records.runs / "tiny-training-1/run.json").read_text())
    record["parameters"]["target"]["value"] = "/data/models/Mine"
    (records.runs / "tiny-training-1/run.json").write_text(json.dumps(record))
    lost = "2 of 9 rows lost to errors; first: own (rows.jsonl), line 4: not JSON; all: /data/runs/own/errors.jsonl"
    (records.runs / "tiny-data_prep-1/results.json").write_text(json.dumps({"lost_rows": lost}))
    text = card(training_run("tiny"))
    assert "- 01_data_prep: 2 of 9 rows lost to errors." in text
    assert "/data" not in text and "# EAGLE-3 drafter for Mine" in text and "base_model" not in text
    assert "h (o/d)" in text and "cannot say which public model" in text
    assert ModelCard(card(training_run("tiny"), Given(base_model="me/Mine"))).data.base_model == "me/Mine"


@pytest.mark.parametrize(
    ("target", "given", "named"),
    [
        ("/data/models/Mine", Given(), "Mine"),
        ("/data/models/Mine", Given(base_model="me/Mine"), "me/Mine"),
        ("owner/Model-1B", Given(), "owner/Model-1B"),
    ],
)
def test_the_folder_for_a_hub_names_the_target_and_not_where_it_lay(records, tmp_path, target, given, named):
    folder, draft = records.runs / "tiny-training-1", records.runs / "tiny-training-1/draft"
    record = json.loads((folder / "run.json").read_text())
    record["parameters"]["target"]["value"] = target
    (folder / "run.json").write_text(json.dumps(record))
    before = json.loads((draft / "training.json").read_text()) | {"target": target}
    (draft / "training.json").write_text(json.dumps(before))
    manifest = {"draft": describe(folder, draft, "data")}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    hub = write_hub_folder(training_run("tiny"), tmp_path / "hub", given)
    told = json.loads((hub / "training.json").read_text())
    assert told == {**before, "target": named, "target_fingerprint": "ab" * 32}
    assert all(b"/data" not in path.read_bytes() for path in hub.iterdir())
    assert json.loads((draft / "training.json").read_text()) == before  # the run's own record stays


def test_a_damaged_drafter_gets_no_card(records):
    (records.runs / "tiny-training-1/draft/model.safetensors").write_bytes(b"something else")
    with pytest.raises(ArtefactError, match="not the file"):
        card(training_run("tiny"))


def test_the_command_prints_writes_and_refuses(records, tmp_path, capsys):
    assert main(["card", "tiny"]) == 0
    assert "# EAGLE-3 drafter for Model-1B" in capsys.readouterr().out
    assert main(["card", "tiny-training-1", "--folder", str(tmp_path / "hub"), "--license", "mit"]) == 0
    assert "license: mit" in (tmp_path / "hub/README.md").read_text()
    assert main(["card", "nothing"]) == 2
    told = capsys.readouterr().err
    assert "'nothing' must be a profile with a finished training run in runs, or such a run's id" in told
    assert "there are: tiny (tiny-training-1)" in told
