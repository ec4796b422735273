"""Another drafter than the default one, which the other tests here serve, on a real server: it reads the flags and
tensors as they were trained, or acceptance would differ from the embedded engine's, verification for verification."""

import pytest

from eagle3lab.draft.checkpoint import load_draft
from eagle3lab.engines.base import Request
from tests.draft.samples import pickle_tensors
from tests.engines.story import train_draft
from tests.engines.story_fixtures import ANSWER
from tests.sglang.conftest import TRAINED_PROMPTS

pytestmark = pytest.mark.sglang

OTHER = {
    "fc_norm": False, "norm_output": False,  # plain EAGLE-3, as before its version 3.1
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64,
    "hidden_size": 96, "intermediate_size": 200,  # the target's is 128: the drafter has an embedding of its own
}  # fmt: skip


def test_served_as_in_the_embedded_engine(story, story_engine, story_embedded, story_prompts, tmp_path):
    """All of it in one drafter, pickled as EAGLE's authors publish theirs: a server takes half a minute to start."""
    trained = story_prompts[:TRAINED_PROMPTS]
    folder = train_draft(story, tmp_path / "draft", trained, ANSWER, epochs=100, **OTHER)
    draft = load_draft(folder, story_embedded.embed_VH)
    requests = [Request(f"r{i}", ids, ANSWER - i % 7) for i, ids in enumerate(story_prompts[:12])]
    expected = {done.id: done for done in story_embedded.speculate(draft, requests, num_steps=3)}
    pickle_tensors(folder)
    served = {done.id: done for done in story_engine.speculate(folder, requests, num_steps=3, batch_size=6)}
    assert {key: done.output_ids for key, done in served.items()} == {
        k: done.output_ids for k, done in expected.items()
    }
    assert {key: done.accepted for key, done in served.items()} == {k: done.accepted for k, done in expected.items()}
    accepted = [a for done in served.values() for a in done.accepted]
    assert {0, 1, 2, 3} == set(accepted)  # every number of accepted drafts occurs, or this shows little
