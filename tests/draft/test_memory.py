"""Memory of a training step: linear in tokens and in TTT steps, and without the product of tokens and vocabulary.

Counted are the bytes of the tensors that live at one time, forward and backward: the same numbers on every machine.
"""

import pytest
import torch

from benchmarks.live_bytes import LiveBytes
from benchmarks.usual import PaddedBatch, usual_loss
from eagle3lab.draft import attention
from eagle3lab.draft.batch import make_batch
from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.ttt import CHUNK, ttt_loss
from tests.draft.samples import H, make_draft, make_row

IDS, LENGTH, STEPS = 2048, 64, 3


def ours(rows, vocabulary=IDS // 4, steps=STEPS, length=LENGTH, trained=LENGTH - 8):
    """Peak bytes of loss and gradient of as many rows, of which the last tokens are trained."""
    draft, head_VH = make_draft(vocab_size=IDS, draft_vocab_size=vocabulary), torch.randn(IDS, H)
    draft_id_V = torch.full((IDS,), -1)
    draft_id_V[draft.target_ids_W] = torch.arange(vocabulary)
    batch = make_batch([make_row(i, length, [(length - trained, length)]) for i in range(rows)], steps)
    assert len(batch.last_PH) > 2 * CHUNK
    recipe, mean_K = Recipe(ttt_steps=steps, drop_oov=False), batch.weight_KN.sum(1)
    with LiveBytes() as memory:
        loss, _ = ttt_loss(draft, batch, head_VH[draft.target_ids_W], draft_id_V, recipe, mean_K)
        loss.backward()
    assert draft.fc.weight.grad.abs().sum() > 0
    return memory.peak


def usual(rows, vocabulary):
    """The same of the usual implementation."""
    draft, head_VH = make_draft(vocab_size=IDS, draft_vocab_size=vocabulary), torch.randn(IDS, H)
    batch = PaddedBatch.of([make_row(i, LENGTH, [(8, LENGTH)]) for i in range(rows)], STEPS, "strict")
    recipe = Recipe(ttt_steps=STEPS, drop_oov=False)
    with LiveBytes() as memory:
        usual_loss(draft, batch, head_VH, torch.arange(IDS), recipe).backward()
    return memory.peak


def test_bytes_are_counted_by_hand():
    outside = torch.zeros(1000)
    with LiveBytes() as memory:
        one = outside + 1  # 4000
        view = one[:10].view(2, 5)
        two = torch.cat([one, one])  # 8000 more
        del one
        assert memory.peak == 12_000
        del view  # now the first is free
        outside.mul_(2)
        three = two.double()  # 16000 more
        assert memory.peak == 8_000 + 16_000
        del two, three
        torch.zeros(100)
    assert memory.peak == 24_000


def test_memory_is_linear_in_tokens():
    few, twice, four_times = ours(16), ours(32), ours(64)
    assert four_times - twice == pytest.approx(2 * (twice - few), rel=0.02)


@pytest.mark.parametrize("share", [1 / 8, 7 / 8], ids=["agent", "chat"])
def test_a_token_of_a_long_row_takes_no_more_memory(share, monkeypatch):
    """Attention keeps nothing of slots x slots, whether few of them are trained or many."""
    monkeypatch.setattr(attention, "MASK_CELLS", 2**14)
    short, long = (ours(8192 // n, length=n, trained=int(share * n)) for n in (512, 4096))
    assert long <= 1.05 * short


def test_a_token_takes_no_more_memory_with_a_larger_vocabulary():
    small, large = (ours(32, vocabulary) - ours(16, vocabulary) for vocabulary in (IDS // 4, IDS))
    assert large == pytest.approx(small, rel=0.02)
    small, large = (usual(8, vocabulary) - usual(4, vocabulary) for vocabulary in (IDS // 4, IDS))
    assert large > 2 * small  # what this test is able to see


def test_memory_is_at_most_linear_in_ttt_steps():
    one, three, six = (ours(16, steps=steps) for steps in (1, 3, 6))
    assert one < three <= 3 * one and six <= 2 * three
