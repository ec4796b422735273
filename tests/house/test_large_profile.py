"""The profile that docs/large.md offers to copy is one that plans as it stands there."""

import re
import shutil

import pytest
from repository import ROOT

from eagle3lab.workbench.cli import main
from eagle3lab.workbench.params import resolve_parameters

FILE = re.compile(r"```yaml\n# params/mine/(\w+\.yaml)(?::[^\n]*)?\n(.*?)```", re.DOTALL)


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A root that holds the shipped profiles and notebooks, and the profile of the page."""
    for folder in ("params", "notebooks"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    files = dict(FILE.findall((ROOT / "docs" / "large.md").read_text()))
    (tmp_path / "params" / "mine").mkdir()
    for name, text in files.items():
        (tmp_path / "params" / "mine" / name).write_text(text)
    monkeypatch.setenv("EAGLE3LAB_ROOT", str(tmp_path))
    return files


def test_it_plans_as_it_stands_on_the_page(copied, capsys):
    assert {*copied} == {"common.yaml", "data_prep.yaml", "extraction.yaml", "training.yaml", "plan.yaml"}
    assert main(["plan", "mine"]) == 0
    told = capsys.readouterr().out
    assert "40,000 prompts, 128 at a time, answers of at most 2,048 tokens" in told
    assert re.search(r"fp8 +32,776", told)  # a token: three states and the teacher's, 8192 bytes and a scale of 2 each
    assert "24,576 -> 8,192 by fc" in told  # three states of 8192 beside one another
    assert "--tp-size 8" in told and "no file or folder at /data/mine.jsonl" in told


def test_its_layers_are_those_of_its_depth(copied):
    layers, depth = resolve_parameters("extraction", "mine").values["aux_layers"], 80
    assert layers == [2, depth // 2, depth - 3]
    training = resolve_parameters("training", "mine").values
    assert (training["processes"], training["device"]) == (8, "cuda") and training["accumulate"] >= 8
