"""The JSON of vLLM's `/v1/completions`: token ids out and in, nothing in between left to the server's defaults."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from eagle3lab.engines.base import Request, SpecCompletion
from eagle3lab.engines.servers.errors import BadAnswer, ContextRefused
from eagle3lab.engines.vllm.arguments import SERVED_NAME
from eagle3lab.engines.vllm.stats import VllmStats

CONTEXT_WORDS = ("maximum context length", "max_model_len", "longer than the maximum model length")


@dataclass
class VllmAnswer(SpecCompletion):
    """A server's answer. `accepted` and `stats` are None where the server does not speculate."""

    stats: VllmStats | None = None


def body(request: Request, end_ids: Collection[int], stream: bool, seeded: bool = True) -> dict[str, Any]:
    """The request's JSON. The target's own end tokens are ignored: `end_ids` are all there are.

    Greedy is temperature 0. A drawn token comes from softmax(logits / temperature) alone, and where it is `seeded` from
    the request's seed.
    """
    asked: dict[str, Any] = {
        "model": SERVED_NAME,
        "prompt": list(request.input_ids),
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "ignore_eos": True,
        "stop_token_ids": sorted(end_ids),
        "return_token_ids": True,
        "stream": stream,
    }
    if request.temperature > 0 and seeded:
        asked["seed"] = request.seed
    if stream:
        asked["stream_options"] = {"include_usage": True}  # the last event then carries the metrics
    return asked


def choice_of(answer: Any, row_id: str) -> dict[str, Any] | None:
    """The one choice of an answer or event; None of the last event. BadAnswer when it is no answer at all."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or len(choices) > 1:
        raise BadAnswer(f"row {row_id!r}: not an answer of /v1/completions: {str(answer)[:200]}", row_id=row_id)
    return choices[0] if choices else None


def ids_of(choice: dict[str, Any], row_id: str) -> list[int]:
    """Token ids of a choice. BadAnswer when there are none."""
    ids = choice.get("token_ids")
    if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
        raise BadAnswer(f"row {row_id!r}: the answer has no token_ids; is the server too old?", row_id=row_id)
    return ids


def read_answer(
    request: Request,
    ids: list[int],
    reason: str | None,
    metrics: dict[str, Any] | None,
    end_ids: Collection[int],
    seconds: float,
    first_seconds: float | None = None,
) -> VllmAnswer:
    """The finished answer. Raises BadAnswer for parts that contradict each other, ContextRefused when the server cut it
    before max_tokens, CountsDisagree as `VllmStats.of_answer`."""
    if reason not in ("stop", "length") or not ids:
        raise BadAnswer(f"row {request.id!r}: {len(ids)} tokens, ended for {reason!r}", row_id=request.id)
    ended = ids[-1] in end_ids
    if len(ids) > request.max_tokens or any(token in end_ids for token in ids[:-1]) or (reason == "stop" and not ended):
        raise BadAnswer(
            f"row {request.id!r}: {len(ids)} tokens of at most {request.max_tokens}, ended for {reason!r}: it does not "
            "end at the first end token", row_id=request.id,
        )  # fmt: skip
    if not ended and len(ids) < request.max_tokens:
        raise ContextRefused(
            f"row {request.id!r}: the server ended the answer after {len(ids)} of {request.max_tokens} tokens: prompt "
            "and answer together exceed its context; shorten the prompt, lower max_tokens, or start the server with "
            "more context_length",
            row_id=request.id,
        )
    stats = VllmStats.read(metrics)
    accepted = None if stats is None else stats.of_answer(len(ids))
    told = {"first_seconds": first_seconds}
    prompt, kind = list(request.input_ids), "stop" if ended else "length"
    return VllmAnswer(request.id, prompt, ids, kind, seconds, accepted, stats, **told)
