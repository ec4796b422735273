"""What captured states must satisfy before anything is stored or trained on.

Shapes: T tokens, A aux layers, H hidden.
"""

import torch


class NonFiniteStateError(ValueError):
    """A captured hidden state is NaN or infinite."""


def require_finite(row_id: str, aux_TAH: torch.Tensor, last_TH: torch.Tensor, aux_layers: list[int]) -> None:
    """Raises NonFiniteStateError naming the row, the layer and how many tokens are bad."""
    for a, layer in enumerate(aux_layers):
        _require_finite(row_id, f"aux layer hs[{layer}]", aux_TAH[:, a])
    _require_finite(row_id, "the last hidden state", last_TH)


def _require_finite(row_id, name, state_TH):
    bad_T = ~state_TH.isfinite().all(-1)
    if bad_T.any():
        raise NonFiniteStateError(
            f"row {row_id!r}: {name} is NaN or infinite in {int(bad_T.sum())} of {len(bad_T)} tokens; "
            "check the target's weights and dtype, or drop the row"
        )
