"""Disk, memory and time before a long stage starts. Plain arithmetic from stated sizes and throughputs.

Sizes are bytes, throughputs tokens per second, times hours.
"""

from eagle3lab.features.codec import Codec

ADAMW_BYTES = 4 + 4 + 4 + 4  # float32 weight, gradient and two moments


def estimate_store_bytes(
    n_tokens: int,
    hidden_size: int,
    n_aux_layers: int = 3,
    teacher_share: float = 1.0,
    codec: str = "bf16",
    vocab_size: int = 0,
) -> int:
    """Bytes of the feature store of a corpus, without its index.

    teacher_share: share of the slots that predict a trained token (1.0: kept everywhere, as the field's dumps do).
    codec: see features/codec.py; vocab_size decides how wide the ids of a top-k teacher are.
    """
    return round(n_tokens * Codec.of(codec).bytes_per_token(hidden_size, n_aux_layers, teacher_share, vocab_size))


def estimate_hours(n_tokens: float, tokens_per_second: float, passes: float = 1) -> float:
    """Hours to work through `n_tokens`, `passes` times, at a measured or stated throughput."""
    if tokens_per_second <= 0:
        raise ValueError(f"tokens_per_second={tokens_per_second} must be positive")
    return n_tokens * passes / tokens_per_second / 3600


def draft_parameters(
    hidden_size: int,
    intermediate_size: int,
    num_attention_heads: int,
    num_key_value_heads: int,
    head_dim: int,
    draft_vocab_size: int,
    n_aux_layers: int = 3,
    target_hidden_size: int | None = None,
) -> int:
    """Trained parameters of the one-layer EAGLE-3 drafter (the embedding is the target's and not counted)."""
    q, kv = num_attention_heads * head_dim, num_key_value_heads * head_dim
    attention = 2 * hidden_size * (q + 2 * kv) + q * hidden_size
    mlp = 3 * hidden_size * intermediate_size
    fuse = n_aux_layers * (target_hidden_size or hidden_size) * hidden_size
    return attention + mlp + fuse + draft_vocab_size * hidden_size + 4 * hidden_size


def kv_cache_bytes(
    n_tokens: int, num_layers: int, num_key_value_heads: int, head_dim: int, bytes_per_value: int
) -> int:
    """Bytes of keys and values of `n_tokens` (all sequences of the batch together)."""
    return 2 * n_tokens * num_layers * num_key_value_heads * head_dim * bytes_per_value


def training_bytes(n_parameters: int) -> int:
    """Bytes of the drafter's float32 weights, gradients and AdamW moments (activations come on top)."""
    return n_parameters * ADAMW_BYTES
