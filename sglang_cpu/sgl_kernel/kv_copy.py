"""Moving cache rows: the path that a tree's verification accepted becomes contiguous.

Shapes: L buffers (keys and values of every layer), N rows to move.
"""

import ctypes

import torch


def copy_all_layer_kv_cache_cpu(
    data_ptrs_L: torch.Tensor, strides_L: torch.Tensor, tgt_loc_N: torch.Tensor, src_loc_N: torch.Tensor
) -> None:
    """In every buffer, copies row src_n to row tgt_n; all rows are read before the first is written.

    data_ptrs: uint64, addresses of contiguous buffers. strides: int64, bytes per row. Locations: int64; a target that
    occurs twice must have the same source, otherwise it receives either.
    """
    if tgt_loc_N.numel() == 0:
        return
    tgt_loc_N, src_loc_N = tgt_loc_N.long(), src_loc_N.long()
    rows = 1 + max(int(tgt_loc_N.max()), int(src_loc_N.max()))
    for address, row_bytes in zip(data_ptrs_L.tolist(), strides_L.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (rows * row_bytes)).from_address(address)
        buffer = torch.frombuffer(memory, dtype=torch.uint8).view(rows, row_bytes)
        buffer.index_copy_(0, tgt_loc_N, buffer.index_select(0, src_loc_N))
