"""A target whose network is code in its own folder runs in this process where that is trusted, and only there."""

import json

import pytest
import torch

from eagle3lab.engines.choice import EngineChoice
from tests.tiny import save_tiny_target

CODE = """
from transformers import LlamaConfig, LlamaForCausalLM


class OwnConfig(LlamaConfig):
    model_type = "own_kind"


class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def own(tmp_path):
    folder = save_tiny_target(tmp_path / "own")
    (folder / "modeling_own.py").write_text(CODE)
    config = json.loads((folder / "config.json").read_text())
    names = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "own_kind", "auto_map": names}))
    return folder


def states(folder, trusted):
    choice = EngineChoice("embedded", folder, "float32", frozenset({1}), trust_remote_code=trusted)
    (found,) = choice.open([1, 3, 5]).capture([("row", [3, 9, 27, 17, 51])])
    return found.aux_TAH


def test_its_states_are_those_of_the_same_network_known_to_transformers(own, tmp_path):
    known = save_tiny_target(tmp_path / "known")
    assert torch.equal(states(own, True), states(known, False))


def test_its_code_is_not_run_unless_trusted(own):
    with pytest.raises(ValueError, match="trust_remote_code"):
        states(own, False)
