import torch
from scipy.stats import chisquare

from eagle3lab.engines.base import Request
from eagle3lab.engines.embedded import EmbeddedEngine
from eagle3lab.engines.sampling import draw, uniform_stream
from tests.tiny import VOCAB


def test_draw_inverts_the_distribution_function():
    # softmax = 0.5, 0.25, 0.25 -> the steps lie at 0.5 and 0.75
    logits = torch.tensor([[0.5, 0.25, 0.25]]).log().expand(5, 3)
    uniform = torch.tensor([0.0, 0.4999, 0.5001, 0.7501, 1 - 2**-53], dtype=torch.float64)
    assert draw(logits, torch.ones(5, dtype=torch.float64), uniform).tolist() == [0, 0, 1, 2, 2]


def test_draw_never_takes_a_token_of_probability_zero():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf]] * 2)
    uniform = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert draw(logits, torch.ones(2, dtype=torch.float64), uniform).tolist() == [1, 1]


def test_temperature_divides_logits():
    # at temperature 0.5 odds of 1:2 become 1:4
    logits = torch.tensor([[1.0, 2.0]]).log().expand(2, 2)
    uniform = torch.tensor([0.199, 0.201], dtype=torch.float64)
    assert draw(logits, torch.full((2,), 0.5, dtype=torch.float64), uniform).tolist() == [0, 1]


def test_a_longer_stream_starts_like_a_shorter_one():
    assert torch.equal(uniform_stream(7, 40)[:7], uniform_stream(7, 7))
    assert not torch.equal(uniform_stream(7, 7), uniform_stream(8, 7))


def test_engine_samples_the_models_distribution(folders, llama):
    """2000 first tokens and 2000 second tokens against the model's own probabilities, chi-square."""
    engine = EmbeddedEngine(folders["llama"], end_ids=())
    prompt, temperature, n = [5, 9, 20], 1.5, 2000
    asked = [Request(str(i), prompt, 2, temperature, seed=i) for i in range(n)]
    drawn = torch.tensor([c.output_ids for c in engine.generate(asked, batch_size=500)])
    model = engine.target.model
    with torch.no_grad():
        first = (model(torch.tensor([prompt])).logits[0, -1].double() / temperature).softmax(-1)
        extended = torch.tensor([[*prompt, token] for token in range(VOCAB)])
        second = (model(extended).logits[:, -1].double() / temperature).softmax(-1)
    for tokens, probabilities in ((drawn[:, 0], first), (drawn[:, 1], first @ second)):
        observed = torch.bincount(tokens, minlength=VOCAB).double()
        expected = probabilities * n
        common = expected >= 5
        merged_observed = [*observed[common].tolist(), observed[~common].sum().item()]
        merged_expected = [*expected[common].tolist(), expected[~common].sum().item()]
        assert len(merged_expected) > 8
        assert chisquare(merged_observed, merged_expected).pvalue > 1e-3
