"""From logits to tokens, each row with its own temperature and its own random numbers.

Shapes: B rows, V vocabulary.
"""

import torch


def uniform_stream(seed: int, count: int) -> torch.Tensor:
    """`count` numbers in [0, 1), float64, the same for the same seed whatever runs beside it."""
    return torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def draw(logits_BV: torch.Tensor, temperature_B: torch.Tensor, uniform_B: torch.Tensor) -> torch.Tensor:
    """Tokens drawn from softmax(logits / temperature) by inverting the distribution function at `uniform`,
    int64 [B].

    Computed in float64: a float32 running sum over 100,000 tokens would lose the rare ones.
    """
    scaled_BV = logits_BV.double() / temperature_B[:, None]
    cumulative_BV = scaled_BV.softmax(-1).cumsum(-1)
    point_B1 = uniform_B[:, None] * cumulative_BV[:, -1:]
    return torch.searchsorted(cumulative_BV, point_B1, right=True).squeeze(1).clamp(max=logits_BV.shape[-1] - 1)
