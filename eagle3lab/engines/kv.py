"""A key/value cache with preallocated rows of different lengths, rolled back by moving an end mark.

Shapes: B rows, N heads, S key tokens, T new tokens, D head size. What is stored is what the model hands
over: keys and values for Llama and Qwen3, the two compressed latents for DeepseekV3 (which the model
expands after reading the cache).
"""

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from eagle3lab.engines.attention import visible_keys

GROW_BY = 256  # tokens; rows grow in steps, so that short batches of a long-context target stay small


class KVCache(Cache):
    """Rows 0..live-1 are in use; row b holds `lengths[b]` tokens in columns 0..lengths[b]-1, without gaps.

    Before a forward pass either `plan_prefill` or `plan_append` says where its tokens go.
    """

    def __init__(self, num_layers: int, rows: int, max_tokens: int):
        super().__init__(layers=[_Layer(self) for _ in range(num_layers)])
        self.rows, self.max_tokens = rows, max_tokens
        self.lengths: list[int] = []
        self.plan = None

    def plan_prefill(self, lengths: list[int]) -> None:
        """The next forward pass starts len(lengths) new rows after the live ones, right-padded to one
        width."""
        first = len(self.lengths)
        if first + len(lengths) > self.rows:
            raise ValueError(f"cache has {self.rows} rows, {first + len(lengths)} needed")
        if max(lengths) > self.max_tokens:
            raise ValueError(f"cache rows hold {self.max_tokens} tokens, {max(lengths)} needed")
        self.lengths += lengths
        self.plan = _Prefill(first, first + len(lengths), max(lengths))

    def plan_append(self, tokens: int, device) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The next forward pass adds `tokens` tokens to every live row.

        Returns their positions [B, T] and the attention mask [B, 1, T, S] (None when every key is visible).
        """
        width = max(self.lengths) + tokens
        if width > self.max_tokens:
            raise ValueError(f"cache rows hold {self.max_tokens} tokens, {width} needed")
        lengths_B = torch.tensor(self.lengths, device=device)
        columns_BT = lengths_B[:, None] + torch.arange(tokens, device=device)
        rows_B1 = torch.arange(len(self.lengths), device=device)[:, None]
        self.plan = _Append(rows_B1, columns_BT, width)
        alike = min(self.lengths) == max(self.lengths)
        mask = None if alike and tokens == 1 else visible_keys(lengths_B, tokens, width)
        self.lengths = [length + tokens for length in self.lengths]
        return columns_BT, mask

    def truncate(self, row: int, length: int) -> None:
        """Forgets the tokens of a row from `length` on."""
        if not 0 <= length <= self.lengths[row]:
            raise ValueError(f"cannot truncate a row of {self.lengths[row]} tokens to {length}")
        self.lengths[row] = length

    def drop(self, row: int) -> None:
        """Frees a row; the last live row moves into its place."""
        last = len(self.lengths) - 1
        if row != last:
            for layer in self.layers:
                layer.move_row(last, row, self.lengths[last])
            self.lengths[row] = self.lengths[last]
        self.lengths.pop()

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return max(self.lengths, default=0)


class _Prefill:
    """New rows first..stop-1: nothing is cached before them, so attention reads the new keys themselves."""

    def __init__(self, first, stop, width):
        self.first, self.stop, self.width = first, stop, width

    def store(self, slab_BNSD, new_BNTD):
        slab_BNSD[self.first : self.stop, :, : self.width] = new_BNTD
        return new_BNTD


class _Append:
    """New tokens of all live rows at their own columns; attention reads all rows up to the longest."""

    def __init__(self, rows_B1, columns_BT, width):
        self.rows_B1, self.columns_BT, self.width = rows_B1, columns_BT, width

    def store(self, slab_BNSD, new_BNTD):
        slab_BNSD[self.rows_B1, :, self.columns_BT] = new_BNTD.transpose(1, 2)
        return slab_BNSD[: self.rows_B1.shape[0], :, : self.width]


class _Layer(CacheLayerMixin):
    """Slabs [rows, N, capacity, D] of one layer."""

    is_sliding = False

    def __init__(self, cache: KVCache):
        super().__init__()
        self.cache = cache

    def update(self, key_states, value_states, *args, **kwargs):
        plan = self.cache.plan
        self.keys = self._fit(self.keys, key_states, plan.width)
        self.values = self._fit(self.values, value_states, plan.width)
        self.is_initialized = True
        return plan.store(self.keys, key_states), plan.store(self.values, value_states)

    def _fit(self, slab_BNSD, new_BNTD, width):
        if slab_BNSD is not None and slab_BNSD.shape[2] >= width:
            return slab_BNSD
        capacity = min(self.cache.max_tokens, -(-width // GROW_BY) * GROW_BY)
        # zeros, not empty: masked keys still enter the softmax as 0 * value, and 0 * NaN garbage is NaN
        grown = new_BNTD.new_zeros(self.cache.rows, new_BNTD.shape[1], capacity, new_BNTD.shape[3])
        if slab_BNSD is not None:
            grown[:, :, : slab_BNSD.shape[2]] = slab_BNSD
        return grown

    def move_row(self, source, goal, length):
        self.keys[goal, :, :length] = self.keys[source, :, :length]
        self.values[goal, :, :length] = self.values[source, :, :length]

    def lazy_initialization(self, key_states, value_states):
        self.is_initialized = True

    def get_mask_sizes(self, query_length):
        return self.cache.plan.width, 0

    def get_seq_length(self):
        return self.cache.get_seq_length()

    def get_max_length(self):
        return self.cache.max_tokens
