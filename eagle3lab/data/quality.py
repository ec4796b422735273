"""What is wrong with answers: cut by max_tokens, empty, a refusal, or stuck in a loop; and what to do with cut ones.

An answer is a mapping with `output_ids` (list or int array), `finish_reason` ("stop": the last id is the end token;
"length": cut) and, for tables, `id` and `set`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

REFUSALS = (
    "i'm sorry, but", "i am sorry, but", "i apologize, but", "sorry, but i", "sorry, i can't", "sorry, i cannot",
    "i can't help", "i cannot help", "i can't assist", "i cannot assist", "i can't provide", "i cannot provide",
    "i can't fulfill", "i cannot fulfill", "i can't comply", "i cannot comply", "i'm unable to", "i am unable to",
    "i'm not able to", "i am not able to", "i won't be able to", "i must decline", "as an ai",
    "抱歉", "对不起", "我无法", "我不能",
)  # fmt: skip
OPENING = 160  # characters of the answer proper in which a phrase makes it a refusal
LONGEST_PERIOD, LEAST_ROUNDS, LEAST_TOKENS = 512, 4, 32  # of a loop
EXAMPLES = 5  # ids kept a set and kind
KINDS = ("cut", "empty", "refusal", "loop")
LOOPS_BECOME = {  # by cut_answers: what `treat_cut` makes of an answer that max_tokens cut in a loop
    "keep_prefix": "kept to the end of the loop's first round",
    "drop": "left out, as every cut answer",
    "mark": "kept whole, for the target loops like this when it is served, too, and marked in finish_reason",
}

_REFUSES = re.compile("|".join(re.escape(phrase) + (r"\b" if phrase.isascii() else "") for phrase in REFUSALS))
_THOUGHT_END = re.compile(r".*</think>|.*<\|end_of_thought\|>", re.DOTALL)


@dataclass(frozen=True)
class Loop:
    """A closing loop: from token `start` to the end the answer repeats its last `period` tokens."""

    start: int
    period: int


@dataclass
class SetQuality:
    """One set: `answers` in all, how many of them are `cut`, `empty`, a `refusal` or end in a `loop` (one may be
    several), `looped_tokens` of `tokens` inside such loops, and ids of the first few of each kind."""

    set: str
    answers: int = 0
    tokens: int = 0
    cut: int = 0
    empty: int = 0
    refusal: int = 0
    loop: int = 0
    looped_tokens: int = 0
    examples: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    def shares(self) -> dict[str, float]:
        """Share of the set's answers, by kind."""
        return {kind: getattr(self, kind) / self.answers for kind in KINDS}


def is_refusal(text: str) -> bool:
    """Whether an answer opens with one of `REFUSALS`, in any case; what it thought before (`</think>`) is left out.

    A phrase list finds the usual wording and nothing else: read some of what it finds before trusting the share.
    """
    opening = _THOUGHT_END.sub("", text, count=1).strip()[:OPENING].casefold().replace("’", "'")
    return _REFUSES.search(opening) is not None


def closing_loop(ids: Sequence[int]) -> Loop | None:
    """The loop that an answer ends in: its last tokens repeat `LEAST_ROUNDS` times or more, over `LEAST_TOKENS` or
    more, with a period of at most `LONGEST_PERIOD`. The shortest period counts. Pass the ids without the end token.
    """
    ids_T = np.asarray(ids)
    if len(ids_T) < LEAST_TOKENS:
        return None
    tail = ids_T[-LONGEST_PERIOD - 1 : -1]
    for place in np.flatnonzero(tail == ids_T[-1])[::-1]:
        period = len(tail) - int(place)
        least = max(LEAST_ROUNDS * period, LEAST_TOKENS)
        if least > len(ids_T):
            return None
        if np.array_equal(ids_T[-least:-period], ids_T[len(ids_T) - least + period :]):
            differs = np.flatnonzero(ids_T[:-period] != ids_T[period:])
            return Loop(int(differs[-1]) + 1 if len(differs) else 0, period)
    return None


def loop_of(answer: Mapping[str, Any]) -> Loop | None:
    """The closing loop of an answer, its end token left out."""
    ids = answer["output_ids"]
    return closing_loop(ids if answer["finish_reason"] == "length" else ids[:-1])


def quality_by_set(answers: Iterable[Mapping[str, Any]], decode: Callable[[list[int]], str]) -> list[SetQuality]:
    """Counts per set, in the order in which sets appear; answers are streamed. `decode`: ids to text, special tokens
    left out."""
    sets: dict[str, SetQuality] = {}
    for answer in answers:
        one = sets.setdefault(answer["set"], SetQuality(answer["set"]))
        ids = answer["output_ids"]
        one.answers += 1
        one.tokens += len(ids)
        text = decode(list(ids))
        loop = loop_of(answer)
        if loop:
            one.looped_tokens += len(ids) - loop.start
        found = {
            "cut": answer["finish_reason"] == "length",
            "empty": not text.strip(),
            "refusal": is_refusal(text),
            "loop": loop is not None,
        }
        for kind in KINDS:
            if found[kind]:
                setattr(one, kind, getattr(one, kind) + 1)
                if len(one.examples[kind]) < EXAMPLES:
                    one.examples[kind].append(answer["id"])
    return list(sets.values())


def treat_cut(
    answers: Iterable[Mapping[str, Any]], cut_answers: Literal["keep_prefix", "drop", "mark"]
) -> Iterator[Mapping[str, Any]]:
    """Answers as they go into the corpus; those with finish_reason "length" are treated, the others left as they are.

    keep_prefix   kept; one that ends in a loop is kept to the end of the loop's first round: the rest teaches nothing,
                  and an answer that looped to a max_tokens of 10240 weighs as much as ten others
    drop          left out
    mark          kept whole; finish_reason becomes "loop" where it ends in one, else stays "length"

    Raises ValueError for another word.
    """
    if cut_answers not in ("keep_prefix", "drop", "mark"):
        raise ValueError(f"cut_answers is {cut_answers!r}; possible: keep_prefix, drop, mark")
    return (kept for answer in answers if (kept := _treated(answer, cut_answers)) is not None)


def _treated(answer: Mapping[str, Any], cut_answers: str) -> Mapping[str, Any] | None:
    if answer["finish_reason"] != "length":
        return answer
    if cut_answers == "drop":
        return None
    loop = loop_of(answer)
    if loop is None:
        return answer
    if cut_answers == "mark":
        return {**answer, "finish_reason": "loop"}
    return {**answer, "output_ids": answer["output_ids"][: loop.start + loop.period]}
