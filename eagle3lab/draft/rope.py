"""Rotary positions of the drafter, as transformers' Llama has them, with or without Llama 3's scaling.

Shapes: T tokens, N heads, D head dim.
"""

from math import pi

import torch

from eagle3lab.draft.config import DraftConfig

LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def rotate(x_TND: torch.Tensor, positions_T: torch.Tensor, c: DraftConfig) -> torch.Tensor:
    """RoPE in the half-split layout of transformers' Llama; angles in float32."""
    half = x_TND.shape[-1] // 2
    inverse_D = c.rope_theta ** (-torch.arange(half, dtype=torch.float32, device=x_TND.device) / half)
    if c.rope_llama3:
        inverse_D = _stretched(inverse_D, *c.rope_llama3)
    angle_T1D = (positions_T.to(torch.float32)[..., None] * inverse_D).unsqueeze(-2)
    cos, sin = angle_T1D.cos().to(x_TND.dtype), angle_T1D.sin().to(x_TND.dtype)
    a, b = x_TND[..., :half], x_TND[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def _stretched(inverse_D, factor: float, low: float, high: float, old_length: float):
    """Llama 3.1: waves longer than old_length / low turn `factor` times slower, those shorter than old_length / high as
    before, and between them a mean of both."""
    kept_D = ((old_length * inverse_D / (2 * pi) - low) / (high - low)).clamp(0, 1)
    return inverse_D * (kept_D + (1 - kept_D) / factor)
