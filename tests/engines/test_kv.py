import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.engines.attention import folded_attention, visible_keys
from eagle3lab.engines.kv import KVCache


def prefill(cache, rows):
    cache.plan_prefill([len(row) for row in rows])
    width = max(len(row) for row in rows)
    padded = torch.full((len(rows), 1, width, 1), -9.0)
    for i, row in enumerate(rows):
        padded[i, 0, : len(row), 0] = torch.tensor(row)
    for layer in range(2):
        cache.update(padded, padded, layer)


def append(cache, rows):
    new = torch.tensor(rows)[:, None, :, None]
    _, mask = cache.plan_append(new.shape[2], "cpu")
    keys = [cache.update(new, new, layer)[0] for layer in range(2)][1]
    mask = torch.ones(len(rows), 1, 1, keys.shape[2], dtype=torch.bool) if mask is None else mask
    return [keys[i, 0, :, 0][mask[i, 0, -1]].tolist() for i in range(len(rows))]


def test_visible_keys_by_hand():
    mask = visible_keys(torch.tensor([1, 3]), 2, 5)
    assert mask[0, 0].tolist() == [[True, True, False, False, False], [True, True, True, False, False]]
    assert mask[1, 0].tolist() == [[True, True, True, True, False], [True] * 5]


numbers = st.lists(st.floats(0, 100, width=32), min_size=1, max_size=6)
actions = st.lists(st.tuples(st.sampled_from(["append", "drop", "truncate", "prefill"]), st.integers(0, 99), numbers))


@given(st.lists(numbers, min_size=1, max_size=3), actions)
@settings(deadline=None)
def test_the_cache_behaves_like_lists(start, steps):
    cache, model = KVCache(2, rows=3, max_tokens=400), [list(row) for row in start]
    prefill(cache, start)
    for action, number, values in steps:
        if action == "prefill" and len(model) < 3:
            prefill(cache, [values])
            model.append(list(values))
        elif model and action == "append":
            new = [[v + i for v in values] for i in range(len(model))]
            model = [row + more for row, more in zip(model, torch.tensor(new).tolist(), strict=True)]
            assert append(cache, new) == model
        elif model and action == "drop":
            row = number % len(model)
            last = model.pop()
            if row < len(model):
                model[row] = last
            cache.drop(row)
        elif model and action == "truncate":
            row = number % len(model)
            keep = number % (len(model[row]) + 1)
            model[row] = model[row][:keep]
            cache.truncate(row, keep)
        assert cache.lengths == [len(row) for row in model]


def test_rows_grow_without_losing_what_they_hold():
    cache = KVCache(2, rows=1, max_tokens=1000)
    row = [float(i) for i in range(200)]
    prefill(cache, [row])
    for start in range(200, 1000, 100):
        new = [float(i) for i in range(start, start + 100)]
        row += new
        assert append(cache, [new]) == [row]
    with pytest.raises(ValueError, match="hold 1000 tokens, 1001 needed"):
        cache.plan_append(1, "cpu")


def test_too_many_rows_and_bad_truncation_are_refused():
    cache = KVCache(2, rows=1, max_tokens=10)
    with pytest.raises(ValueError, match="1 rows, 2 needed"):
        cache.plan_prefill([3, 3])
    with pytest.raises(ValueError, match="10 tokens, 11 needed"):
        cache.plan_prefill([11])
    prefill(cache, [[1.0, 2.0]])
    with pytest.raises(ValueError, match="2 tokens to 3"):
        cache.truncate(0, 3)


@pytest.mark.parametrize(("q_heads", "kv_heads", "tokens"), [(4, 4, 1), (6, 2, 1), (6, 2, 3), (4, 1, 5)])
def test_folded_attention_is_plain_attention(q_heads, kv_heads, tokens):
    g = torch.Generator().manual_seed(0)
    q = torch.randn(2, q_heads, tokens, 8, generator=g)
    k, v = torch.randn(2, kv_heads, 7, 8, generator=g), torch.randn(2, kv_heads, 7, 5, generator=g)
    mask = visible_keys(torch.tensor([7 - tokens, 2]), tokens, 7)
    wide_k, wide_v = (x.repeat_interleave(q_heads // kv_heads, dim=1) for x in (k, v))
    scores = (q @ wide_k.transpose(2, 3) * 0.3).masked_fill(~mask, -torch.inf)
    expected = (scores.softmax(-1) @ wide_v).transpose(1, 2)
    torch.testing.assert_close(folded_attention(None, q, k, v, mask, scaling=0.3)[0], expected)


def test_attention_it_cannot_do_is_refused():
    x = torch.zeros(1, 1, 1, 4)
    with pytest.raises(ValueError, match="sliding"):
        folded_attention(None, x, x, x, sliding_window=128)
