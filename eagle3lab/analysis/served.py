"""What the verifications of a served answer did, in this lab's words, whichever engine served it.

An engine tells either what each verification accepted, in order (`accepted`), or, where that is None, a server's own
counts (`stats`). Accept length here never counts the answer's first token, which comes from the prefill; a server's
own accept length does (see `engines/sglang/stats.py`), so it is not used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from eagle3lab.analysis.accept import PositionAcceptance, PromptCycles, cycle_acceptance, histogram
from eagle3lab.engines.base import SpecCompletion
from eagle3lab.engines.servers.verifications import CountsDisagree


@dataclass(frozen=True)
class ServedCounts:
    """The verifications of one answer.

    committed      tokens they committed: the answer without its first token.
    verifications  how many there were.
    histogram      verifications that accepted exactly k drafts, by k; None: the engine does not tell. Where `accepted`
                   is None it is the server's, which counts the drafts past the answer's end in the last verification.
    accepted       drafts accepted by each, in order; None: the engine does not tell.
    """

    committed: int
    verifications: int
    histogram: tuple[int, ...] | None
    accepted: tuple[int, ...] | None

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "ServedCounts":
        """From JSON, where its tuples are lists."""
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def served_counts(completion: SpecCompletion, num_steps: int) -> ServedCounts:
    """Counts of a served answer, from its order of verifications, else from its server's counts.

    ValueError (CountsDisagree among them) naming the row: no counts at all, or counts that do not make its answer.
    """
    n_output = len(completion.output_ids)
    if completion.accepted is not None:
        cycles = PromptCycles.served(completion.id, n_output, completion.accepted)
        counts = tuple(histogram(cycles.accepted, num_steps))
        return ServedCounts(cycles.committed, len(cycles.accepted), counts, cycles.accepted)
    stats = getattr(completion, "stats", None)
    if stats is None or stats.verifications is None:
        raise ValueError(
            f"row {completion.id!r}: neither the order of its verifications nor their number is known, so it has no "
            "accept length; does the server speculate, and does its release tell spec_verify_ct?"
        )
    if stats.histogram is not None:
        _check(completion.id, n_output, stats.verifications, stats.histogram)
    elif (n_output > 1) != (stats.verifications > 0) or n_output - 1 < stats.verifications:
        raise CountsDisagree(
            f"row {completion.id!r}: {stats.verifications} verifications cannot make its {n_output} tokens"
        )
    return ServedCounts(n_output - 1, stats.verifications, stats.histogram, None)


def _check(row_id: str, n_output: int, verifications: int, counts: Sequence[int]) -> None:
    """Verifications commit the answer without its first token; only the last one may run past its end."""
    committed = sum((k + 1) * count for k, count in enumerate(counts))
    longest = max((k for k, count in enumerate(counts) if count), default=0)
    past = committed - (n_output - 1)
    if sum(counts) != verifications or not 0 <= past <= longest:
        raise CountsDisagree(
            f"row {row_id!r}: {verifications} verifications with histogram {list(counts)} commit {committed} tokens, "
            f"its answer has {n_output} and the first is the prefill's; was it retracted on the way? Then lower the "
            "concurrency or give the server more cache"
        )


def counted_acceptance(counts: Sequence[int]) -> PositionAcceptance:
    """Acceptance by draft position from verifications by drafts accepted."""
    accepted = [drafts for drafts, count in enumerate(counts) for _ in range(count)]
    return cycle_acceptance(accepted, len(counts) - 1)


def add_histograms(histograms: Sequence[Sequence[int] | None]) -> list[int] | None:
    """Sum of histograms of different length; None where one of them is not known."""
    if any(counts is None for counts in histograms):
        return None
    return [sum(column) for column in zip_longest(*histograms, fillvalue=0)]
