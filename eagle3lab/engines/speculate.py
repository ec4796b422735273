"""Chain speculative decoding, lossless, one request at a time.

Shapes: T tokens, A aux layers, H hidden.

A sequence x_0 .. x_{m-1} is committed; the target has run x_0 .. x_{m-2}. Slot t of the draft holds the
target's feature of x_t and the embedding of x_{t+1} at RoPE position t, and predicts x_{t+2}. One cycle:
  1. the draft runs the slots whose target features are new (up to slot m-2); the last one predicts d_1 for
     x_m;
  2. it chains: slot m-2+i reads its predecessor's output and d_i, and predicts d_{i+1};
  3. the target runs [x_{m-1}, d_1 .. d_n] in one forward pass and chooses a token of its own in each place: its
     argmax, or one drawn at the request's temperature with the random number of that place. The longest prefix of
     drafts that equals its choices is committed, and its choice after that prefix (the bonus token). What is
     committed is always the target's own choice: drafts only say how many of them may be made at once, so a sampled
     answer is distributed (and, with the same seed, drawn) as without speculation;
  4. both caches are cut back to the committed tokens. Nothing is recomputed in the target.
"""

import time
from collections.abc import Collection, Iterable, Iterator

import torch

from eagle3lab.engines.base import Request, SpecCompletion, check_request
from eagle3lab.engines.sampling import draw, uniform_stream
from eagle3lab.engines.target import TargetModel, greedy_tokens


def speculate(
    target: TargetModel, draft, requests: Iterable[Request], num_steps: int, end_ids: Collection[int]
) -> Iterator[SpecCompletion]:
    """Yields the continuation of each request, in order, with the drafts accepted per verification.

    `draft` offers new_cache, fuse, forward_cached, predict (see draft/model.py). A cycle drafts at most
    what the request may still commit. Raises ValueError for num_steps < 1, else as `generate`.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps={num_steps}, at least 1 is needed")
    requests = list(requests)
    for request in requests:
        check_request(request, target.vocab_size, target.max_context)
    for request in requests:
        yield _Speculation(target, draft, request, num_steps, end_ids).run()


def first_unknown_slot(committed: int) -> int:
    """Slots 0 .. m-2 have true features and a known next token when m tokens are committed: slot m-1 is the
    first not."""
    return committed - 1


def accepted_drafts(drafts: list[int], choices: list[int]) -> int:
    """How many leading drafts equal the target's choices (choices[i] is the target's token in the place of
    drafts[i])."""
    count = 0
    while count < len(drafts) and drafts[count] == choices[count]:
        count += 1
    return count


class _Speculation:
    """The state of one request: committed tokens, the two caches, and features the draft has not seen yet."""

    def __init__(self, target, draft, request, num_steps, end_ids):
        self.target, self.draft, self.request = target, draft, request
        self.num_steps, self.end_ids = num_steps, end_ids
        self.ids = list(request.input_ids)  # committed
        self.limit = len(request.input_ids) + request.max_tokens
        self.kv = target.new_cache(1, self.limit)
        self.draft_kv = draft.new_cache(self.limit)
        self.accepted: list[int] = []
        self.uniforms = uniform_stream(request.seed, request.max_tokens) if request.temperature > 0 else None

    @torch.inference_mode()
    def run(self) -> SpecCompletion:
        started = time.perf_counter()
        with self.target.tapped() as states:
            last_1TH = self.target.prefill([self.ids], self.kv)
            features_TH = self._features(states, len(self.ids))
            self._commit(self._choices(last_1TH[0, -1:]))
            first_seconds = time.perf_counter() - started
            while (reason := self._finish_reason()) is None:
                drafts = self._draft(features_TH)
                choices = self._verify(drafts)
                accepted = accepted_drafts(drafts, choices)
                committed = self._commit(choices[: accepted + 1])  # equal to the accepted drafts and the bonus token
                self.accepted.append(committed - 1)
                self.kv.truncate(0, first_unknown_slot(len(self.ids)))
                features_TH = self._features(states, committed)
        prompt, output = self.ids[: len(self.request.input_ids)], self.ids[len(self.request.input_ids) :]
        seconds = time.perf_counter() - started
        told = {"accepted": self.accepted, "first_seconds": first_seconds}
        return SpecCompletion(self.request.id, prompt, output, reason, seconds, **told)

    def _features(self, states, count):
        """Step-0 features of the first `count` slots of the last target forward pass."""
        return self.draft.fuse(self.target.stack_aux(states, 0, count))

    def _draft(self, features_TH) -> list[int]:
        """d_1 .. d_n; leaves the draft's cache with true slots only."""
        count = min(self.num_steps, self.limit - len(self.ids) - 1)  # the last place is the bonus token's
        if count == 0:
            return []
        stop = first_unknown_slot(len(self.ids))
        first = stop - features_TH.shape[0]
        next_ids_T = torch.tensor(self.ids[first + 1 : stop + 1], device=self.target.device)
        y_TH = self.draft.forward_cached(features_TH, next_ids_T, self._positions(first, stop), self.draft_kv)
        drafts_T = [self.draft.predict(y_TH[-1:])]
        for slot in range(stop, stop + count - 1):
            y_TH = self.draft.forward_cached(y_TH[-1:], drafts_T[-1], self._positions(slot, slot + 1), self.draft_kv)
            drafts_T.append(self.draft.predict(y_TH))
        self.draft_kv.truncate(stop)
        return torch.cat(drafts_T).tolist()

    def _positions(self, first, stop):
        return torch.arange(first, stop, device=self.target.device)

    def _verify(self, drafts: list[int]) -> list[int]:
        """The target's own token after x_{m-1} and after each draft."""
        last_1TH = self.target.append(torch.tensor([[self.ids[-1], *drafts]]), self.kv)
        return self._choices(last_1TH[0])

    def _choices(self, last_TH) -> list[int]:
        """The target's tokens in the next places of the answer, one a row."""
        logits_TV = self.target.logits(last_TH)
        greedy_T = greedy_tokens(logits_TV, [self.request.id] * last_TH.shape[0])
        if self.uniforms is None:
            return greedy_T.tolist()
        place = len(self.ids) - len(self.request.input_ids)
        uniform_T = self.uniforms[place : place + last_TH.shape[0]].to(logits_TV.device)
        return draw(logits_TV, torch.full_like(uniform_T, self.request.temperature), uniform_T).tolist()

    def _commit(self, tokens: list[int]) -> int:
        """Appends tokens up to and with the first end token; returns how many."""
        for count, token in enumerate(tokens, 1):
            self.ids.append(token)
            if token in self.end_ids:
                return count
        return len(tokens)

    def _finish_reason(self) -> str | None:
        if self.ids[-1] in self.end_ids:
            return "stop"
        return "length" if len(self.ids) == self.limit else None
