"""Servers for the whole session: each takes half a minute to start, so tests share them and leave them as they are."""

from dataclasses import replace

import pytest
from transformers import AutoModelForCausalLM

from eagle3lab.data.targets import resolve_target
from eagle3lab.engines.embedded import EmbeddedEngine
from eagle3lab.engines.sglang.engine import SGLangEngine
from eagle3lab.engines.sglang.server import PYTHON
from eagle3lab.engines.sglang.spec import ServerSpec
from tests.engines.story import AUX_LAYERS, prompts, train_draft

TRAINED_PROMPTS, ANSWER = 6, 40


@pytest.fixture(scope="session", autouse=True)
def server_environment():
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is missing: make it with `make sglang-env`, or leave these tests out: -m 'not sglang'")


@pytest.fixture(scope="session")
def story():
    """Folder of glassllm, a real trained Llama of 0.85 M weights with a context of 128."""
    return resolve_target("glassllm/en")


@pytest.fixture(scope="session")
def story_prompts(story):
    """24 prompts of 2 to 59 tokens. The drafter was trained on the answers to the first TRAINED_PROMPTS."""
    return prompts(story, 24)


@pytest.fixture(scope="session")
def story_reference(story):
    return AutoModelForCausalLM.from_pretrained(story, attn_implementation="eager").eval()


@pytest.fixture(scope="session")
def story_embedded(story):
    return EmbeddedEngine(story, aux_layers=AUX_LAYERS, end_ids=())


@pytest.fixture(scope="session")
def story_draft(story, story_prompts, tmp_path_factory):
    """A drafter of this project, overfit on the answers to a few prompts."""
    folder = tmp_path_factory.mktemp("story") / "draft"
    return train_draft(story, folder, story_prompts[:TRAINED_PROMPTS], ANSWER, epochs=100)


@pytest.fixture(scope="session")
def story_spec(story):
    """A float32 CPU server of glassllm, eight requests at a time."""
    limits = {"max_running_requests": 8, "max_total_tokens": 4096, "mem_fraction": 0.3}
    return ServerSpec(str(story), dtype="float32", device="cpu", **limits)


@pytest.fixture(scope="session")
def story_engine(story_spec, tmp_path_factory):
    """Starts its servers when they are first asked for: one that captures and generates, and one for each chain and
    tree. Those that speculate give the states of a prompt, too."""
    folder = tmp_path_factory.mktemp("engine")
    options = {"capture_folder": folder / "capture", "extra": ("--enable-return-hidden-states",)}
    spec = replace(story_spec, aux_layers=tuple(AUX_LAYERS), **options)
    with SGLangEngine(spec, end_ids=(), logs=folder, max_servers=3) as engine:
        yield engine
