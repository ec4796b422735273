"""The JSON of a server's `/generate`: a request out, an answer in, nothing in between left to the server's defaults."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from eagle3lab.engines.base import NonFiniteError, Request, SpecCompletion
from eagle3lab.engines.servers.errors import BadAnswer, ContextRefused
from eagle3lab.engines.servers.verifications import cut_to_answer
from eagle3lab.engines.sglang.stats import SpecStats, accepts_in_order

_NAN_MARK = "NaN happened"  # what the server says it "matched" when a token id was none
CONTEXT_WORDS = ("context length", "maximum allowed length", "longer than the model", "memory budget")


@dataclass
class Answer(SpecCompletion):
    """A server's answer: `accepted` is None unless it was asked for in order and could be told; `stats` are the
    server's own counts."""

    stats: SpecStats = field(default_factory=SpecStats)


@dataclass(frozen=True)
class Finish:
    """Why the server ended an answer: its `type`, and the token it matched or its message."""

    type: str
    matched: Any = None
    message: str = ""
    status: int | None = None


def body(request: Request, end_ids: Collection[int], ignore_ends: bool, stream: bool) -> dict:
    """The request's JSON. `ignore_ends`: run to max_tokens, whatever the tokens are.

    Greedy is temperature 0. A drawn token comes from softmax(logits / temperature) alone; its seed counts only on a
    server started with --enable-deterministic-inference.
    """
    sampling: dict[str, Any] = {
        "max_new_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "ignore_eos": ignore_ends,
    }
    if end_ids and not ignore_ends:
        sampling["stop_token_ids"] = sorted(end_ids)
    if request.temperature > 0:
        sampling["sampling_seed"] = request.seed
    return {"input_ids": list(request.input_ids), "sampling_params": sampling, "stream": stream}


def finish_of(answer: Any, row_id: str) -> Finish | None:
    """Why this answer ended; None while it is still being written. BadAnswer when it is no answer at all."""
    if not isinstance(answer, dict) or not isinstance(answer.get("meta_info"), dict):
        raise BadAnswer(f"row {row_id!r}: not an answer of /generate: {str(answer)[:200]}", row_id=row_id)
    reason = answer["meta_info"].get("finish_reason")
    if reason is None:
        return None
    if isinstance(reason, str):
        return Finish(reason)
    if not isinstance(reason, dict) or not isinstance(reason.get("type"), str):
        raise BadAnswer(f"row {row_id!r}: finish_reason {str(reason)[:200]} is not understood", row_id=row_id)
    return Finish(reason["type"], reason.get("matched"), str(reason.get("message") or ""), reason.get("status_code"))


def stopped_by_own_end(request: Request, answer: dict, finish: Finish, end_ids: Collection[int]) -> bool:
    """Whether the server stopped at an end token of its own that is none of `end_ids`."""
    stopped = finish.type == "stop" and finish.matched != _NAN_MARK
    return stopped and _output_ids(answer, request.id)[-1] not in end_ids


def read_answer(
    request: Request,
    answer: dict,
    finish: Finish,
    end_ids: Collection[int],
    seconds: float,
    tokens_after: list[int] | None,
    first_seconds: float | None = None,
) -> Answer:
    """The finished answer, ended at the first of `end_ids`.

    `tokens_after` each event of a streamed answer; None: not streamed, `accepted` stays None. Raises BadAnswer for
    fields that are missing or contradict each other, ContextRefused when the server cut the answer before max_tokens,
    NonFiniteError when the target's logits were NaN, CountsDisagree as `accepts_in_order`.
    """
    if finish.matched == _NAN_MARK:
        raise NonFiniteError(f"row {request.id!r}: the target's logits are NaN; check its weights and dtype")
    if finish.type not in ("stop", "length"):
        raise BadAnswer(f"row {request.id!r}: ended for an unknown reason {finish.type!r}", row_id=request.id)
    ids = _output_ids(answer, request.id)
    stats = SpecStats.from_meta_info(answer["meta_info"])
    accepted = None
    if tokens_after is not None and not answer["meta_info"].get("num_retractions"):  # started anew: tokens of a prefill
        accepted = accepts_in_order(tokens_after, stats.verifications, stats.histogram)
    end = next((place for place, token in enumerate(ids, 1) if token in end_ids), None)
    if end is None and len(ids) < request.max_tokens:
        raise ContextRefused(
            f"row {request.id!r}: the server ended the answer after {len(ids)} of {request.max_tokens} tokens "
            f"({finish.type}): prompt and answer together exceed its context or its cache; "
            "shorten the prompt, lower max_tokens, or start the server with more context_length / max_total_tokens",
            row_id=request.id,
        )
    if len(ids) > request.max_tokens:
        raise BadAnswer(f"row {request.id!r}: {len(ids)} tokens, max_tokens is {request.max_tokens}", row_id=request.id)
    if end is not None and end < len(ids):  # only where the server was told to ignore end tokens
        ids, stats = ids[:end], SpecStats()  # its counts are of the longer answer
        accepted = None if accepted is None else cut_to_answer(accepted, end)
    reason = "length" if end is None else "stop"
    told = {"first_seconds": first_seconds}
    return Answer(request.id, list(request.input_ids), ids, reason, seconds, accepted, stats, **told)


def tokens_so_far(event: dict) -> int | None:
    """Output tokens after this event of a streamed answer; None when it does not say."""
    tokens = event["meta_info"].get("completion_tokens")
    return tokens if isinstance(tokens, int) and tokens > 0 else None


def _output_ids(answer: dict, row_id: str) -> list[int]:
    ids = answer.get("output_ids")
    if not isinstance(ids, list) or not ids or not all(isinstance(token, int) for token in ids):
        raise BadAnswer(
            f"row {row_id!r}: the answer has no output_ids (got {sorted(answer)}); is the server too old?",
            row_id=row_id,
        )
    return ids
