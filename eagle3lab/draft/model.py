"""The EAGLE-3 draft network: one decoder layer between fused target states and a pruned vocabulary.

Shapes: T tokens (any leading sizes), A aux layers, H draft hidden, G target hidden, V target vocabulary, W draft
vocabulary, Q query heads, N key/value heads, D head size.

Slot t holds the feature of x_t and the embedding of x_{t+1}; its RoPE position is t; it predicts x_{t+2}.
Source: EAGLE-3 (arXiv 2503.01840); tensor names are those SGLang and vLLM load (`midlayer.*`).
"""

import torch
import torch.nn.functional as F
from torch import nn

from eagle3lab.draft.config import DraftConfig
from eagle3lab.draft.rope import rotate


class RMSNorm(nn.Module):
    """Root-mean-square norm in float32, result in the input's dtype (as in transformers' Llama)."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)


class Attention(nn.Module):
    """Projections of the draft attention; the caller decides what attends to what."""

    def __init__(self, c: DraftConfig):
        super().__init__()
        self.q_proj = nn.Linear(2 * c.hidden_size, c.num_attention_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(2 * c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(2 * c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias=False)


class MLP(nn.Module):
    """SwiGLU feed-forward."""

    def __init__(self, c: DraftConfig):
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class MidLayer(nn.Module):
    """The drafter's decoder layer. Its attention reads cat(norm(embedding), norm(feature))."""

    def __init__(self, c: DraftConfig):
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.hidden_norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = Attention(c)
        self.mlp = MLP(c)


class Eagle3Draft(nn.Module):
    """The drafter. `embed_VH` is the target's embedding, or the drafter's own where widths differ; frozen either way.

    Draft id w stands for target id `target_ids_W[w]`. "y" is what a step hands to the next one: the block's output,
    after the final norm where `norm_output` is set.
    """

    def __init__(self, config: DraftConfig, embed_VH: torch.Tensor, target_ids_W: torch.Tensor):
        super().__init__()
        c = self.config = config
        if tuple(embed_VH.shape) != (c.vocab_size, c.hidden_size):
            raise ValueError(
                f"the embedding is {tuple(embed_VH.shape)}, this drafter needs {(c.vocab_size, c.hidden_size)}: "
                "it is of another target, or of another width"
            )
        if tuple(target_ids_W.shape) != (c.draft_vocab_size,):
            raise ValueError(f"vocabulary map is {tuple(target_ids_W.shape)}, expected {(c.draft_vocab_size,)}")
        self.midlayer = MidLayer(c)
        self.fc = nn.Linear(len(c.aux_layers) * c.target_hidden_size, c.hidden_size, bias=False)
        self.input_norm = self.fc_norm = None
        if c.norm_before_fc:
            self.input_norm = RMSNorm(len(c.aux_layers) * c.target_hidden_size, c.rms_norm_eps)
        if c.fc_norm:
            self.fc_norm = nn.ModuleList(RMSNorm(c.target_hidden_size, c.rms_norm_eps) for _ in c.aux_layers)
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.lm_head = nn.Linear(c.hidden_size, c.draft_vocab_size, bias=False)
        self.register_buffer("embed_VH", embed_VH.detach(), persistent=False)
        self.register_buffer("target_ids_W", target_ids_W.to(torch.int64), persistent=False)
        self.reset(torch.Generator().manual_seed(0))

    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:
        """Random start: matrices N(0, 0.02), norms one."""
        for parameter in self.parameters():
            if parameter.dim() == 2:
                parameter.copy_(torch.empty(parameter.shape).normal_(0, 0.02, generator=generator))
            else:
                parameter.fill_(1.0)

    def fuse(self, aux_TAH: torch.Tensor) -> torch.Tensor:
        """Target states of the aux layers -> step-0 features [T, H]."""
        aux_TAH = aux_TAH.to(self.fc.weight.dtype)
        if self.input_norm is not None:
            aux_TAH = self.input_norm(aux_TAH.flatten(-2)).view_as(aux_TAH)
        if self.fc_norm is not None:
            aux_TAH = torch.stack([norm(aux_TAH[..., a, :]) for a, norm in enumerate(self.fc_norm)], dim=-2)
        return self.fc(aux_TAH.flatten(-2))

    def embed(self, ids_T: torch.Tensor) -> torch.Tensor:
        """Embedding of token ids, [T, H] in the drafter's dtype."""
        return F.embedding(ids_T, self.embed_VH).to(self.fc.weight.dtype)

    def qkv(self, f_TH, ids_T, positions_T, queries=None):
        """Rotated queries [T, Q, D] and keys [T, N, D], values [T, N, D] of slots holding feature f and token ids.

        `queries` (bool or index over T) computes queries for a part of the slots only.
        """
        c, layer = self.config, self.midlayer
        u_TU = torch.cat([layer.input_layernorm(self.embed(ids_T)), layer.hidden_norm(f_TH)], dim=-1)
        attn = layer.self_attn
        k_TND = rotate(attn.k_proj(u_TU).unflatten(-1, (c.num_key_value_heads, c.head_dim)), positions_T, c)
        v_TND = attn.v_proj(u_TU).unflatten(-1, (c.num_key_value_heads, c.head_dim))
        if queries is not None:
            u_TU, positions_T = u_TU[queries], positions_T[queries]
        q_TQD = rotate(attn.q_proj(u_TU).unflatten(-1, (c.num_attention_heads, c.head_dim)), positions_T, c)
        return q_TQD, k_TND, v_TND

    def after_attention(self, f_TH, attended_TQD):
        """Output projection, residual and feed-forward: y [T, H], fed to the next step.

        The residual is the feature before `hidden_norm`, or after it where `norm_before_residual` is set.
        """
        layer = self.midlayer
        residual_TH = layer.hidden_norm(f_TH) if self.config.norm_before_residual else f_TH
        r_TH = residual_TH + layer.self_attn.o_proj(attended_TQD.flatten(-2))
        y_TH = r_TH + layer.mlp(layer.post_attention_layernorm(r_TH))
        return self.norm(y_TH) if self.config.norm_output else y_TH

    def head_input(self, y_TH: torch.Tensor) -> torch.Tensor:
        """What the head reads: y after the final norm [T, H]."""
        return y_TH if self.config.norm_output else self.norm(y_TH)

    def logits(self, y_TH: torch.Tensor) -> torch.Tensor:
        """Logits over the draft vocabulary [T, W]."""
        return self.lm_head(self.head_input(y_TH))

    # ---- decoding with a key/value cache -------------------------------------------------------------------

    def new_cache(self, max_tokens: int) -> "DraftCache":
        """An empty cache for one sequence of at most `max_tokens` slots."""
        c, weight = self.config, self.fc.weight
        return DraftCache(max_tokens, c.num_key_value_heads, c.head_dim, weight.dtype, weight.device)

    def forward_cached(self, f_TH, next_ids_T, positions_T, cache: "DraftCache"):
        """Append T slots to the cache and return their y [T, H]; causal among the new slots."""
        q_TQD, k_TND, v_TND = self.qkv(f_TH, next_ids_T, positions_T)
        k_CND, v_CND = cache.append(k_TND, v_TND)
        T, C = q_TQD.shape[0], k_CND.shape[0]
        mask_TC = None
        if T > 1:
            mask_TC = torch.ones(T, C, dtype=torch.bool, device=q_TQD.device).tril(C - T)
        out_QTD = F.scaled_dot_product_attention(
            q_TQD.transpose(0, 1)[None],
            k_CND.transpose(0, 1)[None],
            v_CND.transpose(0, 1)[None],
            attn_mask=mask_TC,
            enable_gqa=True,
        )[0]
        return self.after_attention(f_TH, out_QTD.transpose(0, 1))

    def predict(self, y_TH: torch.Tensor) -> torch.Tensor:
        """Greedy draft tokens as target ids, int64 [T]."""
        return self.target_ids_W[self.logits(y_TH).argmax(-1)]


def random_like(draft: Eagle3Draft, seed: int) -> Eagle3Draft:
    """A drafter of the same shape and vocabulary that has learned nothing: the control that must fail."""
    control = Eagle3Draft(draft.config, draft.embed_VH, draft.target_ids_W).to(draft.fc.weight.dtype)
    control.reset(torch.Generator().manual_seed(seed))
    return control.eval()


class DraftCache:
    """Keys and values of one sequence's slots, preallocated; `truncate` rolls back without recomputing."""

    def __init__(self, max_tokens, heads, head_dim, dtype, device):
        self.k_CND = torch.empty(max_tokens, heads, head_dim, dtype=dtype, device=device)
        self.v_CND = torch.empty_like(self.k_CND)
        self.length = 0

    def append(self, k_TND, v_TND):
        end = self.length + k_TND.shape[0]
        if end > self.k_CND.shape[0]:
            raise ValueError(f"draft cache holds {self.k_CND.shape[0]} slots, {end} needed")
        self.k_CND[self.length : end] = k_TND
        self.v_CND[self.length : end] = v_TND
        self.length = end
        return self.k_CND[:end], self.v_CND[:end]

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a cache of {self.length} slots to {length}")
        self.length = length
