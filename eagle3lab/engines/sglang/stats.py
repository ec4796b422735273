"""What a server tells about the speculation of one request, whatever its release calls it.

Accept length here is the server's: answer tokens / verifications, so the prefill's token is counted in. The lab's own
(`analysis.accept`) leaves it out.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from eagle3lab.engines.servers.verifications import CountsDisagree

# newest name first
_NAMES = {
    "verifications": ("spec_verify_ct",),
    "accepted_drafts": ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num"),
    "proposed_drafts": ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num"),
    "accept_length": ("spec_accept_length",),
    "accept_rate": ("spec_accept_rate",),
    "histogram": ("spec_correct_drafts_histogram", "spec_accept_histogram"),
}


@dataclass(frozen=True)
class SpecStats:
    """Speculation of one request as the server counted it. None: this release does not tell it.

    `accepted_drafts`, `histogram` (index k: verifications that accepted exactly k drafts) count drafts beyond
    the answer's end too, when the last verification ran past it.
    """

    verifications: int | None = None
    accepted_drafts: int | None = None
    proposed_drafts: int | None = None
    accept_length: float | None = None
    accept_rate: float | None = None
    histogram: tuple[int, ...] | None = None

    @classmethod
    def from_meta_info(cls, meta_info: Mapping[str, Any]) -> "SpecStats":
        """From an answer's `meta_info`. A value of another kind than expected counts as not told."""
        return cls(**{field: _first(meta_info, names, _READERS[field]) for field, names in _NAMES.items()})


def accepts_in_order(
    tokens: Sequence[int], verifications: int | None, histogram: Sequence[int] | None = None
) -> list[int] | None:
    """Drafts accepted by each verification, in order, from a streamed answer: `tokens` are how many output tokens there
    were after each of its events. The counts come with the last event only.

    A verification that commits n tokens accepted n - 1 drafts; where the answer's end cuts the last one, its last
    committed token counts as its bonus token (the convention of `SpecCompletion.accepted`). The first token is the
    prefill's and belongs to no verification.

    None when the order cannot be told: there are not as many events as `verifications`, because several were merged
    on the way. Raises CountsDisagree when the list is not the server's own `histogram` with at most the last
    verification cut.
    """
    accepted = [after - before - 1 for before, after in pairwise([1, *tokens]) if after > before]
    if len(accepted) != (verifications or 0):
        return None
    if histogram is not None:
        _check_histogram(accepted, histogram)
    return accepted


def _check_histogram(accepted: list[int], histogram: Sequence[int]) -> None:
    """The list is the histogram, but for a last verification that the end of the answer cut."""
    left = Counter({drafts: count for drafts, count in enumerate(histogram) if count})
    left.subtract(accepted[:-1])
    rest = +left
    fits = min(left.values(), default=0) >= 0 and (
        sum(rest.values()) == 1 and min(rest) >= accepted[-1] if accepted else not rest
    )
    if not fits:
        raise CountsDisagree(f"verifications accepted {accepted}, the server's histogram is {list(histogram)}")


def _first(meta_info, names, read):
    """The first of the names that holds a usable value."""
    return next((value for name in names if (value := read(meta_info.get(name))) is not None), None)


def _count(value) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _number(value) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if number and value >= 0 else None


def _counts(value) -> tuple[int, ...] | None:
    if not isinstance(value, list) or any(_count(item) is None for item in value):
        return None
    return tuple(value)


_READERS = {
    "verifications": _count,
    "accepted_drafts": _count,
    "proposed_drafts": _count,
    "accept_length": _number,
    "accept_rate": _number,
    "histogram": _counts,
}
