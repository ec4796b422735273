"""Faults between a drafter and its server, planted offline: the same drafter and states, wrong in one known way.

Each suspect knows how to make the drafter (in place, undone afterwards) or its rows wrong; what would then be accepted
is computed by the ordinary simulation. Several are faults that a server makes without a word.

Shapes: T tokens, A aux layers, H hidden, K draft steps, W draft vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from eagle3lab.draft.model import random_like

THETAS = (10_000.0, 100_000.0, 500_000.0, 1_000_000.0)  # RoPE bases in use
# cause -> what to do about it
REMEDIES = {
    "flag": "start the server with --speculative-algorithm EAGLE3",
    "vocabulary map": "write d2t as offsets (target id - draft id), and lm_head rows in the same order",
    "tensors": "compare the checkpoint's tensor names with the engine's: python -m eagle3lab doctor --draft FOLDER",
    "layers": "compare the layer ids of the draft's config with those trained on (hs indices; SGLang writes one less)",
    "position": "compare the places of features, tokens and positions in training and serving",
    "rope": "make rope_theta of the draft's config that of its training",
    "norm": "check that the checkpoint holds the norm and that the engine's release knows its flag",
    "head": "export the drafter's own lm_head, and let the server load it",
    "template": "render the prompts with the template and system prompt that the drafter was trained with",
    "target": "extract the states from the very target that is served: same weights, quantisation and rotation",
    "precision": "compare in float32: near ties fall otherwise in bfloat16; a few differing verifications are no fault",
}


@dataclass(frozen=True)
class Suspect:
    """One way to be wrong. `cause` is one of REMEDIES.

    plant(draft): a context in which the drafter is wrong. rows(rows): the rows as the fault would show them. never: the
    fault accepts nothing, but by chance, so nothing has to be computed. Suspects that never accept cannot be told apart
    by what was accepted; they rank in the order of `suspects`, and what the server says of itself excludes some.
    """

    cause: str
    name: str
    plant: Callable[[Any], AbstractContextManager] = nullcontext
    rows: Callable[[Iterable], Iterable] = iter
    never: bool = False

    def __post_init__(self):
        if self.cause not in REMEDIES:
            raise ValueError(f"{self.name}: cause {self.cause!r} is none of {', '.join(REMEDIES)}")


def suspects(
    draft, other_rows: Mapping[str, Iterable] | None = None, head_VH: torch.Tensor | None = None
) -> list[Suspect]:
    """All that can be planted in this drafter, likelier ones first among those that look the same.

    other_rows: the same answers captured otherwise, by cause and name: {"layers: one layer later": rows, "template: no
    system prompt": rows, "target: fp8": rows}. head_VH: the target's output head: did it replace the drafter's.
    """
    found = [
        Suspect("flag", "algorithm EAGLE instead of EAGLE3", never=True),
        *_vocabulary(draft),
        *_tensors(),
        *_layers(draft),
        *_positions(),
        *_rope(draft),
        *_norms(draft),
    ]
    if head_VH is not None and head_VH.shape[1] == draft.lm_head.weight.shape[1]:
        head_WH = head_VH[draft.target_ids_W].to(draft.lm_head.weight.dtype)
        found.append(Suspect("head", "lm_head overwritten by the target's", _weight("lm_head", head_WH)))
    for name, rows in (other_rows or {}).items():
        cause, _, what = name.partition(":")
        found.append(Suspect(cause, what.strip() or cause, rows=_of({row.id: row for row in rows})))
    return [*found, Suspect("precision", "bfloat16 weights and states", _in_bfloat16, _rounded)]


def _vocabulary(draft) -> list[Suspect]:
    ids_W, V = draft.target_ids_W, draft.config.vocab_size
    own_W = torch.arange(len(ids_W), device=ids_W.device)
    found = [Suspect("vocabulary map", "lm_head rows in another order than d2t", never=True)]
    if not torch.equal(ids_W, own_W):
        found.append(Suspect("vocabulary map", "no d2t: draft ids taken for target ids", _map(own_W)))
        absolute_W = (ids_W + own_W).clamp(max=V - 1)
        found.append(Suspect("vocabulary map", "d2t holds target ids instead of offsets", _map(absolute_W)))
    return found


def _tensors() -> list[Suspect]:
    parts = {"the decoder layer": "midlayer.", "fc": "fc."}
    some = [Suspect("tensors", f"{name} not loaded: random", _randomised(prefix)) for name, prefix in parts.items()]
    return [Suspect("tensors", "no weight loaded: all random", never=True), *some]


def _layers(draft) -> list[Suspect]:
    if len(draft.config.aux_layers) < 2:
        return []
    return [Suspect("layers", "aux layers in the opposite order", rows=_each(lambda aux_TAH: aux_TAH.flip(1)))]


def _positions() -> list[Suspect]:
    return [
        Suspect("position", "states one token late", rows=_each(lambda aux_TAH: aux_TAH.roll(1, 0))),
        Suspect("position", "states one token early", rows=_each(lambda aux_TAH: aux_TAH.roll(-1, 0))),
        Suspect("position", "drafted tokens one RoPE position too far", _drafted_too_far),
    ]


def _rope(draft) -> list[Suspect]:
    now = draft.config.rope_theta
    others = [theta for theta in THETAS if theta != now]
    found = [Suspect("rope", f"RoPE theta {x:,.0f} instead of {now:,.0f}", _config(rope_theta=x)) for x in others]
    if draft.config.rope_llama3:
        found.append(Suspect("rope", "Llama 3's scaling of RoPE left out", _config(rope_llama3=None)))
    return found


def _norms(draft) -> list[Suspect]:
    names = ["midlayer.hidden_norm", "midlayer.input_layernorm", "midlayer.post_attention_layernorm", "norm"]
    found = [
        Suspect("norm", f"{name} not loaded: ones", _weight(name, torch.ones_like))
        for name in names
        if not bool((draft.get_parameter(f"{name}.weight") == 1).all())
    ]
    flag = not draft.config.norm_output
    found.append(Suspect("norm", f"norm_output read as {flag}", _config(norm_output=flag)))
    if draft.fc_norm is not None:
        found.append(Suspect("norm", "fc_norm left out", _without("fc_norm")))
    if draft.input_norm is not None:
        found.append(Suspect("norm", "norm_before_fc left out", _without("input_norm")))
    if draft.config.norm_before_residual:  # which SGLang does not know
        found.append(Suspect("norm", "norm_before_residual left out", _config(norm_before_residual=False)))
    return found


# ---- plants: each makes the drafter wrong and takes it back ----------------------------------------------------


def _each(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Iterable], Iterator]:
    return lambda rows: (replace(row, aux_TAH=change(row.aux_TAH)) for row in rows)


def _of(other: Mapping[str, Any]) -> Callable[[Iterable], Iterator]:
    return lambda rows: (other[row.id] for row in rows)


def _rounded(rows: Iterable) -> Iterator:
    return _each(lambda aux_TAH: aux_TAH.to(torch.bfloat16).to(aux_TAH.dtype))(rows)


def _map(ids_W: torch.Tensor):
    def plant(draft):
        return _swapped(draft, "target_ids_W", ids_W)

    return plant


def _config(**changes):
    @contextmanager
    def plant(draft):
        kept, draft.config = draft.config, replace(draft.config, **changes)
        try:
            yield
        finally:
            draft.config = kept

    return plant


def _weight(name: str, value):
    """The weight of a module replaced by a tensor, or by a function of it."""

    @contextmanager
    def plant(draft):
        module = draft.get_submodule(name)
        kept = module.weight.data
        module.weight.data = value(kept) if callable(value) else value.to(kept.device)
        try:
            yield
        finally:
            module.weight.data = kept

    return plant


def _without(norm: str):
    def plant(draft):
        return _swapped(draft, norm, None)

    return plant


@contextmanager
def _swapped(draft, name: str, value):
    """The drafter with another attribute for a while."""
    kept = getattr(draft, name)
    setattr(draft, name, value)
    try:
        yield
    finally:
        setattr(draft, name, kept)


@contextmanager
def _with_weights(draft, weights: Mapping[str, torch.Tensor]):
    kept = {name: parameter.data for name, parameter in draft.named_parameters()}
    for name, parameter in draft.named_parameters():
        parameter.data = weights[name].to(parameter.device)
    try:
        yield
    finally:
        for name, parameter in draft.named_parameters():
            parameter.data = kept[name]


def _randomised(prefix: str):
    def plant(draft):
        random = dict(random_like(draft, 0).named_parameters())
        own = dict(draft.named_parameters())
        return _with_weights(draft, {n: (random if n.startswith(prefix) else own)[n].data for n in own})

    return plant


def _in_bfloat16(draft):
    rounded = {name: p.data.to(torch.bfloat16).to(p.dtype) for name, p in draft.named_parameters()}
    return _with_weights(draft, rounded)


@contextmanager
def _drafted_too_far(draft):
    """Slots of drafted tokens (they come without `queries`, see draft/ttt.py) one position on, true ones in place."""
    right = draft.qkv

    def wrong(f_TH, ids_T, positions_T, queries=None):
        return right(f_TH, ids_T, positions_T + (queries is None), queries)

    draft.qkv = wrong
    try:
        yield
    finally:
        del draft.qkv
