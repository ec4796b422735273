"""Fixtures of the tests on real servers: one real trained target, what to ask it, and who is right about it."""

import pytest
from transformers import AutoModelForCausalLM

from eagle3lab.data.targets import resolve_target
from eagle3lab.engines.embedded import EmbeddedEngine
from tests.engines.story import AUX_LAYERS, prompts

PROMPTS, ANSWER = 24, 40  # prompts to serve, tokens of an answer


@pytest.fixture(scope="session")
def story():
    """Folder of glassllm, a real trained Llama of 0.85 M weights with a context of 128."""
    return resolve_target("glassllm/en")


@pytest.fixture(scope="session")
def story_prompts(story):
    """Prompts of 2 to 59 tokens."""
    return prompts(story, PROMPTS)


@pytest.fixture(scope="session")
def story_reference(story):
    return AutoModelForCausalLM.from_pretrained(story, attn_implementation="eager").eval()


@pytest.fixture(scope="session")
def story_embedded(story):
    return EmbeddedEngine(story, aux_layers=AUX_LAYERS, end_ids=())
