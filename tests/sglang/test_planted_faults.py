"""Faults planted in a trained drafter behind the real server: the first of the ranked causes is the fault.

The kinds are those of `benchmarks.plants`. Four need no server of their own here, and are made where they are made in
practice: a drafter is swapped in that was trained otherwise than the running server serves it.
"""

import pytest
import torch

from benchmarks.planted import AGAIN, GOOD, Subject, line, study
from benchmarks.plants import Fault, faults
from eagle3lab.draft.checkpoint import export_draft, load_draft
from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.start import new_draft
from eagle3lab.draft.target_weights import read_target_weights
from eagle3lab.draft.train import Trainer
from eagle3lab.draft.vocab import VocabMap
from eagle3lab.engines.embedded import EmbeddedEngine
from tests.engines.story import greedy_answers
from tests.engines.story_fixtures import ANSWER
from tests.sglang.conftest import TRAINED_PROMPTS

# three servers are started: two minutes on a quiet machine, and many more on a busy one
pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1800)]
STEPS = 3
LAYERS, EARLIER = [2, 3], [1, 2]  # of four: the layers on both sides of the earlier ones are there

TRAINED_OTHERWISE = {
    "layers off by one": Fault("swapped", "layers", "one layer later"),
    "RoPE theta": Fault("swapped", "rope", "theta 10,000 instead of 500,000"),
    "norm_output": Fault("swapped", "norm", "norm_output read as True"),
    "position off by one": Fault("swapped", "position", "states one token late"),
}


@pytest.fixture(scope="module")
def answers(story, story_prompts):
    return greedy_answers(EmbeddedEngine(story, end_ids=()), story_prompts, ANSWER)


@pytest.fixture(scope="module")
def trained(story, answers, tmp_path_factory):
    """layers, sizes -> a drafter that knows nine of ten ids of its training text, so that it has a d2t, and norms far
    from one. start: a drafter that is trained on, which takes fewer epochs. early: on the states of the token after."""
    weights = read_target_weights(story)

    def train(layers, start=None, early=False, **sizes) -> Subject:
        engine, folder = EmbeddedEngine(story, aux_layers=layers, end_ids=()), tmp_path_factory.mktemp("trained")
        subject = Subject(engine, folder / "draft", answers, STEPS, early)
        known = {row.id: row for row in subject.rows if int(row.id[1:]) < 2 * TRAINED_PROMPTS}
        seen = torch.cat([row.input_ids_T for row in known.values()]).unique()
        vocab = VocabMap(seen[torch.arange(len(seen)) % 10 != 4], len(weights.head_VH))
        draft = new_draft(story, layers, vocab, weights, seed=0, **sizes)
        with torch.no_grad():
            draft.midlayer.hidden_norm.weight.copy_(torch.linspace(0.3, 3.0, draft.config.hidden_size))
        if start is not None:
            draft.load_state_dict(load_draft(start.draft, engine.embed_VH).state_dict())
        epochs = 60 if start is None else 20
        recipe = Recipe(ttt_steps=STEPS, epochs=epochs, batch_tokens=512, compute_dtype="float32")
        lengths = {key: len(row.input_ids_T) for key, row in known.items()}
        trainer = Trainer(draft, lengths, known.__getitem__, weights.head_VH, recipe, folder / "state")
        for _ in trainer.run(checkpoint_every=10**6, log_every=10**6):
            pass
        export_draft(draft, subject.draft, {"trained_length": 128}, dtype=torch.float32)
        return subject

    return train


@pytest.fixture(scope="module")
def good(trained):
    return trained(LAYERS)


@pytest.fixture(scope="module")
def planted(good):
    """Ten kinds: the benchmark has one more, d2t missing, for which a server more would have to start."""
    return {kind: fault for kind, fault in (faults(good.draft) | TRAINED_OTHERWISE).items() if kind != "d2t missing"}


@pytest.fixture(scope="module")
def ranked(story_spec, trained, good, planted, tmp_path_factory):
    """kind -> the comparison; GOOD and AGAIN too."""
    others = {
        "layers off by one": trained(EARLIER, good),
        "RoPE theta": trained(LAYERS, good, rope_theta=500000.0),
        "norm_output": trained(LAYERS, good, norm_output=False),
        "position off by one": trained(LAYERS, good, early=True),
    }
    return dict(study(story_spec, good, planted, tmp_path_factory.mktemp("faults"), others))


def test_the_good_drafter_is_served_as_simulated_before_and_after_the_swaps(ranked):
    assert ranked[GOOD].equal and ranked[AGAIN].equal, (str(ranked[GOOD]), str(ranked[AGAIN]))
    assert ranked[GOOD].verifications > 200


def test_every_planted_fault_changes_what_is_accepted(ranked, planted):
    assert {kind for kind in planted if ranked[kind].equal} == set()


def test_the_first_ranked_cause_is_the_planted_one(ranked, planted):
    wrong = [line(kind, fault, ranked[kind]) for kind, fault in planted.items() if not fault.ranks_first(ranked[kind])]
    assert len(planted) == 10 and len(wrong) <= 2, wrong
