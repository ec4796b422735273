"""The baseline trains the same thing: its loss and gradients are those of the package, on the same rows."""

import pytest
import torch

from benchmarks.usual import PaddedBatch, UsualTraining, usual_loss
from eagle3lab.draft.batch import make_batch
from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.ttt import ttt_loss
from eagle3lab.draft.vocab import VocabMap
from tests.draft.samples import H, V, make_draft, make_row


@pytest.fixture
def head():
    return torch.randn(V, H, generator=torch.Generator().manual_seed(9))


@pytest.fixture
def rows():
    return [make_row(1, 9, [(3, 9)]), make_row(2, 14, [(2, 6), (8, 14)]), make_row(3, 7, [(1, 7)])]


@pytest.mark.parametrize("kind", ["strict", "shifted"])
@pytest.mark.parametrize("drop_oov", [True, False])
def test_the_same_loss_and_gradients(rows, head, kind, drop_oov):
    recipe = Recipe(ttt_steps=4, loss_mask_kind=kind, drop_oov=drop_oov, compute_dtype="float32")
    drafts = [make_draft(), make_draft()]
    draft_id_V = VocabMap(drafts[0].target_ids_W, drafts[0].config.vocab_size).draft_ids()
    slots = len(rows) * max(len(row.input_ids_T) for row in rows)
    padded = usual_loss(drafts[0], PaddedBatch.of(rows, 4, kind), head, draft_id_V, recipe)
    teacher_WH, mean_K = head[drafts[1].target_ids_W], torch.full((4,), float(slots))
    packed, _ = ttt_loss(drafts[1], make_batch(rows, 4, kind), teacher_WH, draft_id_V, recipe, mean_K)
    assert padded.item() == pytest.approx(packed.item(), rel=1e-5) and packed.item() > 0
    padded.backward()
    packed.backward()
    for (name, one), other in zip(drafts[0].named_parameters(), drafts[1].parameters(), strict=True):
        assert (one.grad - other.grad).norm() <= 1e-4 * other.grad.norm(), name


def test_it_learns(rows, head):
    draft = make_draft()
    draft_id_V = VocabMap(draft.target_ids_W, draft.config.vocab_size).draft_ids()
    training = UsualTraining(draft, head, draft_id_V, Recipe(ttt_steps=3))
    batch = PaddedBatch.of(rows, 3, "strict")
    losses = [training.step(batch) for _ in range(20)]
    assert losses[-1] < losses[0]
