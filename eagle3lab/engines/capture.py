"""Teacher-forced hidden states of whole rows.

Shapes: B rows, T tokens, A aux layers, H hidden.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

import torch

from eagle3lab.engines.base import ContextError, Features, check_tokens
from eagle3lab.engines.target import TargetModel
from eagle3lab.features.checks import require_finite

WINDOW_ROWS = 256  # rows looked at together so that batches hold rows of like length; bounds memory on a stream


def capture(target: TargetModel, rows: Iterable[tuple[str, list[int]]], batch_tokens: int) -> Iterator[Features]:
    """States of (id, input_ids) rows in batches of at most `batch_tokens` padded tokens (a longer row runs
    alone).

    Rows are right-padded: under causal attention a row never sees its padding, so no mask is needed.
    Tensors are on the CPU in the engine's dtype. Order is by length within a window of rows. Raises
    ContextError / ValueError naming the row, NonFiniteError naming the row and the layer.
    """
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens={batch_tokens}, at least 1 is needed")
    rows = iter(rows)
    while window := list(islice(rows, WINDOW_ROWS)):
        for row_id, ids in window:
            check_tokens(row_id, ids, target.vocab_size)
            if len(ids) > target.max_context:
                raise ContextError(
                    f"row {row_id!r} has {len(ids)} tokens, the target's context is {target.max_context}; "
                    "cut the row or leave it out",
                    row_id,
                )
        for batch in batches_by_length(window, batch_tokens):
            yield from _capture_batch(target, batch)


def batches_by_length(rows: list[tuple[str, list[int]]], batch_tokens: int) -> Iterator[list]:
    """Rows sorted by length in groups whose longest row times count is at most `batch_tokens`."""
    batch = []
    for row in sorted(rows, key=lambda row: len(row[1])):
        if batch and len(row[1]) * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _capture_batch(target, batch):
    with torch.inference_mode(), target.tapped() as states:
        last_BTH = target.prefill([ids for _, ids in batch])
    for i, (row_id, ids) in enumerate(batch):
        # clone outside inference mode: what is handed out may be trained on
        aux_TAH = target.stack_aux(states, i, len(ids)).cpu().clone()
        last_TH = last_BTH[i, : len(ids)].cpu().clone()
        require_finite(row_id, aux_TAH, last_TH, target.aux_layers)
        yield Features(row_id, torch.as_tensor(ids, dtype=torch.int64), aux_TAH, last_TH)
