"""The greedy draft chain along an answer: slot conventions and the walk that decoding takes.

Shapes: T token slots of one row, K draft steps (num_steps).

Conventions (each is one named function):
    slot t         holds the feature of x_t and the embedding of x_{t+1}; at step i it predicts x_{t+2+i}.
    first token    the one after the prompt comes from the target's prefill: it is not a committed token of a
                   verification, so an answer of n tokens has n - 1 committed tokens.
    accepted       a verification commits accepted + 1 tokens. Where the end of the answer cuts the last one,
                   the last committed token counts as its bonus token, whoever proposed it.
"""

import numpy as np

from eagle3lab.draft.batch import predicted_token


def first_slot(n_prompt: int) -> int:
    """Slot of the first draft chain: x_{n_prompt} (from the prefill) is its x_{t+1}."""
    if n_prompt < 1:
        raise ValueError(f"n_prompt={n_prompt}: a prompt has at least one token")
    return n_prompt - 1


def leading_hits(hits_TK) -> np.ndarray:
    """Drafts of each slot's chain before its first wrong one, int [T]."""
    return np.cumprod(bool_matrix(hits_TK), axis=1, dtype=np.int64).sum(axis=1)


def walk(hits_TK, first_slot: int, n_tokens: int, num_steps: int | None = None) -> list[int]:
    """Drafts accepted by each verification of the greedy chain that would have written x_0 .. x_{n_tokens-1}.

    hits_TK    bool [T, K]: at slot t the drafter's step-i argmax equals x_{t+2+i} (False where it is not in
               the draft vocabulary). Entries that predict a token past the end are not read.
    first_slot slot of the first chain, `first_slot(n_prompt)`.
    n_tokens   tokens of the row, prompt included.
    num_steps  use only the first steps of the chain (default: all K).

    After a verification that accepts a drafts the walk jumps a + 1 slots. On greedy answers this is what a
    served
    greedy chain does, verification for verification.
    """
    hits_TK = bool_matrix(hits_TK)
    if num_steps is None:
        num_steps = hits_TK.shape[1]
    if not 1 <= num_steps <= hits_TK.shape[1]:
        raise ValueError(f"num_steps={num_steps}, but hits hold steps 1..{hits_TK.shape[1]}")
    if first_slot < 0 or n_tokens < predicted_token(first_slot, 0):
        raise ValueError(f"first_slot={first_slot} and n_tokens={n_tokens}: no token after the prompt")
    slots_needed = n_tokens - 2  # the last slot whose first prediction exists is n_tokens - 3
    if hits_TK.shape[0] < slots_needed:
        raise ValueError(f"hits cover {hits_TK.shape[0]} slots; {n_tokens} tokens need {slots_needed}")
    leading_T = leading_hits(hits_TK[:, :num_steps])
    accepted, slot = [], first_slot
    while (remaining := n_tokens - predicted_token(slot, 0)) > 0:
        here = min(int(leading_T[slot]), remaining - 1)
        accepted.append(here)
        slot += here + 1
    return accepted


def answer_slots(n_prompt: int, n_tokens: int, num_steps: int) -> np.ndarray:
    """Predictions inside the answer, bool [n_tokens, num_steps]: from the first chain to the last token."""
    slot_T1 = np.arange(n_tokens)[:, None]
    return (slot_T1 >= first_slot(n_prompt)) & (predicted_token(slot_T1, np.arange(num_steps)) < n_tokens)


def chain_draft_tokens(num_steps: int) -> int:
    """num_draft_tokens of a chain: its drafts and the last committed token, which is verified along."""
    return num_steps + 1


def bool_matrix(values) -> np.ndarray:
    """The values as a bool array [slots, steps]; ValueError when they are something else."""
    matrix = np.asarray(values)
    if matrix.ndim != 2 or matrix.dtype != np.bool_:
        raise ValueError(f"expected a bool matrix [slots, steps], got {matrix.dtype} {matrix.shape}")
    return matrix
