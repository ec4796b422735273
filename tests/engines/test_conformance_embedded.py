"""The embedded engine on a real trained target."""

import pytest
from transformers import AutoModelForCausalLM

from eagle3lab.data.targets import resolve_target
from eagle3lab.engines.base import Request
from eagle3lab.engines.embedded import EmbeddedEngine
from tests.engines.conformance import Case, Conformance
from tests.engines.story import AUX_LAYERS, prompts, train_draft


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    folder = resolve_target("glassllm/en")
    engine = EmbeddedEngine(folder, aux_layers=AUX_LAYERS)

    def make(end_ids):
        return EmbeddedEngine(folder, aux_layers=AUX_LAYERS, end_ids=end_ids)

    return Case(
        make=make,
        make_speculating=make,
        capturing=engine,
        reference=AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval(),
        prompts=prompts(folder, 6),
        draft=train_draft(folder, tmp_path_factory.mktemp("draft") / "draft", prompts(folder, 3), 24, epochs=30),
        num_steps=3,
        positions=engine.target.max_context,
        aux_layers=AUX_LAYERS,
    )


class TestEmbedded(Conformance):
    def test_a_drafter_of_other_layers_is_refused(self, case):
        engine = EmbeddedEngine(case.capturing.target.folder, aux_layers=[0, 1, 2])
        with pytest.raises(ValueError, match=r"aux_layers \[1, 2, 3\].*\[0, 1, 2\]"):
            engine.speculate(case.draft, [Request("a", [3], 4)], 3)
