"""Held-out greedy answers: from the corpus, through capture or a feature store, to the simulated accept length.

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
    """One answer with the states of the target: in the engine's own precision, or rounded as a store keeps them.
    `last_MH` is None where the store keeps a top-k teacher in its place."""

    id: str
    set: str
    n_prompt: int
    input_ids_T: torch.Tensor
    loss_mask_T: torch.Tensor
    aux_TAH: torch.Tensor
    last_slots: torch.Tensor
    last_MH: torch.Tensor | None


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

    Of a conversation with several answers the last one is taken. Answers that came with the data are left out: nobody
    knows whether they are greedy, and what is served may differ from them. So are answers of fewer than three tokens:
    no draft can be accepted in them. ValueError where the split holds none.
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
        answer, ids_T = by_id[features.id], torch.as_tensor(features.input_ids_T)
        n_prompt, mask_T, slots = _slots(answer, len(ids_T))
        states = features.aux_TAH, slots, features.last_TH[slots]
        yield AnswerRow(features.id, answer["set"], n_prompt, ids_T, mask_T, *states)


def stored_answers(features, answers: Iterable[dict]) -> Iterator[AnswerRow]:
    """The same rows from what extraction kept (a FeatureStore, or LiveFeatures): no target is run, and the states are
    rounded as the store's codec does. ValueError names an answer whose states it does not hold."""
    for answer in answers:
        wanted = answer["prompt_ids"] + answer["output_ids"]
        row = features.row(answer["id"]) if answer["id"] in features.ids else None
        n_prompt, mask_T, slots = _slots(answer, len(wanted))
        kept_M = None if row is None else torch.isin(row.last_slots, slots)
        if row is None or row.input_ids_T[: len(wanted)].tolist() != wanted or int(kept_M.sum()) != len(slots):
            raise ValueError(f"the features hold no states of the answer {answer['id']!r}: they are of another corpus")
        last_MH = None if row.last_MH is None else row.last_MH[kept_M]
        aux_TAH = row.aux_TAH[: len(wanted)]
        ids_T = row.input_ids_T[: len(wanted)]
        yield AnswerRow(row.id, answer["set"], n_prompt, ids_T, mask_T, aux_TAH, slots, last_MH)


def _slots(answer: dict, n_tokens: int) -> tuple[int, torch.Tensor, torch.Tensor]:
    """(n_prompt, loss mask [T], teacher slots [M]) of an answer."""
    n_prompt = len(answer["prompt_ids"])
    mask_T = spans_to_mask([[n_prompt, n_tokens]], n_tokens)
    return n_prompt, mask_T, teacher_slots(mask_T)


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
