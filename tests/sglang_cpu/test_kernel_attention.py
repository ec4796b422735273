"""Paged attention against torch's scaled_dot_product_attention over keys and values laid out in order.

Shapes: T new tokens of a batch, L tokens of one request, Q of them new, H query heads, G key heads, D key size,
E value size.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sgl_kernel import attention
from torch.nn.functional import scaled_dot_product_attention

SLOTS, COLUMNS, SCALE = 300, 64, 0.3


class Paged:
    """Requests of (prefix, new) random tokens, scattered over a cache. What belongs to nobody is NaN."""

    def __init__(self, requests: list[tuple[int, int]], H=6, G=2, D=8, E=8, dtype=torch.float32, seed=0):
        torch.manual_seed(seed)
        self.requests, self.H, self.E = requests, H, E
        self.k_cache = torch.full((SLOTS, G, D), math.nan, dtype=dtype)
        self.v_cache = torch.full((SLOTS, G, E), math.nan, dtype=dtype)
        self.rows = torch.randperm(len(requests) + 2)[: len(requests)]
        self.pool = torch.randint(0, SLOTS, (len(requests) + 2, COLUMNS), dtype=torch.int32)
        self.new = torch.tensor([new for _, new in requests])
        self.seq_lens = torch.tensor([prefix + new for prefix, new in requests])
        self.q = torch.randn(int(self.new.sum()), H, D).to(dtype)
        self.slots = torch.randperm(SLOTS)[: int(self.seq_lens.sum())].split(self.seq_lens.tolist())
        self.k = [torch.randn(len(slots), G, D).to(dtype) for slots in self.slots]
        self.v = [torch.randn(len(slots), G, E).to(dtype) for slots in self.slots]
        for row, slots, k, v in zip(self.rows, self.slots, self.k, self.v, strict=True):
            self.pool[row, : len(slots)] = slots.int()
            self.k_cache[slots], self.v_cache[slots] = k, v

    def tokens(self, rows: list[torch.Tensor]) -> torch.Tensor:
        """The part of `rows` (one tensor per request) that belongs to new tokens, all requests in one."""
        return torch.cat([r[prefix:] for r, (prefix, _) in zip(rows, self.requests, strict=True)])

    def extend(self, *, given=True, window=0, cap=0.0, sinks=None, mask=None, causal=True, scales=(1.0, 1.0)):
        """The operator's output [T, H, E]; with `given` the new keys and values are arguments, not in the cache."""
        if given:
            for slots, (prefix, _) in zip(self.slots, self.requests, strict=True):
                self.k_cache[slots[prefix:]] = self.v_cache[slots[prefix:]] = math.nan
        output = torch.full((len(self.q), self.H, self.E), math.nan, dtype=self.q.dtype)
        torch.ops.sgl_kernel.extend_attention_cpu(
            self.q, self.tokens(self.k) if given else None, self.tokens(self.v) if given else None, output,
            self.k_cache, self.v_cache, *scales, self.pool, self.rows, self.seq_lens, self.new.int(),
            (self.new.cumsum(0) - self.new).int(), int(self.new.max()), SCALE, cap, False, window, None, sinks, mask,
            causal,
        )  # fmt: skip
        return output

    def decode(self, *, given=True, window=0, cap=0.0, sinks=None):
        """The same for requests of one new token each."""
        if given:
            for slots in self.slots:
                self.k_cache[slots[-1]] = self.v_cache[slots[-1]] = math.nan
        output = torch.full((len(self.q), self.H, self.E), math.nan, dtype=self.q.dtype)
        torch.ops.sgl_kernel.decode_attention_cpu(
            self.q, self.k_cache, self.v_cache, 1.0, 1.0, output, self.tokens(self.k) if given else None,
            self.tokens(self.v) if given else None, torch.stack([slots[-1] for slots in self.slots]),
            torch.empty(0), self.pool, self.rows, self.seq_lens, SCALE, cap, False, window, None, sinks,
        )  # fmt: skip
        return output

    def expected(self, *, window=0, sinks=None, masks=None, causal=True):
        """The same by scaled_dot_product_attention in float64, request by request."""
        outputs = []
        for i, (q, k, v) in enumerate(zip(self.q.split(self.new.tolist()), self.k, self.v, strict=True)):
            prefix, Q = self.requests[i]
            place = torch.arange(prefix + Q)
            behind = place[prefix:, None] - place
            visible = behind >= 0 if causal else torch.ones_like(behind, dtype=torch.bool)
            if masks:
                visible[:, prefix:] = masks[i]
            if window:
                visible &= behind < window
            bias = torch.zeros(visible.shape, dtype=torch.float64).masked_fill(~visible, -math.inf)
            bias = bias.expand(self.H, -1, -1)
            q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
            k, v = (x.repeat_interleave(self.H // len(x), 0) for x in (k, v))
            if sinks is not None:  # a sink is a key of zeros with a bias, whose value is zero
                k, v = (torch.cat([x, torch.zeros_like(x[:, :1])], 1) for x in (k, v))
                bias = torch.cat([bias, sinks.double()[:, None, None].expand(-1, Q, 1)], 2)
            outputs.append(scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=SCALE).transpose(0, 1))
        return torch.cat(outputs)


def same(output: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = 1e-5 if output.dtype == torch.float32 else 2e-2
    torch.testing.assert_close(output.double(), expected, atol=tolerance, rtol=tolerance)


heads = st.sampled_from([(4, 4, 8, 8), (6, 2, 8, 8), (4, 1, 12, 8), (9, 3, 8, 4)])  # H, G, D, E: D != E as in MLA
windows = st.sampled_from([0, 1, 3, 7])
batches = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 12)), min_size=1, max_size=5)
seeds = st.integers(0, 1000)


@settings(deadline=None)
@given(batches, heads, windows, st.booleans(), st.booleans(), seeds)
def test_new_tokens_attend_to_their_prefix_and_causally_to_each_other(requests, sizes, window, given, sink, seed):
    paged = Paged(requests, *sizes, seed=seed)
    sinks = torch.randn(paged.H) if sink else None
    same(paged.extend(given=given, window=window, sinks=sinks), paged.expected(window=window, sinks=sinks))


@settings(deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), heads, windows, st.booleans(), st.booleans(), seeds)
def test_a_decoded_token_attends_to_all_before_it_and_itself(prefixes, sizes, window, given, sink, seed):
    paged = Paged([(prefix, 1) for prefix in prefixes], *sizes, seed=seed)
    sinks = torch.randn(paged.H) if sink else None
    same(paged.decode(given=given, window=window, sinks=sinks), paged.expected(window=window, sinks=sinks))
    for slots, k, v in zip(paged.slots, paged.k, paged.v, strict=True):
        assert torch.equal(paged.k_cache[slots], k) and torch.equal(paged.v_cache[slots], v)


@settings(deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=4), st.integers(1, 9), heads, windows, st.booleans(), seeds)
def test_a_tree_mask_says_which_new_tokens_see_each_other(prefixes, Q, sizes, window, equal_lengths, seed):
    lengths = [Q if equal_lengths else 1 + (Q + i) % 9 for i in range(len(prefixes))]
    paged = Paged(list(zip(prefixes, lengths, strict=True)), *sizes, seed=seed)
    masks = [torch.rand(n, n).tril() > 0.5 for n in lengths]
    for mask in masks:
        mask.fill_diagonal_(True)
    flat = torch.cat([*(mask.flatten() for mask in masks), torch.tensor([True])])  # the buffer may be longer
    same(paged.extend(window=window, mask=flat), paged.expected(window=window, masks=masks))


def test_new_tokens_see_all_of_each_other_when_attention_is_not_causal():
    paged = Paged([(0, 5), (0, 9)])
    same(paged.extend(causal=False), paged.expected(causal=False))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_give_half_precision_outputs(dtype):
    paged = Paged([(13, 4), (2, 4), (0, 7)], dtype=dtype)
    output = paged.extend()
    assert output.dtype == dtype
    same(output, paged.expected())


@pytest.mark.parametrize("scores", [1, 200, 400])
def test_blocks_of_queries_change_nothing(monkeypatch, scores):
    monkeypatch.setattr(attention, "SCORES", scores)
    paged = Paged([(5, 9), (20, 9), (0, 9), (11, 3), (1, 1)])
    masks = [torch.ones(n, n, dtype=torch.bool).tril() for n in paged.new]
    for arguments in ({}, {"window": 6}, {"causal": False}):
        same(paged.extend(**arguments), paged.expected(**arguments))
    same(paged.extend(mask=torch.cat([mask.flatten() for mask in masks])), paged.expected(masks=masks))


def test_requests_without_new_tokens_are_passed_over():
    paged = Paged([(5, 0), (3, 4), (2, 0)])
    same(paged.extend(), paged.expected())
    nothing = Paged([(5, 0)])
    assert nothing.extend().shape == (0, 6, 8)


def test_scores_are_capped_by_tanh():
    paged = Paged([(6, 1)], H=2, G=1)
    scores = (paged.q[0].double() @ paged.k[0][:, 0].double().T) * SCALE
    weights = (0.5 * torch.tanh(scores / 0.5)).softmax(-1)
    expected = (weights @ paged.v[0][:, 0].double())[None]
    same(paged.decode(cap=0.5), expected)
    same(paged.extend(cap=0.5), expected)


def test_scales_apply_to_what_the_cache_holds_and_not_to_what_is_given():
    paged = Paged([(6, 3), (2, 2)])
    for slots, (prefix, _) in zip(paged.slots, paged.requests, strict=True):
        paged.k_cache[slots[:prefix]] /= 2
        paged.v_cache[slots[:prefix]] /= 4
    same(paged.extend(scales=(2.0, 4.0)), paged.expected())


def test_without_a_prefix_the_cache_may_have_another_shape_than_what_is_given():
    # MLA: whole heads are given, the cache holds one compressed head
    paged = Paged([(0, 5), (0, 2)], H=4, G=4, D=12, E=8)
    paged.k_cache = torch.full((SLOTS, 1, 20), math.nan)
    paged.v_cache = paged.k_cache[..., :16]
    output = torch.empty(7, 4, 8)
    torch.ops.sgl_kernel.extend_attention_cpu(
        paged.q, paged.tokens(paged.k), paged.tokens(paged.v), output, paged.k_cache, paged.v_cache, 1.0, 1.0,
        paged.pool, paged.rows, paged.seq_lens, paged.new, paged.new.cumsum(0) - paged.new, 5, SCALE, 0.0, False, 0,
        None, None, None, True,
    )  # fmt: skip
    same(output, paged.expected())


def test_values_may_be_a_view_of_the_keys():
    # MLA decoding: the value is the front of the key
    paged = Paged([(6, 1), (9, 1)], H=4, G=1, D=12, E=8)
    paged.v = [k[..., :8] for k in paged.k]
    paged.v_cache = paged.k_cache[..., :8]
    same(paged.decode(), paged.expected())


def test_a_short_tree_mask_and_encoder_decoder_models_are_refused():
    paged = Paged([(6, 3)])
    with pytest.raises(ValueError, match="8 entries.*need 9"):
        paged.extend(mask=torch.ones(8, dtype=torch.bool))
    with pytest.raises(ValueError, match="encoder-decoder"):
        attention.extend_attention_cpu(
            paged.q, None, None, paged.q, paged.k_cache, paged.v_cache, 1.0, 1.0, paged.pool, paged.rows,
            paged.seq_lens, paged.new, paged.new, 3, SCALE, 0.0, True, 0, paged.new, None, None, True,
        )  # fmt: skip
