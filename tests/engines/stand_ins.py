"""Drafts that honour the interface of draft/model.py without being a network.

The "feature" and the block output y carry the position in their first column: slot t predicts x_{t+2}.
"""

import torch

from tests.tiny import VOCAB


class StandInCache:
    def __init__(self, max_tokens):
        self.max_tokens, self.positions = max_tokens, []

    def truncate(self, length):
        assert 0 <= length <= len(self.positions)
        del self.positions[length:]


class OracleDraft:
    """Knows the whole sequence; `wrong` are the token positions it gets wrong. It checks what it is
    handed."""

    def __init__(self, sequence, aux_TAH, wrong=()):
        self.sequence, self.aux_TAH, self.wrong = sequence, aux_TAH, {*wrong}
        self.true_slots, self.chain_slots, self.fused = [], 0, 0

    def new_cache(self, max_tokens):
        return StandInCache(max_tokens)

    def fuse(self, aux_TAH):
        first, count = self.fused, aux_TAH.shape[0]
        torch.testing.assert_close(aux_TAH, self.aux_TAH[first : first + count], atol=5e-4, rtol=1e-4)
        self.fused += count
        return torch.full((count, 4), -1.0)  # marks a true feature

    def forward_cached(self, f_TH, next_ids_T, positions_T, cache):
        assert f_TH.shape[0] == next_ids_T.shape[0] == positions_T.shape[0]
        for feature, next_id, position in zip(f_TH, next_ids_T.tolist(), positions_T.tolist(), strict=True):
            assert position == len(cache.positions) < cache.max_tokens
            cache.positions.append(position)
            if feature[0] == -1:
                self.true_slots.append(position)
                assert next_id == self.sequence[position + 1]
            else:
                self.chain_slots += 1
                assert feature[0] == position - 1  # y of the slot before
        y_TH = torch.zeros(f_TH.shape[0], 4)
        y_TH[:, 0] = positions_T
        return y_TH

    def predict(self, y_TH):
        return torch.tensor([self.token(int(position) + 2) for position in y_TH[:, 0]])

    def token(self, position):
        truth = self.sequence[position] if position < len(self.sequence) else 0
        return (truth + 1) % VOCAB if position in self.wrong else truth


class RandomDraft:
    """Guesses; its accepted length is nearly nothing."""

    def __init__(self, seed=0):
        self.generator = torch.Generator().manual_seed(seed)

    def new_cache(self, max_tokens):
        return StandInCache(max_tokens)

    def fuse(self, aux_TAH):
        return aux_TAH.flatten(1)

    def forward_cached(self, f_TH, next_ids_T, positions_T, cache):
        cache.positions += positions_T.tolist()
        return f_TH

    def predict(self, y_TH):
        return torch.randint(VOCAB, (y_TH.shape[0],), generator=self.generator)
