"""Batched generation that keeps its batch full: a finished row leaves at once and a waiting prompt takes
its place.

Shapes: B live rows, H hidden, V vocabulary.
"""

import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator

import torch

from eagle3lab.engines.base import Completion, Request, check_request
from eagle3lab.engines.sampling import draw, uniform_stream
from eagle3lab.engines.target import TargetModel, greedy_tokens

PREFILL_TOKENS = 4096  # padded prompt tokens in one prefill: bounds its memory
REFILL_SHARE = 8  # new prompts enter when 1/8 of the batch is free: prefilling them one by one is slow


class _Row:
    """A request on its way."""

    def __init__(self, request: Request):
        self.request, self.started, self.output = request, time.perf_counter(), []
        self.first_seconds: float | None = None
        self.uniforms = uniform_stream(request.seed, request.max_tokens) if request.temperature > 0 else None

    def finish_reason(self, end_ids) -> str | None:
        if self.output[-1] in end_ids:
            return "stop"
        return "length" if len(self.output) == self.request.max_tokens else None

    def completion(self, reason) -> Completion:
        seconds = time.perf_counter() - self.started
        told = {"first_seconds": self.first_seconds}
        return Completion(self.request.id, list(self.request.input_ids), self.output, reason, seconds, **told)


def generate(
    target: TargetModel, requests: Iterable[Request], batch_size: int, end_ids: Collection[int]
) -> Iterator[Completion]:
    """Yields a completion as soon as it ends, shortest prompts first. All requests are checked before the
    first runs.

    Raises ValueError / ContextError naming the row of a request that cannot be run, NonFiniteError for NaN
    logits.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}, at least 1 is needed")
    requests = sorted(requests, key=lambda request: len(request.input_ids))
    for request in requests:
        check_request(request, target.vocab_size, target.max_context)
    if not requests:
        return
    longest = max(len(request.input_ids) + request.max_tokens for request in requests)
    cache = target.new_cache(min(batch_size, len(requests)), longest)
    waiting, live = deque(requests), []
    while waiting or live:
        with torch.inference_mode():  # not around the yield: it would leak into the caller
            if _has_room(cache.rows - len(live), len(live), len(waiting), batch_size):
                _admit(target, cache, live, waiting)
            else:
                _decode(target, cache, live)
            ended = _retire(cache, live, end_ids)
        yield from ended


def _has_room(free: int, live: int, waiting: int, batch_size: int) -> bool:
    return free > 0 and waiting > 0 and (live == 0 or free >= min(waiting, max(1, batch_size // REFILL_SHARE)))


def _admit(target, cache, live, waiting):
    """Prefills waiting prompts into free rows and chooses their first tokens."""
    new = []
    while waiting and len(live) + len(new) < cache.rows:
        width = len(waiting[0].input_ids)  # sorted: the next prompt is the longest of the group
        if new and width * (len(new) + 1) > PREFILL_TOKENS:
            break
        new.append(_Row(waiting.popleft()))
    last_BTH = target.prefill([row.request.input_ids for row in new], cache)
    ends_B = torch.tensor([len(row.request.input_ids) - 1 for row in new], device=last_BTH.device)
    _choose(target, last_BTH[torch.arange(len(new), device=last_BTH.device), ends_B], new)
    for row in new:
        row.first_seconds = time.perf_counter() - row.started
    live += new


def _decode(target, cache, live):
    """One more token for every live row."""
    ids_B1 = torch.tensor([[row.output[-1]] for row in live])
    _choose(target, target.append(ids_B1, cache)[:, -1], live)


def _choose(target, last_BH, rows):
    """Appends the next token to each row: argmax, or drawn with the row's own random numbers."""
    names = [row.request.id for row in rows]
    logits_BV = target.logits(last_BH)
    tokens_B = greedy_tokens(logits_BV, names)
    drawn = [i for i, row in enumerate(rows) if row.uniforms is not None]
    if drawn:
        temperature = torch.tensor([rows[i].request.temperature for i in drawn], dtype=torch.float64)
        uniform = torch.stack([rows[i].uniforms[len(rows[i].output)] for i in drawn])
        device = logits_BV.device
        tokens_B[drawn] = draw(logits_BV[drawn], temperature.to(device), uniform.to(device))
    for row, token in zip(rows, tokens_B.tolist(), strict=True):
        row.output.append(token)


def _retire(cache, live, end_ids) -> list[Completion]:
    """Completions of the rows that ended; their cache rows become free. From the back, as `drop` moves the
    last row."""
    ended = []
    for i in reversed(range(len(live))):
        reason = live[i].finish_reason(end_ids)
        if reason is None:
            continue
        row = live[i]
        last = live.pop()
        if last is not row:
            live[i] = last
        cache.drop(i)
        ended.append(row.completion(reason))
    return ended
