"""Servers for the whole session: each takes half a minute to start, so tests share them and leave them as they are."""

from dataclasses import replace

import pytest

from eagle3lab.engines.sglang.engine import SGLangEngine
from eagle3lab.engines.sglang.server import PYTHON, SGLangServer
from eagle3lab.engines.sglang.spec import ServerSpec
from tests.engines.story import AUX_LAYERS, train_draft
from tests.engines.story_fixtures import *  # noqa: F403 (the fixtures)
from tests.engines.story_fixtures import ANSWER

TRAINED_PROMPTS = 6  # the first of those that are served


@pytest.fixture(scope="session", autouse=True)
def server_environment():
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is missing: make it with `make sglang-env`, or leave these tests out: -m 'not sglang'")


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


@pytest.fixture(scope="session")
def wrong_flag_server(story_spec, story_draft, tmp_path_factory):
    """The same drafter served with --speculative-algorithm EAGLE, in spite of the guards."""
    spec = replace(story_spec, draft=str(story_draft), algorithm="EAGLE")
    server = SGLangServer(spec, log=tmp_path_factory.mktemp("eagle") / "server.log", unguarded=True)
    with pytest.warns(UserWarning, match="use --speculative-algorithm EAGLE3"):
        server.start()
    yield server
    server.stop()
