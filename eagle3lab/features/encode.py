"""One row: from what was captured to what is stored, and back to what is trained on. Every way into a store, and around
one, goes through here.

Shapes: T tokens, A aux layers, H hidden, M slots with a teacher, V target vocabulary.
"""

from dataclasses import dataclass

import torch

from eagle3lab.features.checks import require_finite, require_finite_teacher
from eagle3lab.features.codec import (
    Codec,
    TopK,
    decode_states,
    decode_top,
    encode_states,
    encode_top,
    working_dtype,
)
from eagle3lab.features.slots import spans_to_mask, teacher_slots

ID_DTYPES = (torch.int64, torch.int32, torch.int16, torch.uint8)
STATE_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@dataclass
class FeatureRow:
    """One row. The teacher of slot `last_slots[j]` is `last_MH[j]`, the post-norm last hidden state, or entry j of
    `top`, a top-k distribution; the other of the two is None."""

    id: str
    split: str
    set: str
    input_ids_T: torch.Tensor  # int64
    loss_mask_T: torch.Tensor  # bool, l_t
    aux_TAH: torch.Tensor  # bfloat16; float32 where the codec keeps it
    last_slots: torch.Tensor  # int64 [M]
    last_MH: torch.Tensor | None  # as aux_TAH
    top: TopK | None = None


def encode_row(
    codec: Codec,
    row_id: str,
    input_ids,
    loss_spans: list[list[int]],
    aux_TAH: torch.Tensor,
    last_TH: torch.Tensor,
    aux_layers: list[int],
    hidden_size: int,
    head_VH: torch.Tensor | None,
) -> dict[str, torch.Tensor]:
    """The stored tensors of a row, on the CPU, holding on to nothing of the input.

    Raises ValueError naming the row for ids that are none, wrong shapes or dtypes and bad spans, NonFiniteStateError
    naming row and layer for NaN or infinity (also where a float32 value is too large for bfloat16, and a logit for the
    head's dtype).
    """
    ids_T = token_ids(row_id, input_ids)
    T, shape = ids_T.shape[0], (len(aux_layers), hidden_size)
    if tuple(aux_TAH.shape) != (T, *shape) or tuple(last_TH.shape) != (T, hidden_size):
        raise ValueError(
            f"row {row_id!r} has {T} tokens, aux states {tuple(aux_TAH.shape)} and last states "
            f"{tuple(last_TH.shape)}; expected {(T, *shape)} and {(T, hidden_size)}"
        )
    if odd := [states.dtype for states in (aux_TAH, last_TH) if states.dtype not in STATE_DTYPES]:
        raise ValueError(f"row {row_id!r} has states of {odd[0]}; floats of 16 bits or more are expected")
    try:
        slots_M = teacher_slots(spans_to_mask(loss_spans, T))
    except ValueError as error:
        raise ValueError(f"row {row_id!r}: {error}") from error
    aux_TAH = aux_TAH.detach().to(working_dtype(codec.aux))
    last_TH = last_TH.detach().to(working_dtype(codec.teacher))
    require_finite(row_id, aux_TAH, last_TH, aux_layers)
    block = {"input_ids": ids_T, **encode_states(codec.aux, "aux", aux_TAH)}
    last_MH = last_TH[slots_M.to(last_TH.device)]
    if codec.top:
        block |= encode_top(last_MH, head_VH, codec.top)
        require_finite_teacher(row_id, block["top_log_p"], block["tail_log_p"], head_VH.dtype)
    else:
        block |= encode_states(codec.teacher, "last", last_MH)
    # copy: a slice that is kept would keep the whole batch it was cut from
    return {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in block.items()}


def token_ids(row_id: str, input_ids) -> torch.Tensor:
    """Token ids as stored, int32 [T]. Raises ValueError naming the row for anything that would be stored as others."""
    ids_T = torch.as_tensor(input_ids)
    if ids_T.dim() != 1 or (ids_T.numel() and ids_T.dtype not in ID_DTYPES):
        raise ValueError(
            f"row {row_id!r}: token ids are whole numbers in one dimension, not {ids_T.dtype} of shape "
            f"{tuple(ids_T.shape)}"
        )
    if ids_T.numel() and not 0 <= int(ids_T.min()) <= int(ids_T.max()) < 1 << 31:
        raise ValueError(f"row {row_id!r}: token ids from {int(ids_T.min())} to {int(ids_T.max())} are none of a model")
    return ids_T.to(torch.int32)


def decode_row(codec: Codec, entry: dict, block: dict[str, torch.Tensor]) -> FeatureRow:
    """The row of an index line (id, split, set, n, loss_spans) and its stored tensors."""
    mask_T = spans_to_mask(entry["loss_spans"], entry["n"])
    return FeatureRow(
        entry["id"],
        entry["split"],
        entry["set"],
        block["input_ids"].long(),
        mask_T,
        decode_states(codec.aux, "aux", block),
        teacher_slots(mask_T),
        None if codec.top else decode_states(codec.teacher, "last", block),
        decode_top(block) if codec.top else None,
    )
