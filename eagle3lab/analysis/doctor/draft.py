"""Where the drafter is, and its sizes against the data and the target: draft vocabulary and contexts.

Shapes: V target vocabulary.
"""

from pathlib import Path

import numpy as np

from eagle3lab.analysis.doctor.commands import LENGTHS
from eagle3lab.analysis.doctor.report import Check, judged
from eagle3lab.draft.checkpoint import CheckpointError
from eagle3lab.draft.foreign import find_draft

GOOD_COVERAGE = 0.95  # below this the missing tokens alone end a noticeable share of the chains
ELSEWHERE = "python -m eagle3lab run PROFILE --only doctor -p draft FOLDER"


def find_drafter(name: str | Path, root: str | Path = ".") -> tuple[Path | None, list[Check]]:
    """(the folder of a drafter, a local one or a hub's, no rows), or (None, the row that says why there is none)."""
    try:
        return find_draft(name, root), []
    except (CheckpointError, OSError) as error:
        remedy = "set draft to a folder with config.json and the weights, or to a hub name"
        return None, [judged("draft", str(error), "a drafter's folder", "fault", remedy, ELSEWHERE)]


def check_draft_vocabulary(draft_vocab_size: int, counts_V, seen: int | None = None) -> Check:
    """Draft vocabulary against how often each target id occurs in the answers to train on (counts_V, int
    [V]).

    More draft ids than distinct ids seen means rows that are never trained; `seen` is how many there are when more than
    the answers is trained. Coverage is the share of the answers' tokens that the `draft_vocab_size` most frequent ids
    make up; every other token ends a chain.
    """
    counts_V = np.asarray(counts_V)
    name, total, distinct = "draft vocabulary", int(counts_V.sum()), seen or int((counts_V > 0).sum())
    if total == 0:
        return Check(name, "no answer tokens counted", "ids seen", "not checked", "run the stages before it first")
    coverage = float(np.sort(counts_V)[::-1][:draft_vocab_size].sum()) / total
    found = f"{draft_vocab_size:,} ids, coverage {coverage:.1%}"
    if draft_vocab_size > distinct:
        return Check(
            name,
            f"{draft_vocab_size:,} ids",
            f"at most the {distinct:,} distinct ids seen",
            "fault",
            f"set draft_vocab_size to {distinct} or less, or use more data",
        )
    return judged(
        name,
        found,
        f"coverage at least {GOOD_COVERAGE:.0%}",
        "ok" if coverage >= GOOD_COVERAGE else "warning",
        "raise draft_vocab_size: every token outside it ends a chain",
    )


def check_contexts(target_context: int, longest_prompt: int, max_tokens: int) -> list[Check]:
    """Token counts: the longest prompt and the longest answer must fit the target's context together."""
    served = longest_prompt + max_tokens
    found = f"prompt {longest_prompt:,} + max_tokens {max_tokens:,} = {served:,}"
    verdict = "ok" if served <= target_context else "fault"
    remedy = "lower max_prompt_tokens or max_tokens"
    return [judged("context of the target", found, f"at most {target_context:,}", verdict, remedy, LENGTHS)]
