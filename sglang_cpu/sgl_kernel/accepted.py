"""What follows a verification: bonus tokens, cache slots of accepted tokens, inputs shifted by one.

Shapes: B requests, S accepted tokens at most per request (num_steps + 1, the root included), N flat tokens.
"""

import torch


def fill_bonus_tokens_cpu(
    accept_tokens_BS: torch.Tensor, accept_lens_B: torch.Tensor, bonus_tokens_B: torch.Tensor, stride: int
) -> None:
    """bonus_b = the last accepted token of request b.

    accept_tokens: int32 [B * S], flat or not, S = `stride`. accept_lens: int32, the bonus token included, so 1..S.
    bonus_tokens: int32, written.
    """
    last_B = torch.arange(accept_lens_B.numel()) * stride + accept_lens_B - 1
    bonus_tokens_B.copy_(accept_tokens_BS.flatten()[last_B])


def fill_accept_out_cache_loc_cpu(
    accept_index_BS: torch.Tensor, out_cache_loc_N: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """Collects the cache slots of accepted tokens at the front of `accept_out_cache_loc`, in order.

    accept_index: int32, flat or [B, S]; an index into `out_cache_loc_N` (int64), or -1 for "nothing accepted here".
    Entries of `accept_out_cache_loc` (int64) behind the accepted ones are left as they are.
    """
    accept_index = accept_index_BS.flatten().long()
    slots = out_cache_loc_N[accept_index[accept_index != -1]]
    accept_out_cache_loc[: slots.numel()] = slots


def rotate_input_ids_cpu(
    input_ids_N: torch.Tensor,
    extend_start_loc_B: torch.Tensor,
    extend_seq_lens_B: torch.Tensor,
    topk_index_B: torch.Tensor,
    select_index_B: torch.Tensor | None = None,
) -> None:
    """Shifts each request's segment of `input_ids_N` left by one and puts its new token at the end, in place.

    topk_index: [B] or [B, 1], the new tokens. select_index: places (in all of `input_ids_N`) for the new tokens
    instead of the segments' ends. Segments of length 0 are left alone.
    """
    new_tokens = topk_index_B.flatten()
    starts, lengths = extend_start_loc_B.tolist(), extend_seq_lens_B.tolist()
    for b, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        if length == 0:
            continue
        end = start + length
        input_ids_N[start : end - 1] = input_ids_N[start + 1 : end].clone()
        input_ids_N[end - 1 if select_index_B is None else int(select_index_B[b])] = new_tokens[b]
