"""The served half of "simulated against served": answers of an engine of this process, or of a server that runs
already, with what that server says of itself, so that causes are ranked from both.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from eagle3lab.analysis.doctor import causes_excluded, causes_shown
from eagle3lab.analysis.doctor.serving import check_server
from eagle3lab.analysis.heldout import AnswerRow, capture_answers
from eagle3lab.analysis.parity import Parity, ParityError, compare
from eagle3lab.analysis.server_states import ServerStates
from eagle3lab.analysis.suspects import suspects
from eagle3lab.analysis.verdict import Checked
from eagle3lab.engines.base import Request, SpecCompletion
from eagle3lab.engines.embedded import EmbeddedEngine
from eagle3lab.engines.servers.model_files import read_draft
from eagle3lab.engines.sglang.attach import ServerInfo, attach
from eagle3lab.engines.sglang.blocking import generate_in_order
from eagle3lab.engines.sglang.engine import SGLangEngine
from eagle3lab.engines.sglang.pool import Speculation

EMBEDDED = "embedded engine, float32"
AT_ONCE = 8  # requests on their way to a server


@dataclass(frozen=True)
class ServeSide:
    """Served answers and what is known of who served them.

    facts, excluded: causes that its account of itself shows or rules out, see `compare`. beside: the same answers
    captured otherwise, see `suspects`. untold: ids of answers that are left out, because the server did not tell what
    each of their verifications accepted.
    """

    completions: Sequence[SpecCompletion]
    name: str = EMBEDDED
    facts: Mapping[str, str] = field(default_factory=dict)
    excluded: Collection[str] = ()
    beside: Mapping[str, list[AnswerRow]] = field(default_factory=dict)
    untold: tuple[str, ...] = ()

    def compare(self, draft, rows: Sequence[AnswerRow], num_steps: int, head_VH: torch.Tensor) -> Parity:
        """Against the simulation of `draft` on `rows`. head_VH: the target's output head."""
        candidates = suspects(draft, self.beside, head_VH)
        return compare(draft, rows, self.completions, num_steps, candidates, self.facts, self.excluded)

    def checked(self) -> list[Checked]:
        """The line of checks.json on what a server tells of itself; none for the embedded engine. A fault there need
        not change an answer here: ids are sent, so another chat template meets only those who send text."""
        if self.name.startswith("embedded engine"):
            return []
        found = "; ".join(f"{cause}: {why}" for cause, why in self.facts.items())
        return [Checked("the server's account of itself shows no fault", found or "none", not self.facts)]

    def with_states(self, states: ServerStates) -> "ServeSide":
        """With what the server's states show and rule out."""
        excluded = {*self.excluded, *states.excluded}
        return replace(self, facts={**states.facts, **self.facts}, excluded=excluded)


def ask_server(
    url: str, requests: Sequence[Request], num_steps: int, draft_folder: str | Path, end_ids: Collection[int] = (),
    target: str | Path | None = None, tokenizer: Any = None, beside: Mapping[str, list[AnswerRow]] | None = None,
) -> ServeSide:  # fmt: skip
    """The answers of an SGLang server, and what it shows or rules out by its own account (`check_server`).

    Nothing is refused for a fault of the server: finding it is what the comparison is for. A busy server may send
    several verifications in one part; such answers are asked for again, one at a time, since greedy ones are the same
    each time. ParityError where it does not run a chain of `num_steps`, and where it tells of no answer; ServerGone,
    ServerFault or BadAnswer as `attach`; ModelFilesError for the drafter's folder.
    """
    info = attach(url).info()
    _same_setting(info, num_steps)
    told = check_server(info, read_draft(draft_folder), target, tokenizer)
    done, untold = _in_order(url, requests, end_ids)
    if requests and not done:
        raise ParityError(f"{url} did not tell what each verification accepted: ask it when it is less busy")
    name = f"SGLang {info.version} on {info.device}, {info.dtype}"
    return ServeSide(done, name, causes_shown(told), causes_excluded(told), dict(beside or {}), untold)


def serve(
    host: EmbeddedEngine | SGLangEngine, answers: Sequence[dict], num_steps: int, draft, draft_folder: str | Path,
    target: str | Path, tokenizer: Any, url: str | None = None, watch: Callable = lambda served, total, unit: served,
) -> ServeSide:  # fmt: skip
    """The prompts of `answers` answered once more, with speculation: by the server at `url` where one is given; else by
    `host`, that is by the embedded engine with `draft`, or by a server that it starts for the drafter's folder.

    watch(served, total, unit) is given the embedded engine's answers as they come, and passes them on. Beside a server
    of somebody else the embedded engine also captures the layers before and after (`layers_beside`). LaunchRefused for
    a drafter that does not fit the target, else as the engines' `speculate` and `ask_server`.
    """
    requests = [Request(one["id"], one["prompt_ids"], len(one["output_ids"])) for one in answers]
    embedded = isinstance(host, EmbeddedEngine)
    if url is None and embedded:
        dtype = host.embed_VH.dtype
        served = host.speculate(deepcopy(draft).to(dtype), requests, num_steps)
        name = f"embedded engine, {str(dtype).removeprefix('torch.')}"
        return ServeSide(list(watch(served, len(requests), "answers served")), name)
    beside = layers_beside(host, answers) if url and embedded else None
    url = url or host.servers.speculating(Speculation(str(draft_folder), num_steps)).url
    return ask_server(url, requests, num_steps, draft_folder, host.end_ids, target, tokenizer, beside)


def _in_order(url: str, requests: Sequence[Request], end_ids: Collection[int]) -> tuple[list, tuple[str, ...]]:
    """(answers that tell their verifications in order, ids of those that do not)."""
    answers = list(generate_in_order(url, requests, AT_ONCE, end_ids=end_ids))
    told = [answer for answer in answers if answer.accepted is not None]
    return told, tuple(answer.id for answer in answers if answer.accepted is None)


def _same_setting(info: ServerInfo, num_steps: int) -> None:
    if info.algorithm is None:
        raise ParityError(f"{info.url} does not speculate: start it with the drafter and EAGLE3")
    if (info.num_steps, info.topk) != (num_steps, 1):
        raise ParityError(
            f"{info.url} runs num_steps {info.num_steps}, topk {info.topk}; the simulation is of a chain of "
            f"{num_steps}: set num_steps to the server's, and start it with topk 1"
        )


def layers_beside(
    engine: EmbeddedEngine, answers: Sequence[dict], batch_tokens: int = 2048
) -> dict[str, list[AnswerRow]]:
    """The answers with the states one layer later and one earlier than the engine's, where its target has them.

    Captured in one pass, in float32, by an engine made for it.
    """
    layers, there = list(engine.aux_layers), range(engine.target.num_layers)
    shifts = {by: words for by, words in ((1, "later"), (-1, "earlier")) if all(k + by in there for k in layers)}
    wanted = sorted({k + by for by in shifts for k in layers})
    if not wanted:
        return {}
    other = EmbeddedEngine(engine.target.folder, "float32", wanted, trust_remote_code=engine.target.trust_remote_code)
    rows = list(capture_answers(other, answers, batch_tokens))
    found = {}
    for by, words in shifts.items():
        places = [wanted.index(k + by) for k in layers]
        found[f"layers: one layer {words}"] = [replace(row, aux_TAH=row.aux_TAH[:, places]) for row in rows]
    return found
