"""Attention of the training-time test: every kernel against explicit scores, and what each of them is told to see."""

import itertools
import shutil
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import flex_attention
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from eagle3lab.draft import attention
from eagle3lab.draft.batch import make_batch
from tests.draft.samples import agent_rows, make_row


def attention_inputs(batch, J, dtype=torch.float64):
    """Random queries, keys and values of a batch, float64; 4 query heads share 2 key/value heads."""
    N, S = batch.anchor_N.numel(), batch.row_S.numel()
    generator = torch.Generator().manual_seed(3)
    shapes = [(N, 4, 8), (S, 2, 8), (S, 2, 8)] + [(N, 2, 8)] * (2 * J)
    values = [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]
    return values, torch.randn(N, 4, 8, generator=generator, dtype=dtype)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("few, cells", [(False, 2**21), (True, 2**21), (True, 1000), (True, 1)])
def test_flash_attention_equals_dense(rows, monkeypatch, dtype, tolerance, few, cells):
    """Forward and every gradient of the merged flash kernel against explicit scores, three later steps; masks of all
    places (270 a place) at once, of three, of one."""
    monkeypatch.setattr(attention, "MASK_CELLS", cells)
    batch = make_batch(agent_rows() if few else rows, 4)
    layout = attention.Layout.of(batch)
    parts = [part for part, _ in layout.queries.parts(layout.longest, dtype)]
    assert (layout.queries.last_BL is not None) == few
    assert len(parts) == {2**21: 1, 1000: 3, 1: 9}[cells]  # 9 anchors in the row with most of them
    values, upstream = attention_inputs(batch, 3, torch.float32)
    results = []
    for function, kind in ((attention.joint_attention, dtype), (attention.dense_attention, torch.float64)):
        leaves = [v.to(dtype).to(kind).clone().requires_grad_() for v in values]
        out = function(leaves[0], leaves[1], leaves[2], leaves[3:6], leaves[6:], layout)
        out.backward(upstream.to(dtype).to(kind))
        results.append([out.detach().double()] + [leaf.grad.double() for leaf in leaves])
    for fast, slow in zip(*results, strict=True):
        assert (fast - slow).norm() <= tolerance * slow.norm()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("J", [0, 1, 3])
def test_flex_attention_equals_dense_forward_and_gradient(rows, monkeypatch, J):
    """The path of CUDA, uncompiled on the CPU, where torch has its gradient too but does not offer it."""
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)
    batch = make_batch(rows, 4)
    layout, results = attention.Layout.of(batch), []
    values, upstream = attention_inputs(batch, J)
    for function in (attention.flex_joint, attention.dense_attention):
        leaves = [value.clone().requires_grad_() for value in values]
        out = function(*leaves[:3], leaves[3 : 3 + J], leaves[3 + J :], layout)
        out.backward(upstream)
        results.append([out.detach()] + [leaf.grad for leaf in leaves])
    for fused, dense in zip(*results, strict=True):
        torch.testing.assert_close(fused, dense, rtol=1e-5, atol=1e-6)  # its log-sum-exp is float32


def test_flex_attention_sees_what_dense_attention_sees(rows):
    """The block mask against the definition: the same row, and no later slot."""
    batch = make_batch(rows, 3)
    layout = attention.Layout.of(batch)
    N, S = batch.anchor_N.numel(), batch.row_S.numel()
    row_N, position_N = batch.row_S[batch.anchor_N], batch.position_S[batch.anchor_N]
    for n in range(N):
        for s in range(S):
            expected = bool(row_N[n] == batch.row_S[s]) and bool(batch.position_S[s] <= position_N[n])
            assert bool(layout.block_mask.mask_mod(0, 0, torch.tensor(n), torch.tensor(s))) == expected


def tiles_of(mask: BlockMask) -> tuple[torch.Tensor, torch.Tensor]:
    """Tables of the tiles that flex_attention computes with the mask, and without it."""
    tables = []
    for count, order in ((mask.kv_num_blocks, mask.kv_indices), (mask.full_kv_num_blocks, mask.full_kv_indices)):
        table = torch.zeros(order.shape[-2:], dtype=torch.bool)
        for line, (n, which) in enumerate(zip(count[0, 0].tolist(), order[0, 0].tolist(), strict=True)):
            table[line, which[:n]] = True
        tables.append(table)
    return tables[0], tables[1]


some_rows = st.lists(st.lists(st.booleans(), min_size=1, max_size=20), min_size=1, max_size=6).filter(
    lambda rows: any(map(any, rows))
)


def layout_of(rows: list[list[bool]]) -> attention.Layout:
    """Rows of slots, True where there is an anchor."""
    longest = max(map(len, rows))
    cells = [(row * longest + t, anchor) for row, slots in enumerate(rows) for t, anchor in enumerate(slots)]
    anchors = [cell for cell, anchor in cells if anchor]
    return attention.Layout(len(rows), longest, torch.tensor([cell for cell, _ in cells]), torch.tensor(anchors))


@given(some_rows)
def test_tiles_hold_what_an_anchor_sees(rows):
    """A tile that is left out holds no visible pair, one without the mask no other."""
    layout, size = layout_of(rows), 4
    with mock.patch.object(attention, "BLOCK", size):
        masked, whole = tiles_of(layout.block_mask)
    assert not (masked & whole).any()
    row_N, row_S = (cell // layout.longest for cell in (layout.anchor_cell_N, layout.slot_cell_S))
    for i, j in itertools.product(*map(range, masked.shape)):
        tile = [
            n < len(row_N) and s < len(row_S) and bool(row_N[n] == row_S[s])
            and bool(layout.slot_cell_S[s] <= layout.anchor_cell_N[n])
            for n, s in itertools.product(range(i * size, (i + 1) * size), range(j * size, (j + 1) * size))
        ]  # fmt: skip
        assert not whole[i, j] or all(tile)
        assert masked[i, j] or whole[i, j] or not any(tile)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_where_every_slot_is_an_anchor_the_tiles_are_those_of_torch(lengths):
    layout = layout_of([[True] * length for length in lengths])
    with mock.patch.object(attention, "BLOCK", 4):
        ours = layout.block_mask
    theirs = create_block_mask(ours.mask_mod, None, None, *ours.seq_lengths, device="cpu", BLOCK_SIZE=4)
    for mine, torchs in zip(tiles_of(ours), tiles_of(theirs), strict=True):
        assert torch.equal(mine, torchs)


@pytest.mark.slow
@pytest.mark.skipif(
    not torch.cpu._is_avx2_supported() or not shutil.which("g++"), reason="needs AVX2 and a C++ compiler"
)
@torch.no_grad()
def test_a_compiled_kernel_sees_by_our_tiles():
    """More than one tile of anchors and of slots. On a CPU torch 2.13 compiles flex_attention for fixed shapes, without
    its gradient and its log-sum-exp, so this is the first TTT step, where nothing is merged."""
    kernel = torch.compile(flex_attention.flex_attention, dynamic=False)
    for lengths in ([300, 40, 130], [90, 500]):
        batch = make_batch([make_row(i, n, [(n // 3, n)]) for i, n in enumerate(lengths)], 1)
        layout = attention.Layout.of(batch)
        values, _ = attention_inputs(batch, 0, torch.float32)
        grids = [x.transpose(0, 1)[None] for x in values]
        out_NQD = kernel(*grids, block_mask=layout.block_mask, enable_gqa=True)[0].transpose(0, 1)
        dense_NQD = attention.dense_attention(*values, [], [], layout)
        torch.testing.assert_close(out_NQD, dense_NQD, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-2), (torch.bfloat16, 3e-2)])
def test_on_a_gpu_attention_equals_dense(dtype, tolerance):
    """Forward and every gradient, compiled; shapes that change."""
    for lengths in ([300, 40, 130], [90, 500], [64]):
        batch = make_batch([make_row(i, n, [(n // 3, n)]) for i, n in enumerate(lengths)], 3).to("cuda")
        results = []
        values, upstream = attention_inputs(batch, 2, dtype)
        for function, kind in ((attention.joint_attention, dtype), (attention.dense_attention, torch.float64)):
            leaves = [value.to("cuda", kind).requires_grad_() for value in values]
            out = function(*leaves[:3], leaves[3:5], leaves[5:], attention.Layout.of(batch))
            out.backward(upstream.to("cuda", kind))
            results.append([out.detach().double()] + [leaf.grad.double() for leaf in leaves])
        for fused, dense in zip(*results, strict=True):
            assert (fused - dense).norm() <= tolerance * dense.norm()
