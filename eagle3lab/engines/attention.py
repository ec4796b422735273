"""Attention of the embedded engine, registered with transformers under the name ATTENTION.

Shapes: B batch, Q query heads, N key/value heads, G = Q // N heads that share a key, T query tokens, S key
tokens, D head.
"""

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

ATTENTION = "eagle3lab_folded"


def folded_attention(
    module,
    query_BQTD,
    key_BNSD,
    value_BNSD,
    attention_mask=None,
    scaling=None,
    dropout=0.0,
    sliding_window=None,
    softcap=None,
    s_aux=None,
    **unused,
):
    """Scaled dot-product attention that never repeats keys and values over the query heads sharing them:
    the G heads of a group become G times as many query rows. One decoded token then reads each key once
    instead of G times.

    `attention_mask` is bool [B, 1, T, S], or None: causal when T > 1 (then T == S), everything visible when
    T == 1. Returns ([B, T, Q, D], None) as transformers expects. Raises ValueError for attention it does
    not implement.
    """
    if sliding_window is not None or softcap is not None or s_aux is not None:
        raise ValueError("this target uses sliding windows, soft-capping or sinks, which the embedded engine lacks")
    B, Q, T, D = query_BQTD.shape
    N = key_BNSD.shape[1]
    if attention_mask is None and T > 1:
        out_BQTD = F.scaled_dot_product_attention(
            query_BQTD, key_BNSD, value_BNSD, is_causal=True, scale=scaling, enable_gqa=Q != N
        )
        return out_BQTD.transpose(1, 2).contiguous(), None
    G = Q // N
    folded = query_BQTD.reshape(B, N, G * T, D)
    mask = attention_mask
    if mask is not None and G > 1 and T > 1:
        mask = mask.repeat(1, 1, G, 1)
    out = F.scaled_dot_product_attention(folded, key_BNSD, value_BNSD, attn_mask=mask, scale=scaling)
    return out.reshape(B, Q, T, -1).transpose(1, 2).contiguous(), None


def register() -> str:
    """Makes the attention known to transformers; returns its name for `attn_implementation`."""
    AttentionInterface.register(ATTENTION, folded_attention)
    return ATTENTION


def visible_keys(lengths_B: torch.Tensor, tokens: int, width: int) -> torch.Tensor:
    """Mask for `tokens` new queries a row, bool [B, 1, T, S]: query i of a row with n cached tokens sees
    keys 0..n+i."""
    last_BT = lengths_B[:, None] + torch.arange(tokens, device=lengths_B.device)
    return torch.arange(width, device=lengths_B.device) <= last_BT[:, None, :, None]
