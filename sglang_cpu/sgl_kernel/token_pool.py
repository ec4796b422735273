"""The token pool: which cache slot holds which token of which request.

`req_to_token_PC` (int32) has a row per pool entry and a column per position; its values are cache slots. A request of
a batch is row `req_pool_indices[b]` of it.

Shapes: B requests of the batch, P rows of the pool, C its columns (the longest context), N cache slots in a flat list.
Every operation takes `pool_len` = C because the compiled kernels, which see bare memory, need it.
"""

import torch


def assign_req_to_token_pool_cpu(
    req_pool_indices_B: torch.Tensor,
    req_to_token_PC: torch.Tensor,
    start_B: torch.Tensor,
    end_B: torch.Tensor,
    out_cache_loc_N: torch.Tensor,
    pool_len: int,
) -> None:
    """Writes the slots of `out_cache_loc_N`, in order, into columns start..end of each request's row.

    start, end: int, end exclusive. out_cache_loc: int64, N >= sum(end - start).
    """
    rows, columns = _cells(req_pool_indices_B, start_B, end_B)
    req_to_token_PC[rows, columns] = out_cache_loc_N[: rows.numel()].to(req_to_token_PC.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices_B: torch.Tensor,
    req_to_token_PC: torch.Tensor,
    start_B: torch.Tensor,
    end_B: torch.Tensor,
    out_cache_loc_N: torch.Tensor,
    pool_len: int,
) -> None:
    """The way back: reads columns start..end of each request's row into `out_cache_loc_N`, one request after the other.

    Entries of `out_cache_loc_N` beyond sum(end - start) are left as they are.
    """
    rows, columns = _cells(req_pool_indices_B, start_B, end_B)
    out_cache_loc_N[: rows.numel()] = req_to_token_PC[rows, columns].to(out_cache_loc_N.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices_B: torch.Tensor,
    req_to_token_PC: torch.Tensor,
    seq_lens_B: torch.Tensor,
    out_cache_loc_N: torch.Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Reads topk * num_steps slots of each request, from column seq_len on, into `out_cache_loc_N`.

    N = B * topk * num_steps. Branch k of a request owns the slots k * num_steps .. (k + 1) * num_steps of its share.
    """
    columns_BX = seq_lens_B.long()[:, None] + torch.arange(topk * num_steps)
    slots_BX = req_to_token_PC[req_pool_indices_B.long()[:, None], columns_BX]
    out_cache_loc_N.copy_(slots_BX.flatten())


def build_draft_decode_metadata_cpu(
    req_to_token_PC: torch.Tensor,
    req_pool_indices_B: torch.Tensor,
    seq_lens_B: torch.Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> torch.Tensor:
    """A token pool in which every branch of a draft is a request of its own.

    Returns [B * topk, max(seq_lens) + num_steps] of the pool's dtype. Row b * topk + k: the request's prefix (seq_len
    slots), then the num_steps slots of branch k. What follows in rows of shorter requests is not meant to be read.
    """
    seq_lens_B11 = seq_lens_B.long()[:, None, None]
    branches_K1 = torch.arange(topk)[:, None]
    longest = int(seq_lens_B.max()) if seq_lens_B.numel() else 0
    columns_W = torch.arange(longest + num_steps)
    # behind the prefix, branch k's own slots start k * num_steps further on
    columns_BKW = columns_W + (columns_W >= seq_lens_B11) * branches_K1 * num_steps
    rows_B11 = req_pool_indices_B.long()[:, None, None]
    slots_BKW = req_to_token_PC[rows_B11, columns_BKW.clamp_(max=pool_len - 1)]
    return slots_BKW.flatten(0, 1)


def _cells(
    req_pool_indices_B: torch.Tensor, start_B: torch.Tensor, end_B: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and columns (int64 [sum(end - start)]) of the cells start..end of each request, one after the other."""
    start_B = start_B.long()
    lengths_B = end_B.long() - start_B
    before_B = lengths_B.cumsum(0) - lengths_B  # cells of the requests before this one
    columns = torch.arange(int(lengths_B.sum())) + (start_B - before_B).repeat_interleave(lengths_B)
    return req_pool_indices_B.long().repeat_interleave(lengths_B), columns
