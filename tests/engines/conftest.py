"""Tiny targets of all families, built once a session."""

import pytest
from transformers import AutoModelForCausalLM

from eagle3lab.engines.embedded import EmbeddedEngine
from tests.tiny import FAMILIES, save_tiny_target


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    return {family: save_tiny_target(tmp_path_factory.mktemp(family), family) for family in FAMILIES}


@pytest.fixture(scope="session", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="session")
def engine(folders, family):
    return EmbeddedEngine(folders[family])


@pytest.fixture(scope="session")
def reference(folders, family):
    """The same weights with transformers' own eager attention and cache."""
    return AutoModelForCausalLM.from_pretrained(folders[family], attn_implementation="eager").eval()


@pytest.fixture(scope="session")
def llama(folders):
    return EmbeddedEngine(folders["llama"])
