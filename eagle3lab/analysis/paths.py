"""The same states and the same logits by different ways: engine against server, training code against decoding.

Shapes: T tokens, A aux layers, L target layers, H hidden, K draft steps, N slots with a chain, W draft vocabulary.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from eagle3lab.draft.batch import input_token, make_batch, rope_position
from eagle3lab.draft.ttt import unroll


@dataclass(frozen=True)
class StateError:
    """One aux layer captured twice: relative error over all rows, and the worst row."""

    layer: int
    error: float
    worst_row: str
    worst_error: float


def state_errors(left: Iterable, right: Iterable, aux_layers: Sequence[int]) -> list[StateError]:
    """Relative error |right - left| / |left| of the rows (`id`, `aux_TAH`) that both sides have, layer by layer.

    ValueError when no row is on both sides, or one has another shape there.
    """
    by_id = {row.id: row for row in left}
    pairs = [(by_id[row.id], row) for row in right if row.id in by_id]
    if not pairs:
        raise ValueError("no row was captured on both sides")
    found = []
    for a, layer in enumerate(aux_layers):
        difference, size, worst = 0.0, 0.0, ("", -1.0)
        for one, other in pairs:
            if one.aux_TAH.shape != other.aux_TAH.shape:
                raise ValueError(f"{one.id}: states {tuple(one.aux_TAH.shape)} and {tuple(other.aux_TAH.shape)}")
            own_TH = one.aux_TAH[:, a].float()
            off = float((other.aux_TAH[:, a].float() - own_TH).square().sum())
            difference, size = difference + off, size + float(own_TH.square().sum())
            error = (off / float(own_TH.square().sum())) ** 0.5
            worst = max(worst, (one.id, error), key=lambda pair: pair[1])
        found.append(StateError(layer, (difference / size) ** 0.5, *worst))
    return found


def nearest_layers(states_TAH: torch.Tensor, all_TLH: torch.Tensor) -> list[tuple[int, float]]:
    """For every captured layer the hs index (0..L-1 of `all_TLH`) it is nearest to, with the relative error there:
    where a layer is off by one, it says which one was taken."""
    found = []
    for a in range(states_TAH.shape[1]):
        own_TH = states_TAH[:, a].float()
        error_L = (all_TLH.float() - own_TH[:, None]).square().sum((0, 2)).sqrt() / own_TH.norm()
        nearest = int(error_L.argmin())
        found.append((nearest, float(error_L[nearest])))
    return found


SAME_LOGITS = 1e-2  # standard deviations that float32 and the order of sums may make, on any device


@dataclass(frozen=True)
class LogitParity:
    """Draft logits by two ways at the same slots and steps. worst: largest difference, in units of the logits' standard
    deviation; same_choice: share of places where both name the same token first."""

    slots: int
    worst: float
    same_choice: float

    @property
    def equal(self) -> bool:
        """Do they differ by rounding only."""
        return self.worst < SAME_LOGITS

    def __str__(self):
        return (
            f"{self.slots:,} slots: at most {self.worst:.1e} standard deviations apart, same first choice in "
            f"{self.same_choice:.1%}"
        )


def ways_agree(draft, rows: Iterable, num_steps: int) -> LogitParity:
    """Logits of the training code against those of the decoding code, over all rows that have a chain. ValueError
    where none has."""
    found = []
    for row in rows:
        slots, trained = training_logits(draft, row, num_steps)
        found.append(logit_parity(trained, decoding_logits(draft, row, slots.tolist(), num_steps)))
    if not found:
        raise ValueError("no row to compare logits on")
    slots = sum(one.slots for one in found)
    same = sum(one.slots * one.same_choice for one in found) / slots
    return LogitParity(slots, max(one.worst for one in found), same)


@torch.no_grad()
def training_logits(draft, row, num_steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(slots [N], logits [K, N, W]) of the training code: attention over whole rows, unrolled."""
    batch = make_batch([row], num_steps)
    return batch.position_S[batch.anchor_N], draft.logits(unroll(draft, batch))


@torch.no_grad()
def decoding_logits(draft, row, slots: Sequence[int], num_steps: int) -> torch.Tensor:
    """Logits [K, N, W] of the decoding code: slot after slot through a key/value cache, along the true tokens."""
    ids_T, T = row.input_ids_T, len(row.input_ids_T)
    cache, f_TH = draft.new_cache(T + num_steps), draft.fuse(row.aux_TAH)
    known, chains = 0, []
    for slot in slots:
        new_T = torch.arange(known, slot + 1)
        y_TH = draft.forward_cached(f_TH[new_T], ids_T[input_token(new_T, 0)], rope_position(new_T, 0), cache)
        known, chain = slot + 1, [y_TH[-1:]]
        for step in range(1, num_steps):
            token = ids_T[min(int(input_token(slot, step)), T - 1)][None]
            position = torch.tensor([rope_position(slot, step)])
            chain.append(draft.forward_cached(chain[-1], token, position, cache))
        cache.truncate(known)
        chains.append(torch.cat([draft.logits(y_1H) for y_1H in chain]))
    return torch.stack(chains, dim=1)


def logit_parity(left_KNW: torch.Tensor, right_KNW: torch.Tensor) -> LogitParity:
    """Compares two ways; ValueError when their shapes differ."""
    if left_KNW.shape != right_KNW.shape:
        raise ValueError(
            f"logits {tuple(left_KNW.shape)} and {tuple(right_KNW.shape)}: drafters of different vocabularies"
        )
    worst = float((left_KNW - right_KNW).abs().max() / left_KNW.std())
    same = float((left_KNW.argmax(-1) == right_KNW.argmax(-1)).float().mean())
    return LogitParity(left_KNW.shape[1], worst, same)
