"""Random feature rows of SmolLM2-135M's width, shaped like those people train on.

`chat`: a question and its answer, as profile demo has them; most tokens are the target's own. `agent`: instructions and
an issue, then short turns between long tool outputs, as in SWE-agent's trajectories (three of its demonstrations:
1,900 to 3,300 tokens, 8 to 11 % of them the model's); few tokens are the target's own.
"""

from types import SimpleNamespace

import torch

from eagle3lab.features.slots import teacher_slots

HIDDEN, VOCAB, LAYERS = 576, 49152, 30


def chat_spans(generator: torch.Generator) -> list[tuple[int, int]]:
    """30 to 140 prompt tokens, four of five answers cut at 112; the row ends with the answer."""
    longer, cut, shorter = torch.rand(3, generator=generator).tolist()
    prompt, answer = 30 + int(110 * longer**3), 112 if cut < 0.8 else 16 + int(96 * shorter)
    return [(prompt, prompt + answer)]


def agent_spans(generator: torch.Generator) -> list[tuple[int, int]]:
    """1,100 to 2,100 tokens of instructions, then five turns of 24 to 77 tokens between outputs of 40 to 440."""
    spans, T = [], 0
    for turn in range(5):
        read, wrote = torch.rand(2, generator=generator).tolist()
        start = T + (1100 + int(1000 * read) if turn == 0 else 40 + int(400 * read**3))
        T = start + 24 + int(54 * wrote)
        spans.append((start, T))
    return spans


KINDS = {"chat": chat_spans, "agent": agent_spans}


def row(seed: int, draft_vocab_size: int, kind: str = "chat"):
    """A random feature row of a kind; 95 of 100 tokens are in the draft vocabulary (its first ids)."""
    generator = torch.Generator().manual_seed(seed)
    spans = KINDS[kind](generator)
    T = spans[-1][1]
    mask_T = torch.zeros(T, dtype=torch.bool)
    for start, end in spans:
        mask_T[start:end] = True
    slots = teacher_slots(mask_T)
    named_T = torch.rand(T, generator=generator) < 0.95
    inside_T = torch.randint(0, draft_vocab_size, (T,), generator=generator)
    outside_T = torch.randint(draft_vocab_size, VOCAB, (T,), generator=generator)
    return SimpleNamespace(
        input_ids_T=torch.where(named_T, inside_T, outside_T),
        loss_mask_T=mask_T,
        aux_TAH=torch.randn(T, 3, HIDDEN, generator=generator).bfloat16(),
        last_slots=slots,
        last_MH=torch.randn(slots.numel(), HIDDEN, generator=generator).bfloat16(),
    )
