"""What captured states must satisfy before anything is stored or trained on.

Shapes: T tokens, A aux layers, H hidden, M slots with a teacher, E entries of a top-k teacher.
"""

import torch


class NonFiniteStateError(ValueError):
    """A captured hidden state is NaN or infinite."""


def require_finite(row_id: str, aux_TAH: torch.Tensor, last_TH: torch.Tensor, aux_layers: list[int]) -> None:
    """Raises NonFiniteStateError naming the row, the layer and how many tokens are bad."""
    for a, layer in enumerate(aux_layers):
        _require_finite(row_id, f"aux layer hs[{layer}]", aux_TAH[:, a])
    _require_finite(row_id, "the last hidden state", last_TH)


def require_finite_teacher(row_id: str, log_p_ME: torch.Tensor, tail_M: torch.Tensor, dtype: torch.dtype) -> None:
    """The same for a top-k teacher (log probabilities of E entries and of the rest); dtype: the head's."""
    bad_M = ~(log_p_ME.isfinite().all(-1) & tail_M.isfinite())
    if bad_M.any():
        raise NonFiniteStateError(
            f"row {row_id!r}: the teacher's logits are NaN or infinite in {int(bad_M.sum())} of {len(bad_M)} slots; "
            f"check the target's output head (logits are computed in its dtype, {dtype}), or drop the row"
        )


def _require_finite(row_id, name, state_TH):
    bad_T = ~state_TH.isfinite().all(-1)
    if bad_T.any():
        raise NonFiniteStateError(
            f"row {row_id!r}: {name} is NaN or infinite in {int(bad_T.sum())} of {len(bad_T)} tokens; "
            "check the target's weights and dtype, or drop the row"
        )
