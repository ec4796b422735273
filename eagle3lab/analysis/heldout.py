"""Held-out greedy answers: from the corpus, through capture, to the simulated accept length.

Shapes: T tokens, A aux layers, H hidden, M slots with a teacher, K draft steps.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from eagle3lab.analysis.accept import PositionAcceptance, PromptCycles, accept_length, position_acceptance
from eagle3lab.data.corpus import read_corpus
from eagle3lab.data.mixed import in_turn
from eagle3lab.draft.chain import answer_slots
from eagle3lab.draft.decode import answer_hits
from eagle3lab.features.slots import spans_to_mask, teacher_slots

LEAST_ANSWER = 3  # the first token comes from the prefill; two more make one verification that can accept


@dataclass
class AnswerRow:
    """One answer with the states of the target, in the engine's own precision (a store would round to bfloat16)."""

    id: str
    set: str
    n_prompt: int
    input_ids_T: torch.Tensor
    loss_mask_T: torch.Tensor
    aux_TAH: torch.Tensor
    last_slots: torch.Tensor
    last_MH: torch.Tensor


@dataclass(frozen=True)
class Simulation:
    """The verifications of every answer, the set of each answer, and the acceptance of every slot by position."""

    cycles: list[PromptCycles]
    set_of: dict[str, str]
    positions: PositionAcceptance

    def by_set(self) -> dict[str, float]:
        """Accept length of each set's answers."""
        sets: dict[str, list[PromptCycles]] = {}
        for row in self.cycles:
            sets.setdefault(self.set_of[row.id], []).append(row)
        return {
            name: accept_length(sum(row.committed for row in rows), sum(len(row.accepted) for row in rows))
            for name, rows in sorted(sets.items())
        }


def heldout_answers(corpus: str | Path, limit: int | None = None, split: str = "heldout") -> list[dict]:
    """Answers of the target in a split, taken in turn from every set: {"id", "set", "prompt_ids", "output_ids"}.

    Of a conversation with several answers the last one is taken. Answers of fewer than three tokens are left out: no
    draft can be accepted in them. ValueError where the split holds none.
    """
    by_set: dict[str, list[dict]] = {}
    for row in read_corpus(corpus, split):
        start, end = row["loss_spans"][-1]
        if row["origin"] == "target" and end - start >= LEAST_ANSWER:
            answer = {
                "id": row["id"],
                "set": row["set"],
                "prompt_ids": list(row["input_ids"][:start]),
                "output_ids": list(row["input_ids"][start:end]),
            }
            by_set.setdefault(row["set"], []).append(answer)
    if not by_set:
        raise ValueError(
            f"{corpus} has no answer of the target of {LEAST_ANSWER} tokens or more in its split {split!r}: "
            "give a corpus with held-out answers (02_inference with limit_heldout above 0)"
        )
    return in_turn(by_set, limit)


def capture_answers(engine, answers: Iterable[dict], batch_tokens: int) -> Iterator[AnswerRow]:
    """States of the answers from `engine.capture`, as rows for `simulate`; in no particular order."""
    by_id = {answer["id"]: answer for answer in answers}
    texts = [(key, answer["prompt_ids"] + answer["output_ids"]) for key, answer in by_id.items()]
    for features in engine.capture(texts, batch_tokens):
        answer, T = by_id[features.id], len(features.input_ids_T)
        n_prompt = len(answer["prompt_ids"])
        mask_T = spans_to_mask([[n_prompt, T]], T)
        slots = teacher_slots(mask_T)
        yield AnswerRow(
            features.id,
            answer["set"],
            n_prompt,
            torch.as_tensor(features.input_ids_T),
            mask_T,
            features.aux_TAH,
            slots,
            features.last_TH[slots],
        )


def simulate(draft, rows: Iterable[AnswerRow], num_steps: int) -> Simulation:
    """Greedy chain of `num_steps` drafts along every answer; equals a served chain on the same greedy answers."""
    cycles, set_of, hits, valid = [], {}, [], []
    for row, hits_TK in answer_hits(draft, rows, num_steps):
        n_tokens = len(row.input_ids_T)
        cycles.append(PromptCycles.simulated(row.id, hits_TK.numpy(), row.n_prompt, n_tokens))
        set_of[row.id] = row.set
        slots_TK = answer_slots(row.n_prompt, n_tokens, num_steps)
        hits.append(hits_TK.numpy()[: len(slots_TK)])
        valid.append(slots_TK[: len(hits[-1])])
    return Simulation(cycles, set_of, position_acceptance(np.concatenate(hits), np.concatenate(valid)))
