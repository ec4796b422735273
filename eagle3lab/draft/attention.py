"""Attention of the training-time test: causal over step-0 keys, plus one key per later step at the slot itself.

Shapes: N anchors, S slots, B rows, T longest row, Q query heads, G key/value heads, D head size, J steps after step 0,
R query heads of one key/value head.

Three implementations of one function. `dense_attention`: plain torch, any device, the reference. The others run a fused
kernel over the step-0 keys and merge the later steps' keys through the log-sum-exp:

    CPU    `_FlashJoint`, torch's flash kernel on a padded grid, of the anchors alone where they are few. Its backward
           hands the merged output and log-sum-exp to the flash backward kernel, which then yields the exact gradient
           of the joint softmax, as ring attention does (arXiv 2310.01889).
    CUDA   `flex_joint`, torch's flex_attention on the unpadded slots, compiled; autograd goes through the merge, since
           flex_attention has a gradient for its log-sum-exp too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

aten = torch.ops.aten
FEW = 3  # anchors are few where this many times the most of a row are no more than the longest row's slots
MASK_CELLS = 2**21  # of one call of the CPU's kernel: 8 MiB in float32
BLOCK = 128  # anchors, or slots, of one tile of flex_attention


@dataclass(frozen=True)
class Queries:
    """The grid [B, length] in which the CPU's kernel finds the anchors' queries; a cell is row * length + place.

    last_BL: position of the last key that each cell sees (a cell without an anchor sees all: its gradient is zero).
    None: places are positions, and the kernel is causal by itself.
    """

    length: int
    cell_N: torch.Tensor
    last_BL: torch.Tensor | None

    def parts(self, longest: int, dtype: torch.dtype) -> Iterator[tuple[slice, dict]]:
        """Which places one call of the kernel takes, and what it is to mask, as its arguments. A mask of all places
        at once would hold anchors x longest row."""
        if self.last_BL is None:
            yield slice(None), {"is_causal": True}
            return
        key_T = torch.arange(longest, device=self.last_BL.device)
        places = max(1, MASK_CELLS // (len(self.last_BL) * longest))
        for part in (slice(start, start + places) for start in range(0, self.length, places)):
            ahead_B1PT = key_T > self.last_BL[:, None, part, None]
            mask_B1PT = torch.zeros(ahead_B1PT.shape, dtype=dtype, device=key_T.device)
            yield part, {"is_causal": False, "attn_mask": mask_B1PT.masked_fill_(ahead_B1PT, float("-inf"))}


@dataclass(frozen=True)
class Layout:
    """Where slots and anchors lie in a padded [B, T] grid (`*_cell` = row * T + position)."""

    rows: int
    longest: int
    slot_cell_S: torch.Tensor
    anchor_cell_N: torch.Tensor

    @classmethod
    def of(cls, batch) -> "Layout":
        cell_S = batch.row_S * batch.longest + batch.position_S
        return cls(batch.rows, batch.longest, cell_S, cell_S[batch.anchor_N])

    @cached_property
    def block_mask(self) -> BlockMask:
        """What step-0 keys an anchor sees, for flex_attention: its row's, up to its own. The same for every step.

        Cells ascend, so the keys of a tile of anchors lie between the first one's row's first key and the last one's
        own, and all of its anchors see what lies between the last one's row's first key and the first one's own. That
        takes no mask of anchors x slots, which create_block_mask makes.
        """
        anchor_cell_N, slot_cell_S = self.anchor_cell_N, self.slot_cell_S
        row_start_N = anchor_cell_N - anchor_cell_N % self.longest

        def sees(_, __, n, s):
            return (slot_cell_S[s] <= anchor_cell_N[n]) & (slot_cell_S[s] >= row_start_N[n])

        N, S = anchor_cell_N.numel(), slot_cell_S.numel()
        begin_N, end_N = torch.searchsorted(slot_cell_S, torch.stack([row_start_N, anchor_cell_N + 1]))
        first = torch.arange(0, N, BLOCK, device=slot_cell_S.device)
        last = (first + BLOCK - 1).clamp(max=N - 1)
        tile = torch.arange(0, S, BLOCK, device=slot_cell_S.device)  # the first slot of each
        some = (tile + BLOCK > begin_N[first, None]) & (tile < end_N[last, None])
        every = (tile >= begin_N[last, None]) & (tile + BLOCK <= end_N[first, None])
        every &= (first + BLOCK <= N)[:, None]
        tables = [x for table in (some & ~every, every) for x in _in_order(table)]
        return BlockMask.from_kv_blocks(*tables, BLOCK_SIZE=BLOCK, mask_mod=sees, seq_lengths=(N, S))

    @cached_property
    def queries(self) -> Queries:
        """Anchors one after the other where they are few, as in the short turns of an agent: the kernel would compute
        every position of a causal grid. The same for every step."""
        row_N, position_N = self.anchor_cell_N // self.longest, self.anchor_cell_N % self.longest
        count_B = torch.bincount(row_N, minlength=self.rows)
        most = int(count_B.max())
        if most * FEW > self.longest:
            return Queries(self.longest, self.anchor_cell_N, None)
        first_B = count_B.cumsum(0) - count_B  # anchors come row by row
        cell_N = row_N * most + torch.arange(len(row_N), device=row_N.device) - first_B[row_N]
        last_C = torch.full((self.rows * most,), self.longest, device=row_N.device).index_copy_(0, cell_N, position_N)
        return Queries(most, cell_N, last_C.view(self.rows, most))

    def grid(self, x_NHD, cell_N, length=None, heads=None):
        """Scatters [N, h, D] into a zero grid [B, h, length, D], of T by default; `heads` repeats key/value heads up to
        the query heads."""
        h, D = x_NHD.shape[1:]
        length = length or self.longest
        grid = x_NHD.new_zeros(self.rows * length, h, D).index_copy_(0, cell_N, x_NHD)
        grid = grid.view(self.rows, length, h, D).transpose(1, 2)
        return grid if heads is None or heads == h else grid.repeat_interleave(heads // h, dim=1)

    def flat(self, grid_BHTD, cell_N):
        """The inverse of `grid` at the given cells: [N, h, D] (or [N, h] from [B, h, T])."""
        return grid_BHTD.transpose(1, 2).flatten(0, 1)[cell_N]


def _in_order(table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A boolean table of tiles [anchors, slots] as flex_attention wants it: how many are set in each line, and which
    (those first)."""
    count, order = table.sum(-1), table.int().argsort(descending=True, stable=True)
    return count.int()[None, None], order.int()[None, None]


def joint_attention(q_NQD, k0_SGD, v0_SGD, k_JNGD, v_JNGD, layout: Layout):
    """Attention output [N, Q, D] of one TTT step; `k_JNGD`, `v_JNGD` are lists of the later steps' keys, values."""
    if q_NQD.device.type == "cpu" and q_NQD.dtype in (torch.bfloat16, torch.float32):
        return _FlashJoint.apply(q_NQD, k0_SGD, v0_SGD, layout, len(k_JNGD), *k_JNGD, *v_JNGD)
    if q_NQD.device.type == "cuda":
        return flex_joint(q_NQD, k0_SGD, v0_SGD, k_JNGD, v_JNGD, layout, compiled_flex())
    return dense_attention(q_NQD, k0_SGD, v0_SGD, k_JNGD, v_JNGD, layout)


def dense_attention(q_NQD, k0_SGD, v0_SGD, k_JNGD, v_JNGD, layout: Layout):
    """The same with explicit scores [N, Q, T]: memory N x T, any dtype and device."""
    Q, D = q_NQD.shape[1:]
    groups = Q // k0_SGD.shape[1]
    row_N, position_N = layout.anchor_cell_N // layout.longest, layout.anchor_cell_N % layout.longest
    k_NQTD = layout.grid(k0_SGD, layout.slot_cell_S, heads=Q)[row_N]
    v_NQTD = layout.grid(v0_SGD, layout.slot_cell_S, heads=Q)[row_N]
    score_NQT = torch.einsum("nqd,nqtd->nqt", q_NQD, k_NQTD) * D**-0.5
    ahead_NT = torch.arange(layout.longest, device=q_NQD.device)[None] > position_N[:, None]
    scores = [score_NQT.masked_fill(ahead_NT[:, None], float("-inf"))]
    for k_NGD in k_JNGD:
        scores.append((q_NQD * k_NGD.repeat_interleave(groups, 1)).sum(-1, keepdim=True) * D**-0.5)
    p_NQC = torch.cat(scores, dim=-1).softmax(-1)
    out_NQD = torch.einsum("nqt,nqtd->nqd", p_NQC[..., : layout.longest], v_NQTD)
    for j, v_NGD in enumerate(v_JNGD):
        out_NQD = out_NQD + p_NQC[..., layout.longest + j, None] * v_NGD.repeat_interleave(groups, 1)
    return out_NQD


@cache
def compiled_flex():
    """flex_attention as a fused kernel. Batches differ in their numbers of slots, so the shapes are dynamic."""
    return torch.compile(flex_attention, dynamic=True)


def flex_joint(q_NQD, k0_SGD, v0_SGD, k_JNGD, v_JNGD, layout: Layout, kernel=flex_attention):
    """The same through flex_attention; uncompiled it runs anywhere, with explicit scores."""
    N, Q, D = q_NQD.shape
    G = k0_SGD.shape[1]
    grids = (x.transpose(0, 1)[None] for x in (q_NQD, k0_SGD, v0_SGD))
    out_1QND, aux = kernel(*grids, block_mask=layout.block_mask, enable_gqa=Q != G, return_aux=AuxRequest(lse=True))
    out_NQD, lse_NQ = out_1QND[0].transpose(0, 1), aux.lse[0].T.float()
    if not len(k_JNGD):
        return out_NQD
    k_JNGD, v_JNGD = torch.stack(list(k_JNGD)), torch.stack(list(v_JNGD))
    score_JNGR = torch.einsum("ngrd,jngd->jngr", q_NQD.view(N, G, Q // G, D), k_JNGD).float() * D**-0.5
    joint_NQ = torch.logsumexp(torch.cat([lse_NQ[None], score_JNGR.flatten(2)]), dim=0)
    p_JNGR = (score_JNGR - joint_NQ.view(N, G, Q // G)).exp().to(q_NQD.dtype)
    extra_NQD = torch.einsum("jngr,jngd->ngrd", p_JNGR, v_JNGD).reshape(N, Q, D)
    return out_NQD * (lse_NQ - joint_NQ).exp().to(q_NQD.dtype)[..., None] + extra_NQD


def _along_places(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Parts [B, h, P, ...] of a grid, put together."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=2)


class _FlashJoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q_NQD, k0_SGD, v0_SGD, layout, J, *kv):
        N, Q, D = q_NQD.shape
        G, scale = k0_SGD.shape[1], D**-0.5
        queries = layout.queries
        q_grid = layout.grid(q_NQD, queries.cell_N, queries.length)
        k_grid = layout.grid(k0_SGD, layout.slot_cell_S, heads=Q)
        v_grid = layout.grid(v0_SGD, layout.slot_cell_S, heads=Q)
        made = [
            aten._scaled_dot_product_flash_attention_for_cpu(
                q_grid[:, :, part], k_grid, v_grid, 0.0, scale=scale, **sees
            )
            for part, sees in queries.parts(layout.longest, q_NQD.dtype)
        ]
        out_grid, lse_grid = (_along_places(parts) for parts in zip(*made, strict=True))
        out_NQD = layout.flat(out_grid, queries.cell_N)
        lse_NQ = layout.flat(lse_grid, queries.cell_N)
        if J:
            k_JNGD, v_JNGD = torch.stack(kv[:J]), torch.stack(kv[J:])
            q_NGRD = q_NQD.view(N, G, Q // G, D)
            score_JNQ = torch.einsum("ngrd,jngd->jngr", q_NGRD, k_JNGD).float().mul_(scale).flatten(2)
            joint_NQ = torch.logsumexp(torch.cat([lse_NQ[None], score_JNQ]), dim=0)
            p_JNQ = (score_JNQ - joint_NQ).exp_().to(q_NQD.dtype)
            extra = torch.einsum("jngr,jngd->ngrd", p_JNQ.unflatten(2, (G, Q // G)), v_JNGD).reshape(N, Q, D)
            out_NQD = out_NQD * (lse_NQ - joint_NQ).exp_().to(q_NQD.dtype)[..., None] + extra
            lse_NQ = joint_NQ
        ctx.save_for_backward(q_NQD, k0_SGD, v0_SGD, out_NQD, lse_NQ, lse_grid, *kv)
        ctx.layout, ctx.J = layout, J
        return out_NQD

    @staticmethod
    def backward(ctx, grad_NQD):
        q_NQD, k0_SGD, v0_SGD, out_NQD, lse_NQ, lse_grid, *kv = ctx.saved_tensors
        layout, J = ctx.layout, ctx.J
        queries = layout.queries
        N, Q, D = q_NQD.shape
        G, scale = k0_SGD.shape[1], D**-0.5
        grad_NQD = grad_NQD.contiguous()
        # Cells without an anchor have a zero gradient, so their log-sum-exp only has to be finite.
        lse_cells = lse_grid.transpose(1, 2).flatten(0, 1).index_copy(0, queries.cell_N, lse_NQ)
        joint_grid = lse_cells.view(layout.rows, queries.length, Q).transpose(1, 2)
        # In float32: on rows up to about a thousand tokens the bfloat16 backward kernel takes 2 to 3 times as long.
        of_queries = [layout.grid(x.float(), queries.cell_N, queries.length) for x in (grad_NQD, q_NQD, out_NQD)]
        keys_values = [layout.grid(x.float(), layout.slot_cell_S, heads=Q) for x in (k0_SGD, v0_SGD)]
        dq_parts, dk_grid, dv_grid = [], None, None
        for part, sees in queries.parts(layout.longest, torch.float32):
            grad, q, out, joint = (x[:, :, part] for x in (*of_queries, joint_grid))
            dq, dk, dv = aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad, q, *keys_values, out, joint, 0.0, scale=scale, **sees
            )
            dq_parts.append(dq)
            dk_grid, dv_grid = (dk, dv) if dk_grid is None else (dk_grid.add_(dk), dv_grid.add_(dv))
        dq_grid = _along_places(dq_parts)
        dtype = q_NQD.dtype
        dq_NQD = layout.flat(dq_grid, queries.cell_N).to(dtype)
        dk0 = layout.flat(dk_grid, layout.slot_cell_S).unflatten(1, (G, Q // G)).sum(2).to(dtype)
        dv0 = layout.flat(dv_grid, layout.slot_cell_S).unflatten(1, (G, Q // G)).sum(2).to(dtype)
        if not J:
            return dq_NQD, dk0, dv0, None, None
        k_JNGD, v_JNGD = torch.stack(kv[:J]), torch.stack(kv[J:])
        q_NGRD, grad_NGRD = q_NQD.view(N, G, Q // G, D), grad_NQD.view(N, G, Q // G, D)
        score_JNGR = torch.einsum("ngrd,jngd->jngr", q_NGRD, k_JNGD).float().mul_(scale)
        p_JNGR = (score_JNGR - lse_NQ.view(N, G, Q // G)).exp_()
        dp_JNGR = torch.einsum("ngrd,jngd->jngr", grad_NGRD, v_JNGD).float()
        delta_NGR = (grad_NQD.float() * out_NQD.float()).sum(-1).view(N, G, Q // G)
        ds_JNGR = (p_JNGR * (dp_JNGR - delta_NGR)).mul_(scale).to(q_NQD.dtype)
        dq_NQD = dq_NQD + torch.einsum("jngr,jngd->ngrd", ds_JNGR, k_JNGD).reshape(N, Q, D)
        dk_JNGD = torch.einsum("jngr,ngrd->jngd", ds_JNGR, q_NGRD)
        dv_JNGD = torch.einsum("jngr,ngrd->jngd", p_JNGR.to(q_NQD.dtype), grad_NGRD)
        return dq_NQD, dk0, dv0, None, None, *dk_JNGD.unbind(0), *dv_JNGD.unbind(0)
