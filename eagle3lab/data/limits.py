"""What a row must be to be kept, and a set's own settings as a user writes them: `opencode.limit_train=14714`."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, Literal

from eagle3lab.data.filters import parse_columns, parse_where
from eagle3lab.data.sources import SetSpec, set_spec


@dataclass(frozen=True)
class Limits:
    """What a row must be to be kept. A limit of None means all; characters and tokens are inclusive
    bounds.

    `min_chars` / `max_chars` bound the first user text of a prompt; `max_prompt_tokens` bounds the rendered prompt,
    template included. `max_reference_tokens` 0 keeps no reference answers. Of tokenized sets: samples are cut at
    `max_sample_tokens` (None: the target's context), and where each answer is a sample of its own, a conversation
    gives at most `max_samples`.
    """

    limit_train: int | None = None
    limit_heldout: int | None = 64
    min_chars: int = 20
    max_chars: int = 1500
    max_prompt_tokens: int = 256
    max_reference_tokens: int = 0
    heldout_share: float = 0.1
    seed: int = 0
    max_sample_tokens: int | None = None
    max_samples: int | None = None

    def check(self, context_length: int | None) -> None:
        """ValueError naming the parameter when the limits cannot be met."""
        if not 0 < self.heldout_share < 1:
            raise ValueError(f"heldout_share must lie between 0 and 1, got {self.heldout_share}")
        if not 0 < self.min_chars <= self.max_chars:
            raise ValueError(f"min_chars {self.min_chars} and max_chars {self.max_chars} leave no prompt")
        for name, least in (("limit_train", 0), ("limit_heldout", 0), ("max_sample_tokens", 2), ("max_samples", 1)):
            if getattr(self, name) is not None and getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if context_length is not None and self.max_prompt_tokens >= context_length:
            raise ValueError(
                f"max_prompt_tokens {self.max_prompt_tokens} leaves no room for an answer in the "
                f"target's context of {context_length} tokens; lower it"
            )


@dataclass(frozen=True)
class SetPlan:
    """One set to prepare, with its own limits."""

    spec: SetSpec
    limits: Limits


# settings of a set that a user may change; the rest says where its rows are
SETTINGS = ("kind", "partition", "config", "split", "files", "revision", "columns", "where", "max_rows", "turn",
             "system", "tools", "thinking")  # fmt: skip


def plan_sets(sets: Iterable[str], limits: Limits, options: Iterable[str] = ()) -> list[SetPlan]:
    """The sets to prepare, in order: names as `set_spec` takes them, the limits common to all, and options of one
    set, `SET.NAME=VALUE`, where NAME is a limit or a setting of the set (split, where, turn, system, tools ...).

    ValueError for a set named twice, an option of no set, an unknown name or a value of the wrong type.
    """
    plans: dict[str, SetPlan] = {}
    for text in sets:
        spec = set_spec(text)
        if spec.name in plans:
            raise ValueError(f"set {spec.name!r} is named twice")
        own = replace(limits, limit_train=spec.limit) if limits.limit_train is None else limits
        plans[spec.name] = SetPlan(spec, own)
    for text in options:
        key, equals, value = text.partition("=")
        name, dot, setting = key.strip().rpartition(".")
        if not (equals and dot):
            raise ValueError(f"set option {text!r} is not SET.NAME=VALUE, e.g. opencode.limit_train=1000")
        if name not in plans:
            raise ValueError(f"set option {text!r}: {name!r} is none of the sets: {', '.join(plans)}")
        plans[name] = _with(plans[name], setting, value.strip(), text)
    for plan in plans.values():
        parse_where(plan.spec.where)
        parse_columns(plan.spec.columns)
    return list(plans.values())


def _with(plan: SetPlan, setting: str, value: str, text: str) -> SetPlan:
    of_limits = {f.name for f in fields(Limits)}
    if setting in of_limits:
        return replace(plan, limits=replace(plan.limits, **{setting: _read(Limits, setting, value, text)}))
    if setting in SETTINGS:
        return replace(plan, spec=replace(plan.spec, **{setting: _read(SetSpec, setting, value, text)}))
    known = sorted(of_limits | set(SETTINGS))
    near = get_close_matches(setting, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    raise ValueError(f"set option {text!r}: there is no {setting!r}; {hint}")


def _read(owner: type, name: str, value: str, text: str) -> Any:
    """The value in the type of the field; "all" and "none" are None where that is possible."""
    kind = typing.get_type_hints(owner)[name]
    if typing.get_origin(kind) is types.UnionType:
        if value.casefold() in ("all", "none"):
            return None
        kind = next(k for k in typing.get_args(kind) if k is not type(None))
    if typing.get_origin(kind) is Literal:
        if value not in typing.get_args(kind):
            raise ValueError(f"set option {text!r}: possible are {', '.join(typing.get_args(kind))}")
        return value
    try:
        return kind(value)
    except ValueError as error:
        raise ValueError(f"set option {text!r}: {value!r} is not {kind.__name__}") from error
