"""What the drafter would propose along known answers: the offline half of the accept length.

Shapes: K draft steps, N anchors of a batch, T tokens of a row.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

import torch

from eagle3lab.draft.batch import make_batch, slot_mask
from eagle3lab.draft.chain import first_slot, walk
from eagle3lab.draft.ttt import unroll


@torch.no_grad()
def answer_hits(draft, rows: Iterable, num_steps: int, rows_at_once: int = 8) -> Iterator[tuple[object, torch.Tensor]]:
    """Yields (row, hits_TK) per row: at slot t, is the draft argmax of step i the token x_{t+2+i} of the answer.

    bool [T, num_steps], False where nothing is predicted (prompt slots, past the end). An id outside the draft
    vocabulary is never hit. Teacher-forced as in training, which for a greedy answer is what serving does: the chain
    is only continued while its drafts are right. Computed in the drafter's own dtype.
    Rows whose answer has fewer than two tokens give all-False hits.
    """
    rows = iter(rows)
    while chunk := list(islice(rows, rows_at_once)):
        trained = [row for row in chunk if bool(slot_mask(row.loss_mask_T, 0, "strict").any())]
        if trained:
            batch = make_batch(trained, num_steps).to(draft.target_ids_W.device)
            predicted_KN = torch.stack(
                [draft.target_ids_W[draft.logits(y_NH).argmax(-1)] for y_NH in unroll(draft, batch)]
            )
            hit_KN = ((predicted_KN == batch.label_ids_KN) & (batch.weight_KN > 0)).cpu()
            row_N, position_N = batch.row_S[batch.anchor_N].cpu(), batch.position_S[batch.anchor_N].cpu()
        for row in chunk:
            hits_TK = torch.zeros(row.input_ids_T.shape[0], num_steps, dtype=torch.bool)
            if any(row is other for other in trained):
                of_row = row_N == next(i for i, other in enumerate(trained) if other is row)
                hits_TK[position_N[of_row]] = hit_KN[:, of_row].T
            yield row, hits_TK


def simulated_commits(draft, rows: Iterable, num_steps: int) -> tuple[int, int]:
    """Tokens committed and verifications of a greedy chain of `num_steps` drafts along every answer of the rows.

    committed / verifications is the accept length, bonus included. Every run of generated tokens is an answer; those
    of fewer than two tokens have no verification.
    """
    committed = verifications = 0
    for row, hits_TK in answer_hits(draft, rows, num_steps):
        for start, end in answers(row.loss_mask_T):
            accepted = walk(hits_TK.numpy(), first_slot(start), end) if start and end - start > 1 else []
            committed += sum(accepted) + len(accepted)
            verifications += len(accepted)
    return committed, verifications


def answers(loss_mask_T: torch.Tensor) -> list[tuple[int, int]]:
    """Runs of generated tokens, [start, end)."""
    edge_T1 = torch.nn.functional.pad(loss_mask_T.int(), (1, 1)).diff()
    starts, ends = (edge_T1 == 1).nonzero().flatten(), (edge_T1 == -1).nonzero().flatten()
    return list(zip(starts.tolist(), ends.tolist(), strict=True))
