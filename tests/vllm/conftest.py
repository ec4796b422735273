"""Servers for the whole session: each takes half a minute to start, so tests share them and leave them as they are."""

import platform

import pytest

from eagle3lab.engines.vllm.engine import VllmEngine
from eagle3lab.engines.vllm.server import PYTHON
from eagle3lab.engines.vllm.spec import VllmSpec
from tests.engines.story import AUX_LAYERS, prompts, train_draft
from tests.engines.story_fixtures import *  # noqa: F403 (the fixtures)
from tests.engines.story_fixtures import ANSWER, PROMPTS

TRAINED_PROMPTS = 40  # beside those that are served


@pytest.fixture(scope="session", autouse=True)
def server_environment():
    if platform.machine() != "x86_64":
        pytest.skip(f"there is no vLLM for CPUs of {platform.machine()} in the lock: only for x86_64")
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is missing: make it with `make vllm-env`, or leave these tests out: -m 'not vllm'")


@pytest.fixture(scope="session")
def story_draft(story, tmp_path_factory):
    """A drafter of this project with a pruned vocabulary, trained on other prompts and not until it knows them."""
    rows = prompts(story, PROMPTS + TRAINED_PROMPTS)[PROMPTS:]
    return train_draft(story, tmp_path_factory.mktemp("story") / "draft", rows, ANSWER, epochs=12, pruned=True)


@pytest.fixture(scope="session")
def story_spec(story):
    """A float32 CPU server of glassllm with little memory, eight requests at a time."""
    limits = {"max_running_requests": 8, "max_batch_tokens": 256, "kv_cache_mib": 64}
    return VllmSpec(str(story), dtype="float32", device="cpu", **limits)


@pytest.fixture(scope="session")
def vllm_engine(story_spec, tmp_path_factory):
    """Starts its servers when they are first asked for: one that answers, one that captures, one for the chain."""
    with VllmEngine(story_spec, (), AUX_LAYERS, logs=tmp_path_factory.mktemp("engine"), max_servers=3) as engine:
        yield engine
