"""What a vLLM server tells about speculation: of one answer, and of all since it started.

vLLM's mean acceptance length is 1 + accepted drafts / verifications: the bonus token counts, the answer's first token
does not, which SGLang's counts too. So counts and steps are compared between engines, not means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3lab.engines.servers.errors import BadAnswer
from eagle3lab.engines.servers.http import answer
from eagle3lab.engines.servers.verifications import CountsDisagree, cut_to_answer

_COUNTER = re.compile(r"^vllm:spec_decode_num_(\w+)_total\{([^}]*)\} ([0-9.e+]+)$", re.MULTILINE)
_POSITION = re.compile(r'position="(\d+)"')


@dataclass(frozen=True)
class VllmStats:
    """Speculation of one request as the server counted it, drafts past the answer's end in the last verification
    included. accepted, proposed: drafts of each verification, in order. histogram[k]: verifications that accepted
    exactly k drafts. num_steps: drafts of a full chain."""

    accepted: tuple[int, ...]
    proposed: tuple[int, ...]
    histogram: tuple[int, ...]
    num_steps: int

    @classmethod
    def read(cls, metrics: Mapping[str, Any] | None) -> VllmStats | None:
        """From an answer's `metrics`; None where the server does not speculate or was not told to count in order.
        Raises CountsDisagree when order and histogram are not of the same verifications."""
        told = (metrics or {}).get("speculative_decoding") or {}
        if "num_spec_tokens" not in told:
            return None
        accepted, proposed = tuple(told.get("per_step_accepted") or ()), tuple(told.get("per_step_drafted") or ())
        histogram = tuple(told["acceptance_histogram"])
        if [accepted.count(k) for k in range(len(histogram))] != list(histogram):
            raise CountsDisagree(
                f"verifications accepted {list(accepted)}, the server's histogram is {list(histogram)}"
            )
        return cls(accepted, proposed, histogram, told["num_spec_tokens"])

    def of_answer(self, n_output: int) -> list[int]:
        """Drafts accepted by each verification of an answer of `n_output` tokens (`SpecCompletion.accepted`).

        Where the context is full nothing is drafted for its last token: that verification, which the server does not
        count, accepted none. Raises CountsDisagree when the verifications do not make the answer.
        """
        accepted = list(self.accepted)
        full = not self.proposed or self.proposed[-1] < self.num_steps
        if full and 1 + sum(drafts + 1 for drafts in accepted) == n_output - 1:
            accepted.append(0)
        return cut_to_answer(accepted, n_output)


@dataclass(frozen=True)
class ServerCounts:
    """All verifications of a server since its start. joint[k]: those that accepted at least k + 1 drafts."""

    verifications: int
    proposed_drafts: int
    accepted_drafts: int
    joint: tuple[int, ...]

    @property
    def accept_length(self) -> float | None:
        """Tokens committed per verification, bonus token included; None before the first one."""
        return 1 + self.accepted_drafts / self.verifications if self.verifications else None


def server_counts(url: str) -> ServerCounts:
    """From a server's /metrics. Raises ServerGone, and BadAnswer when it does not count speculation."""
    status, body = answer(url, "/metrics")
    found = _COUNTER.findall(body.decode("utf-8", "replace")) if status == 200 else []
    totals = {name: int(float(value)) for name, _, value in found if name != "accepted_tokens_per_pos"}
    if "drafts" not in totals:
        raise BadAnswer(f"{url} counts no speculation: /metrics answers {status} without vllm:spec_decode_*", url)
    places = {int(m[1]): float(v) for n, labels, v in found if (m := _POSITION.search(labels)) and n.endswith("_pos")}
    joint: Sequence[int] = [int(places[place]) for place in sorted(places)]
    return ServerCounts(totals["drafts"], totals["draft_tokens"], totals["accepted_tokens"], tuple(joint))
