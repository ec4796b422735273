"""The SGLang engine on real servers: what it started itself, and the same servers by their address."""

import pytest

from eagle3lab.engines.base import Request
from eagle3lab.engines.sglang.engine import SGLangEngine, max_positions
from eagle3lab.engines.sglang.pool import Speculation
from tests.engines.conformance import Case, Conformance
from tests.engines.story import AUX_LAYERS

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def case(story_engine, story_prompts, story_reference, story_draft):
    servers = story_engine.servers
    plain, _ = servers.capturing()
    chain = servers.speculating(Speculation(str(story_draft), num_steps=3))
    return Case(
        make=lambda end_ids: SGLangEngine(plain.url, end_ids),
        make_speculating=lambda end_ids: SGLangEngine(chain.url, end_ids),
        capturing=story_engine,
        reference=story_reference,
        prompts=story_prompts[:6],
        draft=story_draft,
        num_steps=3,
        positions=max_positions(plain.info(), story_engine.facts.context),
        aux_layers=AUX_LAYERS,
    )


class TestSGLang(Conformance):
    def test_sampled_speculation_on_a_cpu_is_refused(self, case):
        with pytest.raises(ValueError, match="'warm'.*temperature=0.5.*verifies drafts greedily"):
            list(case.make_speculating(()).speculate(case.draft, [Request("warm", [3], 4, temperature=0.5)], 3))
