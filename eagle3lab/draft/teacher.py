"""What the drafter imitates: the target's distribution at each teacher position, over the draft vocabulary.

Shapes: P teacher positions, C positions of one chunk, E entries of a top-k teacher, H hidden, W draft vocabulary,
V target vocabulary. p is always renormalised over the draft vocabulary.
"""

from dataclasses import dataclass

import torch

from eagle3lab.features.codec import TopK

LEAST_TAIL = 1e-20  # keeps 0 / 0 away where the entries hold all the mass and none of it is in the draft vocabulary


@dataclass
class StateTeacher:
    """softmax(head_WH @ last_PH): post-norm last hidden states, the target's output rows of the draft vocabulary."""

    last_PH: torch.Tensor
    head_WH: torch.Tensor

    def __len__(self) -> int:
        return self.last_PH.shape[0]

    def probabilities(self, start: int, stop: int) -> torch.Tensor:
        """p of the positions start..stop, [C, W] in the states' dtype."""
        return (self.last_PH[start:stop] @ self.head_WH.T).softmax(-1)


@dataclass
class TopKTeacher:
    """The stored entries, and the tail's mass spread evenly over all other ids of the target's vocabulary.

    Entries outside the draft vocabulary drop out, as do the tail's ids outside it; what is left is renormalised. So a
    position none of whose entries the draft vocabulary holds teaches the even distribution.
    """

    top: TopK
    draft_id_V: torch.Tensor  # draft id of every target id, -1 outside
    draft_vocab_size: int
    dtype: torch.dtype

    def __len__(self) -> int:
        return self.top.ids_ME.shape[0]

    def probabilities(self, start: int, stop: int) -> torch.Tensor:
        """p of the positions start..stop, [C, W] in `dtype`."""
        ids_CE, log_p_CE, tail_C = (tensor[start:stop] for tensor in self.top)
        draft_CE, others = self.draft_id_V[ids_CE], self.draft_id_V.shape[0] - ids_CE.shape[1]
        p_CW = (tail_C.exp().clamp(min=LEAST_TAIL) / others)[:, None].repeat(1, self.draft_vocab_size + 1)
        p_CW.scatter_(1, torch.where(draft_CE < 0, self.draft_vocab_size, draft_CE), log_p_CE.exp())
        p_CW = p_CW[:, :-1]  # the last column took what is outside
        return (p_CW / p_CW.sum(-1, keepdim=True)).to(self.dtype)
