"""A published drafter and its target by hub names, and a corpus file, in the place of the runs of 04 and 02."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from eagle3lab.data.targets import resolve_target
from eagle3lab.workbench.runner import run_chain
from tests.hub import only_hub

pytestmark = pytest.mark.notebooks


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
        "fc_norm": config["fc_norm"],
        "norm_output": config["norm_output"],
    }
    (out / "config.json").write_text(json.dumps(theirs))
    return out


@pytest.fixture
def hub(smoke_chain, tmp_path, monkeypatch):
    """A hub that has the smoke chain's drafter, as another project writes it, and its target."""
    theirs = as_speculators_writes_it(smoke_chain.folder("training") / "draft", tmp_path / "theirs")
    repos = {"someone/EAGLE3-tiny": theirs, "someone/tiny": resolve_target("glassllm/en")}
    with only_hub(repos, monkeypatch, tmp_path / "home") as hub:
        yield hub


def test_anybodys_drafter_and_corpus_stand_in_for_the_runs(smoke_chain, hub, tmp_path):
    overrides = {
        "runs_dir": str(tmp_path / "runs"), "training_run": "none", "inference_run": "none",
        "draft": "someone/EAGLE3-tiny", "target": "someone/tiny",
        "corpus": str(smoke_chain.folder("inference") / "corpus.parquet"), "heart_answers": 0,
        "scaling_run": smoke_chain.folder("scaling").name,
    }  # fmt: skip
    shutil.copytree(smoke_chain.folder("scaling"), tmp_path / "runs" / smoke_chain.folder("scaling").name)
    (result,) = run_chain("smoke", stages=["diagnostics"], overrides=overrides)
    record = json.loads((result.folder / "run.json").read_text())
    assert (record["state"], record["upstream"]) == ("ok", {}), record["error"]
    assert any("someone/EAGLE3-tiny/resolve" in path and "model.safetensors" in path for path in hub.requests)
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
