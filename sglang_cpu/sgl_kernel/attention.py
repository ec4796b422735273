"""Paged attention: decode_attention_cpu and extend_attention_cpu, operators of torch.ops.sgl_kernel.

Keys and values of all tokens lie in slots of one cache; `req_to_token` (see token_pool.py) says which. A request's
keys are its prefix (read from the cache) and its extension (the new tokens: given, or read from the cache too).
Decoding is an extension by one token.

Shapes: T new tokens of a batch, B requests; of one request: Q new tokens (of one block of them in the helpers), P
tokens of prefix, L = P + Q keys; H query heads, G key/value heads, R = H / G (query head h uses key head h // R), D key
size, E value size, M slots of the cache. Everything is computed in float32.
"""

import torch
from torch import Tensor

SCORES = 1 << 21  # scores computed at once (8 MiB): long prompts go through in blocks of queries


def decode_attention_cpu(
    query_BHD: Tensor,
    k_cache_MGD: Tensor,
    v_cache_MGE: Tensor,
    key_scale: float,
    value_scale: float,
    output_BHE: Tensor,
    key_BGD: Tensor | None,
    value_BGE: Tensor | None,
    loc_B: Tensor | None,
    attn_logits: Tensor,
    req_to_token: Tensor,
    req_pool_indices_B: Tensor,
    seq_lens_B: Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window: int,
    encoder_lens: Tensor | None,
    sinks_H: Tensor | None,
) -> None:
    """One new token per request: stores its key and value (if given) in the slots `loc_B`, then attends.

    seq_lens count the new token. The other arguments are those of `extend_attention_cpu`; `attn_logits` is scratch
    memory of the compiled kernel and not used. Writes `output_BHE`.
    """
    if key_BGD is not None:
        k_cache_MGD[loc_B] = key_BGD.view(-1, *k_cache_MGD.shape[1:]).to(k_cache_MGD.dtype)
        v_cache_MGE[loc_B] = value_BGE.view(-1, *v_cache_MGE.shape[1:]).to(v_cache_MGE.dtype)
    B = seq_lens_B.numel()
    extend_attention_cpu(
        query_BHD, None, None, output_BHE, k_cache_MGD, v_cache_MGE, key_scale, value_scale,
        req_to_token, req_pool_indices_B, seq_lens_B, torch.ones(B, dtype=torch.int64), torch.arange(B), 1,
        sm_scale, logit_cap, is_cross_attn, sliding_window, encoder_lens, sinks_H, None, True,
    )  # fmt: skip


def extend_attention_cpu(
    query_THD: Tensor,
    key_TGD: Tensor | None,
    value_TGE: Tensor | None,
    output_THE: Tensor,
    k_cache_MGD: Tensor,
    v_cache_MGE: Tensor,
    key_scale: float,
    value_scale: float,
    req_to_token: Tensor,
    req_pool_indices_B: Tensor,
    seq_lens_B: Tensor,
    extend_seq_lens_B: Tensor,
    extend_start_loc_B: Tensor,
    max_extend_len: int,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window: int,
    encoder_lens: Tensor | None,
    sinks_H: Tensor | None,
    tree_mask: Tensor | None,
    is_causal: bool,
) -> None:
    """Attention of the new tokens of every request to its prefix and to each other; writes `output_THE`.

    key, value: of the new tokens, or None when they are to be read from the cache. key_scale, value_scale: factors of
    what the cache holds (1 but for float8). seq_lens: prefix + new tokens. extend_seq_lens, extend_start_loc: each
    request's share of the T tokens. logit_cap: 0 for none. sliding_window: keys that a query sees, itself included; 0
    for all. sinks: one more logit per head that takes weight but has no value. tree_mask: bool, flat, Q x Q per
    request, true where a new token (row) sees another (column); without it a new token sees those before it
    (is_causal) or all. `max_extend_len` is not needed here.

    Raises ValueError for encoder-decoder models and for a tree mask that is too short.
    """
    if is_cross_attn or encoder_lens is not None:
        raise ValueError("these CPU kernels serve decoder-only models, not encoder-decoder ones")
    lengths = extend_seq_lens_B.tolist()
    needed = sum(length * length for length in lengths)
    if tree_mask is not None and tree_mask.numel() < needed:
        raise ValueError(f"the tree mask has {tree_mask.numel()} entries, {lengths} new tokens need {needed}")

    rows, totals, starts = req_pool_indices_B.tolist(), seq_lens_B.tolist(), extend_start_loc_B.tolist()
    for row, L, Q, start in zip(rows, totals, lengths, starts, strict=True):
        if Q == 0:
            continue
        new, slots_L = slice(start, start + Q), req_to_token[row, :L]
        k_LGD = _gather(k_cache_MGD, slots_L, key_scale, None if key_TGD is None else key_TGD[new])
        v_LGE = _gather(v_cache_MGE, slots_L, value_scale, None if value_TGE is None else value_TGE[new])
        mask_QQ = None
        if tree_mask is not None:
            mask_QQ, tree_mask = tree_mask[: Q * Q].view(Q, Q), tree_mask[Q * Q :]
        step = max(1, SCORES // (query_THD.shape[1] * L))
        for first in range(0, Q, step):
            block = torch.arange(first, min(first + step, Q))
            keys = L - Q + int(block[-1]) + 1 if is_causal and mask_QQ is None else L
            output_THE[start + block] = _attend(
                query_THD[start + block], k_LGD[:keys], v_LGE[:keys],
                _visible(block, L - Q, keys, mask_QQ, is_causal, sliding_window), sm_scale, logit_cap, sinks_H,
            ).to(output_THE.dtype)  # fmt: skip


def _gather(cache_MGD: Tensor, slots_L: Tensor, scale: float, new_QGD: Tensor | None) -> Tensor:
    """Keys (or values) of one request, float32 [L, G, D]: from the cache, the last Q from `new_QGD` if given."""
    if new_QGD is not None:
        slots_L = slots_L[: len(slots_L) - len(new_QGD)]
        if len(slots_L) == 0:  # without a prefix, MLA models give whole heads where their cache holds a compressed one
            return new_QGD.float()
    cached_LGD = cache_MGD.index_select(0, slots_L).float()  # six times faster than indexing
    if scale != 1:
        cached_LGD *= scale
    return cached_LGD if new_QGD is None else torch.cat([cached_LGD, new_QGD.float()])


def _visible(block: Tensor, P: int, keys: int, mask_QQ: Tensor | None, is_causal: bool, window: int) -> Tensor | None:
    """Which of the first `keys` keys the new tokens `block` see: bool [len(block), keys], None when they see all."""
    place_Q1, key_L = P + block[:, None], torch.arange(keys)
    if mask_QQ is not None:
        visible_QL = torch.cat([torch.ones(len(block), P, dtype=torch.bool), mask_QQ[block]], 1)
    elif is_causal and len(block) > 1:
        visible_QL = key_L <= place_Q1
    else:  # not causal, or a single token, the last of all keys
        visible_QL = None
    if window > 0:
        inside_QL = place_Q1 - key_L < window
        visible_QL = inside_QL if visible_QL is None else visible_QL & inside_QL
    return visible_QL


def _attend(
    q_QHD: Tensor,
    k_LGD: Tensor,
    v_LGE: Tensor,
    visible_QL: Tensor | None,
    scale: float,
    logit_cap: float,
    sinks_H: Tensor | None,
) -> Tensor:
    """softmax(q k) v over the visible keys, float32 [Q, H, E]; every query must see a key."""
    Q, H, D = q_QHD.shape
    L, G = k_LGD.shape[:2]
    R = H // G
    q_GXD = (q_QHD.float() * scale).view(Q, G, R, D).permute(1, 2, 0, 3).reshape(G, R * Q, D)
    scores_HQL = torch.bmm(q_GXD, k_LGD.permute(1, 2, 0)).view(H, Q, L)
    if logit_cap > 0:
        scores_HQL = logit_cap * torch.tanh(scores_HQL / logit_cap)
    if visible_QL is not None:
        scores_HQL.masked_fill_(~visible_QL, float("-inf"))
    if sinks_H is not None:
        scores_HQL = torch.cat([scores_HQL, sinks_H.float().view(H, 1, 1).expand(H, Q, 1)], 2)
    weights_GXL = scores_HQL.softmax(2)[..., :L].reshape(G, R * Q, L)
    return torch.bmm(weights_GXL, v_LGE.transpose(0, 1)).view(H, Q, -1).transpose(0, 1)


_library = torch.library.Library("sgl_kernel", "FRAGMENT")  # operators live as long as this object


def register() -> None:
    """Defines both operators with the signatures of the call sites (srt/layers/attention/intel_amx_backend.py)."""
    _library.define(
        "decode_attention_cpu(Tensor query, Tensor(a!) k_cache, Tensor(b!) v_cache, float key_scale, "
        "float value_scale, Tensor(c!) output, Tensor? key, Tensor? value, Tensor? loc, Tensor attn_logits, "
        "Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, float sm_scale, float logit_cap, "
        "bool is_cross_attn, int sliding_window, Tensor? encoder_lens, Tensor? sinks) -> ()"
    )
    _library.define(
        "extend_attention_cpu(Tensor query, Tensor? key, Tensor? value, Tensor(a!) output, Tensor k_cache, "
        "Tensor v_cache, float key_scale, float value_scale, Tensor req_to_token, Tensor req_pool_indices, "
        "Tensor seq_lens, Tensor extend_seq_lens, Tensor extend_start_loc, int max_extend_len, float sm_scale, "
        "float logit_cap, bool is_cross_attn, int sliding_window, Tensor? encoder_lens, Tensor? sinks, "
        "Tensor? tree_mask, bool is_causal) -> ()"
    )
    _library.impl("decode_attention_cpu", decode_attention_cpu, "CPU")
    _library.impl("extend_attention_cpu", extend_attention_cpu, "CPU")
