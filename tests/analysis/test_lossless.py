"""Sampled answers with and without speculation: silence where they are distributed alike, an alarm where not."""

import numpy as np
import pytest
import torch
from scipy import stats

from eagle3lab.analysis.lossless import LEVEL, same_distribution, sampled_alike
from eagle3lab.draft.model import DraftConfig, Eagle3Draft
from eagle3lab.engines.base import Request
from eagle3lab.engines.embedded import EmbeddedEngine
from tests.tiny import save_tiny_target

PROMPT, TEMPERATURE = [5, 9, 20], 0.5


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """A tiny random Llama with 64 tokens."""
    return EmbeddedEngine(save_tiny_target(tmp_path_factory.mktemp("tiny")), end_ids=())


@pytest.fixture(scope="module")
def draft(engine):
    """A drafter that always guesses among the 40 ids it knows; most guesses are wrong, some are right."""
    config = DraftConfig.for_target(engine.config, engine.aux_layers, draft_vocab_size=40)
    return Eagle3Draft(config, engine.embed_VH.detach(), torch.arange(40))


def test_the_statistic_is_the_textbooks():
    plain, other = ["a"] * 40 + ["b"] * 60, ["a"] * 60 + ["b"] * 40
    found = same_distribution(plain, other)
    expected = stats.chi2_contingency([[40, 60], [60, 40]], correction=False)
    assert (found.chi_square, found.p) == pytest.approx((expected.statistic, expected.pvalue))
    assert (found.answers, found.groups, found.different) == (100, 2, False)
    assert same_distribution(["a"] * 100, ["b"] * 100).different


def test_rare_answers_are_one_group():
    plain, other = ["a"] * 80 + [f"p{i}" for i in range(20)], ["a"] * 80 + [f"s{i}" for i in range(20)]
    found = same_distribution(plain, other)
    assert (found.groups, found.chi_square, found.different) == (2, 0.0, False)
    nothing = same_distribution(["a"] * 5, ["a"] * 5)
    assert (nothing.groups, nothing.p) == (1, 1.0) and "nothing can be told from 5 answers" in str(nothing)
    with pytest.raises(ValueError, match="as many of each"):
        same_distribution(["a"] * 5, ["a"] * 6)


def test_false_alarms_come_as_often_as_the_level_says():
    """2,000 pairs of samples of one distribution: at 5 %, 100 alarms are expected; fewer than 56 or more than 144 come
    with a chance below 1 in 100,000."""
    random = np.random.default_rng(0)
    shares = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
    pairs = (random.choice(5, size=(2, 300), p=shares).tolist() for _ in range(2000))
    alarms = sum(same_distribution(plain, other).p < 0.05 for plain, other in pairs)
    assert 56 <= alarms <= 144


@pytest.mark.slow
def test_speculation_at_a_temperature_keeps_the_distribution(engine, draft):
    """Three tokens after the first: 400 answers of each side, other random numbers on each; seeds are fixed."""
    found = sampled_alike(engine, draft, PROMPT, TEMPERATURE, 400, num_steps=2)
    assert found.groups >= 5 and found.p > LEVEL
    accepted = [
        drafts
        for seed in range(100)
        for done in engine.speculate(draft, [Request("a", PROMPT, 12, TEMPERATURE, seed)], 2)
        for drafts in done.accepted
    ]
    assert {0, 1} <= set(accepted)  # both a right and a wrong draft were verified


@pytest.mark.slow
def test_the_true_distribution_is_met(engine, draft):
    """The second token's frequencies over 800 answers against the softmax of the target's own logits."""
    requests = [Request(f"r{i}", PROMPT, 2, TEMPERATURE, seed=i) for i in range(800)]
    drawn = [done.output_ids for done in engine.speculate(draft, requests, 2)]
    model = engine.target.model
    with torch.no_grad():
        first_V = (model(torch.tensor([PROMPT])).logits[0, -1].double() / TEMPERATURE).softmax(-1)
        extended = torch.tensor([[*PROMPT, token] for token in range(len(first_V))])
        second_VV = (model(extended).logits[:, -1].double() / TEMPERATURE).softmax(-1)
    expected_V = 800 * (first_V @ second_VV)
    counts_V = torch.bincount(torch.tensor([ids[1] for ids in drawn]), minlength=len(expected_V)).double()
    common = expected_V >= 5
    expected = [*expected_V[common].tolist(), float(expected_V[~common].sum())]
    counts = [*counts_V[common].tolist(), float(counts_V[~common].sum())]
    assert len(counts) >= 5
    assert stats.chisquare(counts, expected).pvalue > LEVEL


def test_greedy_verification_at_a_temperature_is_caught(engine, draft):
    """What a server on a CPU does: it verifies greedily whatever the temperature."""

    class Greedy:
        generate = engine.generate

        def speculate(self, draft, requests, num_steps):
            cold = [Request(r.id, r.input_ids, r.max_tokens) for r in requests]
            return engine.speculate(draft, cold, num_steps)

    found = sampled_alike(Greedy(), draft, PROMPT, TEMPERATURE, 80, num_steps=2)
    assert found.different and "NOT distributed alike" in str(found)
