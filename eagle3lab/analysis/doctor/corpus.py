"""Checks of a corpus: masks, ends, origin, prompts, splits. Rows are read as a stream."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3lab.analysis.doctor.report import Check, judged
from eagle3lab.analysis.doctor.template import openings
from eagle3lab.data.spans import MaskError, check_spans

EMPTY_THOUGHT = re.compile(r"(<think>|◁think▷)\s*(</think>|◁/think▷)")
MANY_EMPTY = 0.05  # share of answers with an empty block of thoughts, above which they look blanked
AGAIN = "make the corpus again (02_inference)"


@dataclass
class Seen:
    """What one pass over the rows collects. Every list holds ids of bad rows."""

    rows: int = 0
    masks: list[str] = field(default_factory=list)
    mask_words: str = ""
    ends: list[str] = field(default_factory=list)
    foreign_ids: list[str] = field(default_factory=list)
    openings: list[str] = field(default_factory=list)
    blanked: list[str] = field(default_factory=list)
    origins: Counter = field(default_factory=Counter)
    finish: Counter = field(default_factory=Counter)
    prompts: dict[str, set] = field(default_factory=dict)  # split -> hashes of prompts


def check_corpus(
    rows: Iterable[Mapping], vocab_size: int, end_ids: Collection[int] = (), tokenizer: Any = None
) -> list[Check]:
    """All checks of corpus rows in one pass. Without a tokenizer, prompts' ends and thoughts are not looked at."""
    opened = openings(tokenizer) if tokenizer is not None else []
    seen = Seen()
    for row in rows:
        _look(row, seen, vocab_size, set(end_ids), opened, tokenizer)
    if not seen.rows:
        return [Check("corpus", "no rows", "rows", "fault", AGAIN)]
    return [
        _bad_rows("corpus loss masks", seen, seen.masks, "some tokens trained, and not all", seen.mask_words, AGAIN),
        _bad_rows("corpus token ids", seen, seen.foreign_ids, f"below {vocab_size:,}",
                  "ids outside the target's vocabulary", "was it tokenised for another target? prepare it again"),
        _ends(seen, end_ids),
        _origins(seen),
        _openings(seen, opened, tokenizer),
        _thoughts(seen, tokenizer),
        _splits(seen),
    ]  # fmt: skip


def _look(row: Mapping, seen: Seen, vocab_size: int, ends: set[int], opened: list[list[int]], tokenizer) -> None:
    key, ids, spans = row["id"], row["input_ids"], row["loss_spans"]
    seen.rows += 1
    seen.origins[row["origin"]] += 1
    seen.finish[row["finish_reason"]] += 1
    try:
        check_spans(len(ids), spans, key)
    except MaskError as error:
        seen.masks.append(key)
        seen.mask_words = seen.mask_words or str(error)
        return
    if int(max(ids)) >= vocab_size:
        seen.foreign_ids.append(key)
    last = int(ids[spans[-1][1] - 1])
    if ends and row["origin"] != "reference" and (last in ends) != (row["finish_reason"] == "stop"):
        seen.ends.append(key)
    prompt = [int(i) for i in ids[: spans[0][0]]]
    if opened and not any(prompt[-len(opening) :] == opening for opening in opened):
        seen.openings.append(key)
    if tokenizer is not None:
        longest = max(map(len, opened), default=0)  # the prompt may open the block that the answer closes
        answers = (ids[max(0, start - longest) : end] for start, end in spans)
        if any(EMPTY_THOUGHT.search(tokenizer.decode([int(i) for i in answer])) for answer in answers):
            seen.blanked.append(key)
    seen.prompts.setdefault(row["split"], set()).add(hash(tuple(prompt)))


def _bad_rows(name: str, seen: Seen, bad: list[str], expected: str, words: str, remedy: str) -> Check:
    found = f"{len(bad):,} of {seen.rows:,} rows, e.g. {bad[0]}: {words}" if bad else f"{seen.rows:,} rows"
    return judged(name, found, expected, "fault" if bad else "ok", remedy)


def _ends(seen: Seen, end_ids: Collection[int]) -> Check:
    name, expected = "answers' ends", "an end token exactly where finish_reason is stop"
    if not end_ids:
        return Check(name, "no end tokens known", expected, "not checked", "give the target")
    cut = seen.finish["length"] / seen.rows
    if seen.ends:
        words = "cut answers counted as complete, or complete ones as cut"
        return _bad_rows(name, seen, seen.ends, expected, words, AGAIN)
    return Check(name, f"{seen.rows:,} rows, {cut:.0%} cut at max_tokens and marked so", expected, "ok")


def _origins(seen: Seen) -> Check:
    name, expected = "answers of the target", "every answer written by the target"
    other = seen.origins["reference"]
    found = f"{other:,} of {seen.rows:,} answers are not the target's own" if other else f"{seen.rows:,} answers"
    remedy = "let the target answer these prompts (references: none in 02_inference): its own text is what it serves"
    return judged(name, found, expected, "warning" if other else "ok", remedy)


def _openings(seen: Seen, opened: list[list[int]], tokenizer) -> Check:
    name, expected = "prompts end as the template does", "the ids that open the assistant's turn"
    if not opened:
        why = "no tokenizer" if tokenizer is None else "the template opens no turn"
        return Check(name, why, expected, "not checked", "give the target with its tokenizer")
    words = f"they do not end with {tokenizer.decode(opened[0])!r}"
    remedy = "prepare the data again with this target's template"
    return _bad_rows(name, seen, seen.openings, expected, words, remedy)


def _thoughts(seen: Seen, tokenizer) -> Check:
    name, expected = "thoughts kept", f"at most {MANY_EMPTY:.0%} of the answers with an empty block of thoughts"
    if tokenizer is None:
        return Check(name, "no tokenizer", expected, "not checked", "give the target with its tokenizer")
    share = len(seen.blanked) / seen.rows
    found = f"{share:.0%} of the answers" + (f", e.g. {seen.blanked[0]}" if seen.blanked else "")
    remedy = (
        "if the target thinks when it serves: one sample an answer (01_data_prep does it), since the template blanks "
        "the thoughts of finished turns"
    )
    return judged(name, found, expected, "warning" if share > MANY_EMPTY else "ok", remedy)


def _splits(seen: Seen) -> Check:
    name, expected = "held-out prompts apart", "no prompt in two splits"
    shared = set.intersection(*seen.prompts.values()) if len(seen.prompts) > 1 else set()
    found = f"{len(shared)} prompts in {' and '.join(sorted(seen.prompts))}" if shared else "none shared"
    remedy = "prepare the data again: a held-out prompt that was trained on measures memory"
    return judged(name, found, expected, "fault" if shared else "ok", remedy)
