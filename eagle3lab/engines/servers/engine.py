"""What engines of all servers do alike: the target's layers and end tokens, the checks of rows, and the end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Protocol, Self

from eagle3lab.draft.aux_layers import check_aux_layers, default_aux_layers
from eagle3lab.engines.base import Completion, ContextError, Request, SpecCompletion, check_request, check_tokens
from eagle3lab.engines.servers.errors import ServerGone
from eagle3lab.engines.servers.model_files import TargetFacts

CAPTURE_ROWS = 4  # on their way at the same time
UNKNOWN_CONTEXT = 2**31  # of a target whose config names none


class Servers(Protocol):
    """The servers behind an engine."""

    def told(self, server, gone: ServerGone) -> ServerGone: ...

    def close(self) -> None: ...


class ServedEngine:
    """A target behind servers, used within `with` (or `close`d). What a server is asked, and how, is each engine's.

    end_ids      tokens that end an answer (None: those of generation_config.json, else of config.json).
    aux_layers   hs indices that are captured (None: [2, L//2, L-3]).
    retries, timeout_s   as `PatientClient`.

    `servers` are those that answer, `facts` the target's sizes.
    """

    def __init__(
        self,
        servers: Servers,
        facts: TargetFacts,
        end_ids: Collection[int] | None,
        aux_layers: Iterable[int] | None,
        retries: int,
        timeout_s: float,
    ):
        self.servers, self.facts, self._chosen_layers = servers, facts, aux_layers
        self.end_ids = config_end_ids(facts.folder) if end_ids is None else frozenset(end_ids)
        self._options = {"retries": retries, "timeout_s": timeout_s}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure) -> None:
        self.close()

    def close(self) -> None:
        """Ends the servers that this engine started."""
        self.servers.close()

    @property
    def aux_layers(self) -> list[int]:
        """The layers that are captured. Raises CollidingLayersError for a target whose defaults are not different."""
        if self._chosen_layers is None:
            return default_aux_layers(self.facts.num_layers)
        return check_aux_layers(self._chosen_layers, self.facts.num_layers)

    def _checked(self, requests: Iterable[Request], context: int | None) -> list[Request]:
        requests = list(requests)
        for request in requests:
            check_request(request, self.facts.vocab_size, context or UNKNOWN_CONTEXT)
        return requests

    def _checked_rows(
        self, first: tuple[str, list[int]], rows: Iterator[tuple[str, list[int]]], positions: int
    ) -> Iterator[tuple[str, list[int]]]:
        for row_id, ids in chain([first], rows):
            check_tokens(row_id, ids, self.facts.vocab_size)
            if len(ids) > positions:
                told = f"row {row_id!r} has {len(ids)} tokens, the server takes {positions}; cut the row"
                raise ContextError(told, row_id)
            yield row_id, ids


def without_verifications(answer: SpecCompletion) -> Completion:
    """A client's answer as one of `generate`."""
    values = (answer.id, answer.prompt_ids, answer.output_ids, answer.finish_reason, answer.seconds)
    return Completion(*values, first_seconds=answer.first_seconds)


def config_end_ids(folder: str | Path) -> frozenset[int]:
    """End tokens named by generation_config.json, else by config.json, as the embedded engine takes them."""
    from transformers import AutoConfig, GenerationConfig

    try:
        ends = GenerationConfig.from_pretrained(folder).eos_token_id
    except OSError:
        ends = None
    if ends is None:
        ends = AutoConfig.from_pretrained(folder).eos_token_id
    return frozenset([] if ends is None else [ends] if isinstance(ends, int) else ends)
