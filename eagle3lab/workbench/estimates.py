"""Disk and time of a chain by plain arithmetic, from stated sizes and throughputs. No torch, no file is read.

The same sizes as eagle3lab/features/codec.py and eagle3lab/draft/model.py, which load torch: tests/house keeps them
equal. Sizes are bytes, throughputs tokens a second, times hours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

CODECS = "float32, bf16, fp8, nor two parts such as fp8+bf16 or fp8+top16"
_CODEC = re.compile(r"(float32|bf16|fp8)(?:\+(float32|bf16|fp8|top([1-9]\d*)))?")
KEPT_CHECKPOINTS = 2  # a training keeps its newest two


def is_codec(name: str) -> bool:
    """Whether a feature store can be written with this codec."""
    return _CODEC.fullmatch(name) is not None


def bytes_per_token(codec: str, hidden_size: int, aux_layers: int, teacher_share: float, vocab_size: int) -> float:
    """Bytes of one token in the feature store. ValueError for a word that is no codec."""
    match = _CODEC.fullmatch(codec)
    if not match:
        raise ValueError(f"codec = {codec!r} is none of {CODECS}")
    aux, teacher, top = match.groups()
    state = {"float32": 4 * hidden_size, "bf16": 2 * hidden_size, "fp8": hidden_size + 1}
    id_bytes = 2 if vocab_size <= 1 << 16 else 4
    slot = int(top) * (2 + id_bytes) + 2 if top else state[teacher or aux]
    return 4 + aux_layers * state[aux] + teacher_share * slot


@dataclass(frozen=True)
class DraftSizes:
    """Sizes of the drafter; tied to the target by `target_hidden_size`, `aux_layers` (their number), `vocab_size`."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    draft_vocab_size: int
    aux_layers: int
    target_hidden_size: int
    vocab_size: int

    @property
    def fused(self) -> int:
        """Width of the states that `fc` reads."""
        return self.aux_layers * self.target_hidden_size

    @property
    def parameters(self) -> int:
        """Trained weights (the embedding is the target's)."""
        return self._block + self._head + 4 * self.hidden_size

    @property
    def exported_bytes(self) -> int:
        """The drafter's weights in bfloat16, an embedding of its own and the vocabulary map where it has them."""
        own_embedding = 0 if self.hidden_size == self.target_hidden_size else self.vocab_size * self.hidden_size
        mapped = 0 if self.draft_vocab_size == self.vocab_size else 8 * self.draft_vocab_size + self.vocab_size
        return 2 * (self.parameters + own_embedding) + mapped

    def checkpoint_bytes(self, optimizer: str) -> int:
        """One checkpoint of the training: float32 weights and moments, two of AdamW, one of Muon (block only)."""
        moments = (1 if optimizer == "muon" else 2) * self._block + 2 * (self._head + 4 * self.hidden_size)
        return 4 * (self.parameters + moments)

    @property
    def _block(self) -> int:
        H, q = self.hidden_size, self.num_attention_heads * self.head_dim
        kv = self.num_key_value_heads * self.head_dim
        return 2 * H * (q + 2 * kv) + q * H + 3 * H * self.intermediate_size + self.fused * H

    @property
    def _head(self) -> int:
        return self.draft_vocab_size * self.hidden_size


def hours(tokens: float, tokens_per_second: float) -> float:
    """Hours to work through `tokens`. ValueError for a throughput that is not above 0."""
    if tokens_per_second <= 0:
        raise ValueError(f"a throughput must be above 0, got {tokens_per_second}")
    return tokens / tokens_per_second / 3600


def break_even(accept_length: float, speculative_tok_s: float, plain_tok_s: float) -> float:
    """Accept length at which speculation is as fast as plain decoding: the cost of a cycle in plain steps."""
    return accept_length * plain_tok_s / speculative_tok_s


def size_text(count: float) -> str:
    """Bytes in decimal units, as disks are sold: 3.81 TB."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def hours_text(value: float) -> str:
    """21.97 -> `22.0 h`, 0.4 -> `24 min`."""
    return f"{value:.1f} h" if value >= 1 else f"{value * 60:.0f} min"
