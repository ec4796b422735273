"""params/<profile>/plan.yaml: facts of target and data, and assumptions, for a machine that has neither.

Only `plan` reads it. It is as strict as a parameter file: unknown names, missing names and wrong types are refused.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from .layers import PLAN, LayerError, profile_layers
from .root import show_path
from .types import Declared, TypeMismatch, fit, nearest, parse_annotation


@dataclass(frozen=True)
class SetFacts:
    """One data set: training samples, whether the target has yet to answer ("prompts"), and its partition."""

    samples: int
    kind: Literal["prompts", "tokenized"]
    partition: Literal["short", "long"]

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"samples = {self.samples}: must be at least 1")


@dataclass(frozen=True)
class Assumptions:
    """What a plan reckons with.

    samples: of all sets together. layers ... head_dim: the target, by the names of its config.json. sample_tokens,
    answer_tokens: mean tokens of a sample (prompt and answer) and of an answer. answers_per_s: answers a second of the
    server. plain_tok_s: one stream without speculation. served: draft tokens -> [accept length, tok/s] measured before.
    Raises ValueError for samples that do not add up, and numbers below 1 where that means nothing.
    """

    samples: int
    sets: dict[str, SetFacts]
    layers: int
    hidden_size: int
    vocab_size: int
    context_length: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    sample_tokens: int
    answer_tokens: int
    answers_per_s: float | None = None
    plain_tok_s: float | None = None
    served: dict[int, list[float]] | None = None

    def __post_init__(self) -> None:
        total = sum(each.samples for each in self.sets.values())
        if total != self.samples:
            raise ValueError(f"samples = {self.samples}, but its sets have {total} together")
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) in (int, float) and value <= 0:
                raise ValueError(f"{field.name} = {value}: must be above 0")
        for tokens, measured in (self.served or {}).items():
            if len(measured) != 2 or min(measured) <= 0 or self.plain_tok_s is None:
                raise ValueError(
                    f"served[{tokens}] = {measured}: write [accept length, tok/s], both above 0, and plain_tok_s"
                )


def read_assumptions(profile: str) -> Assumptions | None:
    """The plan.yaml of a profile; None when it has none. LayerError names the file and what is wrong in it."""
    layers = profile_layers(profile)
    if PLAN not in layers:
        return None
    path, written = layers[PLAN]
    try:
        sets = fit(written.get("sets"), _declared("dict[str, dict]"))
        made = {name: _make(SetFacts, entry, f"sets, {name}: ") for name, entry in sets.items()}
        return _make(Assumptions, {**written, "sets": made}, "", ready=("sets",))
    except ValueError as error:
        raise LayerError(f"{show_path(path)}: {error}") from None


def _make(kind: type, written: Mapping[str, Any], where: str, ready: tuple[str, ...] = ()) -> Any:
    """A dataclass from a mapping, its values fitted to the annotations; `ready` fields are taken as they are."""
    known = {field.name: field for field in fields(kind)}
    for name in written:
        if name not in known:
            raise ValueError(f"{where}unknown name {name!r}{nearest(name, known)}")
    values = {}
    for name, value in written.items():
        try:
            values[name] = value if name in ready else fit(value, _declared(str(known[name].type)))
        except TypeMismatch as problem:
            raise ValueError(f"{where}{name}: {problem}") from None
    try:
        return kind(**values)
    except TypeError:
        missing = [name for name, field in known.items() if name not in values and field.default is not None]
        raise ValueError(f"{where}missing: {', '.join(missing)}") from None
    except ValueError as problem:
        raise ValueError(f"{where}{problem}") from None


def _declared(annotation: str) -> Declared:
    return parse_annotation(ast.parse(annotation, mode="eval").body)
