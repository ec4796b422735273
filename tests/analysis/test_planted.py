"""The planted faults without a server: what each does to a folder, and which of them need a server of their own."""

import json
import shutil
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from benchmarks import planted
from benchmarks.planted import AGAIN, GOOD, Subject, line, study
from benchmarks.plants import NORM, Fault, faults
from eagle3lab.analysis.serve_side import ServeSide
from eagle3lab.analysis.suspects import REMEDIES
from eagle3lab.draft.checkpoint import export_draft
from eagle3lab.draft.model import Eagle3Draft
from eagle3lab.engines.sglang.spec import ServerSpec
from tests.analysis.overfit import KNOWN_W, STEPS
from tests.tiny import VOCAB

W = len(KNOWN_W)


@pytest.fixture(scope="module")
def good(overfit, tmp_path_factory):
    return export_draft(overfit.draft, tmp_path_factory.mktemp("good") / "draft", {}, dtype=torch.float32)


@pytest.fixture
def plant(good, tmp_path):
    """kind -> (config, tensors) of the good folder, wrong in that way."""

    def planted_folder(kind):
        folder = shutil.copytree(good, tmp_path / "draft")
        faults(good)[kind].plant(folder)
        return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")

    return planted_folder


def test_a_server_would_read_other_target_ids_from_an_absolute_d2t(plant):
    d2t_W = plant("d2t absolute")[1]["d2t"]
    served_W = d2t_W + torch.arange(W)  # as SGLang reads it
    assert torch.equal(served_W, (KNOWN_W + torch.arange(W)).clamp(max=VOCAB - 1))


def test_nothing_but_the_map_is_missing_without_d2t(plant, good):
    config, tensors = json.loads((good / "config.json").read_text()), load_file(good / "model.safetensors")
    found, same = plant("d2t missing")
    assert found == config and set(tensors) - set(same) == {"d2t"}


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("layers off by one", {"eagle_config"}),
        ("RoPE theta", {"rope_theta"}),
        ("norm_output", {"norm_output"}),
        ("lm_head permuted", {"lm_head.weight"}),
        ("hidden_norm missing", {NORM}),
        ("flag EAGLE", set()),
    ],
)
def test_a_plant_changes_one_thing(plant, good, kind, changed):
    config, tensors = json.loads((good / "config.json").read_text()), load_file(good / "model.safetensors")
    found, now = plant(kind)
    assert now.keys() == tensors.keys()
    other = {name for name in tensors if not torch.equal(now[name], tensors[name])}
    assert other | {name for name in found if found[name] != config.get(name)} == changed


def test_an_unread_layer_is_random_with_norms_of_one_and_the_rest_is_there(plant, good):
    tensors, now = load_file(good / "model.safetensors"), plant("layer named for another engine")[1]
    for name, tensor in now.items():
        assert torch.equal(tensor, tensors[name]) != name.startswith("midlayer."), name
        assert tensor.dim() != 1 or not name.startswith("midlayer.") or bool((tensor == 1).all())


def test_a_drafter_of_the_whole_vocabulary_is_refused(overfit, tmp_path):
    config = replace(overfit.draft.config, draft_vocab_size=VOCAB)
    whole = Eagle3Draft(config, overfit.engine.embed_VH.detach(), torch.arange(VOCAB))
    folder = export_draft(whole, tmp_path / "draft", {}, dtype=torch.float32)
    with pytest.raises(ValueError, match="drafts the whole vocabulary: faults of d2t need"):
        faults(folder)


def test_the_study_starts_a_server_only_where_it_must(overfit, good, tmp_path, monkeypatch):
    """The embedded engine serves in the servers' place, so that nothing differs but what is sent, or simulated here."""
    events = []

    @contextmanager
    def started(spec, log):
        events.append(f"start {spec.algorithm}")
        yield "http://s"

    def asked(url, requests, num_steps, folder):
        events.append("ask")
        return ServeSide(list(overfit.engine.speculate(overfit.draft, requests, num_steps)))

    monkeypatch.setattr(planted, "started", started)
    monkeypatch.setattr(planted, "ask_server", asked)
    monkeypatch.setattr(planted, "read_weights", lambda url, folder: events.append("read"))
    subject = Subject(overfit.engine, good, overfit.answers, STEPS)
    kinds = faults(good) | {"norm_output": Fault("swapped", "norm", "norm_output")}
    assert {fault.cause for fault in kinds.values()} <= set(REMEDIES)
    found = dict(study(ServerSpec("t"), subject, kinds, tmp_path, {"norm_output": subject}))
    assert set(found) == {GOOD, AGAIN, *kinds} and len(kinds) == 11
    assert events[:9] == ["start None", "ask", "ask", *["read", "ask"] * 3] and events[9:13] == ["read", "ask"] * 2
    assert events[13:] == ["start EAGLE", "ask", *["start None", "ask"] * 4]
    assert found[GOOD].equal and found["RoPE theta"].equal
    assert all(kinds[kind].ranks_first(found[kind]) for kind in ("other template", "position off by one"))
    assert not kinds["RoPE theta"].ranks_first(found["RoPE theta"])
    assert line("other template", kinds["other template"], found["other template"]).endswith("| right |")
    assert line("RoPE theta", kinds["RoPE theta"], found["RoPE theta"]).endswith("| - | WRONG |")
    assert line(GOOD, None, found[GOOD]).startswith("| nothing | 0 of ")
