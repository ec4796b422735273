"""Which slots of a row need what, as named functions.

Shapes: T tokens, M slots with a teacher.
"""

import torch


def spans_to_mask(loss_spans: list[list[int]], length: int) -> torch.Tensor:
    """loss_spans [[start, end), ...] -> l_t as bool [T]. Raises ValueError for a span outside 0..T, empty
    or overlapping."""
    mask_T = torch.zeros(length, dtype=torch.bool)
    previous_end = 0
    for start, end in loss_spans:
        if not previous_end <= start < end <= length:
            raise ValueError(f"loss span [{start}, {end}) is empty, overlaps the one before, or leaves 0..{length}")
        mask_T[start:end] = True
        previous_end = end
    return mask_T


def teacher_slots(loss_mask_T: torch.Tensor) -> torch.Tensor:
    """Slots whose last hidden state is a teacher: t with l_{t+1} = 1, the slot whose next token was
    generated. int64 [M]."""
    return loss_mask_T[1:].nonzero().squeeze(1)
