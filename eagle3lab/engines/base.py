"""What every engine takes and gives back, and the checks they share.

Shapes: T tokens, A aux layers, H hidden. An aux layer is always an hs index: hs[k] is the input of decoder
layer k, as in transformers' `output_hidden_states`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:  # so that starting and watching a server costs no import of torch
    import torch


class ContextError(ValueError):
    """A row does not fit into the target's context. `row_id` is the row."""

    def __init__(self, message: str, row_id: str = ""):
        super().__init__(message)
        self.row_id = row_id


class NonFiniteError(ValueError):
    """A target produced NaN or infinity."""


@dataclass(frozen=True)
class Request:
    """One prompt to continue. `temperature` 0 is argmax; otherwise tokens are drawn from softmax(logits /
    temperature) with random numbers that depend on `seed` alone, not on the batch the request runs in."""

    id: str
    input_ids: list[int]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0


@dataclass
class Completion:
    """An answer. `output_ids` contains the end token when `finish_reason` is "stop". `seconds` is wall time
    from the start of this request's prefill to its last token (other requests of the batch ran in that time
    too), `first_seconds` the part of it up to the first token; None: not observed."""

    id: str
    prompt_ids: list[int]
    output_ids: list[int]
    finish_reason: Literal["stop", "length"]
    seconds: float
    first_seconds: float | None = field(default=None, kw_only=True)


@dataclass
class SpecCompletion(Completion):
    """An answer decoded speculatively. Verification i committed `accepted[i] + 1` tokens, so
    `len(output_ids) == 1 + sum(a + 1 for a in accepted)`: the first token comes from the prefill. In a last
    cycle cut by max_tokens or by an accepted end token the last committed token counts as that cycle's
    bonus token. None: the engine cannot tell what each verification accepted."""

    accepted: list[int] | None = field(default_factory=list)


@dataclass
class Features:
    """Target states of one row: `aux_TAH` in the order of the engine's aux layers, `last_TH` after the
    final norm."""

    id: str
    input_ids_T: torch.Tensor
    aux_TAH: torch.Tensor
    last_TH: torch.Tensor


class Engine(Protocol):
    """A target model that can be run. `end_ids` are the token ids that end an answer."""

    aux_layers: list[int]
    end_ids: frozenset[int]

    def generate(self, requests: Iterable[Request], batch_size: int, streamed: bool = False) -> Iterator[Completion]:
        """Yields completions as they end, in any order; `streamed` ones tell `first_seconds`."""

    def capture(self, rows: Iterable[tuple[str, list[int]]], batch_tokens: int) -> Iterator[Features]:
        """Yields the states of (id, input_ids) rows, in any order."""

    def speculate(self, draft, requests: Iterable[Request], num_steps: int) -> Iterator[SpecCompletion]:
        """Decodes each request with a drafter's folder, in any order; the output is that of `generate` at the same
        temperature: the same answer when greedy, the same distribution when sampled."""


def check_tokens(row_id: str, input_ids: Collection[int], vocab_size: int) -> None:
    """Raises ValueError naming the row when it is empty or holds an id outside the vocabulary."""
    if not len(input_ids):
        raise ValueError(f"row {row_id!r} has no tokens")
    if min(input_ids) < 0 or max(input_ids) >= vocab_size:
        raise ValueError(
            f"row {row_id!r} has token ids {min(input_ids)}..{max(input_ids)} outside the target's "
            f"vocabulary of {vocab_size}; was it tokenised for another target?"
        )


def check_request(request: Request, vocab_size: int, max_context: int) -> None:
    """Raises ValueError or ContextError naming the row of a request that cannot be run."""
    check_tokens(request.id, request.input_ids, vocab_size)
    if request.max_tokens < 1:
        raise ValueError(f"row {request.id!r} has max_tokens={request.max_tokens}, at least 1 is needed")
    if not request.temperature >= 0:
        raise ValueError(f"row {request.id!r} has temperature={request.temperature}, it must be 0 or more")
    total = len(request.input_ids) + request.max_tokens
    if total > max_context:
        raise ContextError(
            f"row {request.id!r} needs {len(request.input_ids)} prompt tokens + max_tokens "
            f"{request.max_tokens} = {total} positions, the target has {max_context}; "
            "shorten the prompt or lower max_tokens",
            request.id,
        )
