"""The fingerprint of a target: its weights, its tokenizer, and the template that it renders with."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3lab.data.fingerprint import target_fingerprint, weights_digest
from tests.data.conftest import CHATML, _make_tokenizer
from tests.tiny import save_tiny_target


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = save_tiny_target(tmp_path_factory.mktemp("target"))
    tokenizer = _make_tokenizer()
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    return folder


def changed(target, tmp_path, change):
    folder = tmp_path / "changed"
    shutil.copytree(target, folder)
    change(folder)
    one, other = target_fingerprint(target), target_fingerprint(folder)
    return {name for name in one if one[name] != other[name]}


def one_weight(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][3] += 0.5
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def test_the_same_target_has_the_same_fingerprint(target, tmp_path):
    assert changed(target, tmp_path, lambda folder: None) == set()
    assert changed(target, tmp_path / "b", lambda folder: (folder / "README.md").write_text("hello")) == set()


def test_another_template_in_its_own_file_is_another_template(target, tmp_path):
    assert (target / "chat_template.jinja").exists()  # not in tokenizer.json
    assert changed(
        target, tmp_path, lambda folder: (folder / "chat_template.jinja").write_text("Be kind. " + CHATML)
    ) == {"template"}


def test_a_template_counts_wherever_it_stands(target, tmp_path):
    def move(folder, text):
        (folder / "chat_template.jinja").unlink()
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": text}))

    assert changed(target, tmp_path / "a", lambda folder: move(folder, CHATML)) == set()
    assert changed(target, tmp_path / "b", lambda folder: move(folder, "Be kind. " + CHATML)) == {"template"}


def test_other_weights_or_sizes_are_another_target(target, tmp_path):
    assert changed(target, tmp_path / "a", one_weight) == {"target"}

    def eps(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"rms_norm_eps": 0.01}))

    assert changed(target, tmp_path / "b", eps) == {"target"}


def test_of_a_large_file_pieces_are_read_from_its_first_to_its_last_byte(tmp_path):
    """Training moves every weight; here a thousandth of them differs, in one stretch at the end."""
    (tmp_path / "config.json").write_text("{}")
    weights = torch.zeros(2_000_000)
    save_file({"w": weights}, tmp_path / "model.safetensors")
    before = weights_digest(tmp_path)
    weights[-2000:] = 1.0
    save_file({"w": weights}, tmp_path / "model.safetensors")
    assert weights_digest(tmp_path) != before
