"""The types a parameters cell may declare, read from its annotations, and the strict fit of values to them.

str, int, float, bool, None, list[...], dict[...], Literal[...] and unions with `|`. A value is taken as it
is or refused with a hint; nothing is guessed, because YAML and papermill change types on the way (`1e-4`
becomes text, `-p flag true` becomes a truthy string).
"""

from __future__ import annotations

import ast
import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import yaml

_PLAIN = ("str", "int", "float", "bool", "list", "dict")


class TypeMismatch(ValueError):
    """A value does not fit its declared type; the text says what was wanted and what to write."""


@dataclass(frozen=True)
class Declared:
    """A declared type: `kind` is a plain name, "none", "literal" or "union"; `inner` are its members.

    `inner` holds the item type of a list, key and value types of a dict, the allowed values of a literal,
    the members of a union.
    """

    kind: str
    inner: tuple = ()

    def __str__(self) -> str:
        if self.kind == "literal":
            return f"Literal[{', '.join(map(repr, self.inner))}]"
        if self.kind == "union":
            return " | ".join(map(str, self.inner))
        if self.kind == "none":
            return "None"
        return f"{self.kind}[{', '.join(map(str, self.inner))}]" if self.inner else self.kind


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the known name nearest to `name`, or an empty string."""
    cutoff = 0.5 if len(name) < 6 else 0.7  # one slip is a large share of a short name
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f" (did you mean {close[0]!r}?)" if close else ""


def parse_annotation(node: ast.expr) -> Declared:
    """The declared type of an annotation's syntax tree; ValueError when it is not one of the supported
    types.
    """
    if isinstance(node, ast.Constant) and node.value is None:
        return Declared("none")
    if isinstance(node, ast.Name) and node.id in _PLAIN:
        return Declared(node.id)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        left, right = parse_annotation(node.left), parse_annotation(node.right)
        members = (left.inner if left.kind == "union" else (left,)) + (
            right.inner if right.kind == "union" else (right,)
        )
        return Declared("union", members)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if node.value.id == "Literal" and all(isinstance(item, ast.Constant) for item in items):
            return Declared("literal", tuple(item.value for item in items))
        if node.value.id == "list" and len(items) == 1:
            return Declared("list", (parse_annotation(items[0]),))
        if node.value.id == "dict" and len(items) == 2:
            return Declared("dict", tuple(parse_annotation(item) for item in items))
    raise ValueError(
        f"the type {ast.unparse(node)!r} is not supported: use str, int, float, bool, list[...], dict[...], "
        "Literal[...], or a union such as `str | None`"
    )


def yaml_number(value: float) -> str:
    """`value` spelled so that YAML 1.1 reads a float: 1e-4 -> '1.0e-4', 250000 -> '2.5e+5', exactly."""
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    fraction = "".join(map(str, digits[1:])) or "0"
    return f"{'-' * sign}{digits[0]}.{fraction}e{exponent + len(digits) - 1:+d}"


def fit(value: Any, declared: Declared) -> Any:
    """`value` as the declared type (an int is widened to a float); TypeMismatch says what to write
    otherwise.
    """
    if declared.kind == "union":
        return _fit_union(value, declared)
    if declared.kind == "literal":
        for allowed in declared.inner:
            if type(value) is type(allowed) and value == allowed:
                return value
        hint = nearest(value, [a for a in declared.inner if isinstance(a, str)]) if isinstance(value, str) else ""
        raise TypeMismatch(f"{value!r} is not one of {', '.join(map(repr, declared.inner))}{hint}")
    if declared.kind == "float":
        return _fit_float(value)
    if declared.kind == "none":
        if value is None:
            return None
    elif type(value).__name__ == declared.kind:
        if declared.kind == "list" and declared.inner:
            return [fit(item, declared.inner[0]) for item in value]
        if declared.kind == "dict" and declared.inner:
            return {fit(k, declared.inner[0]): fit(v, declared.inner[1]) for k, v in value.items()}
        return value
    raise TypeMismatch(f"{value!r} is {_name(value)}, wanted {declared}{_hint(value, declared)}")


def _fit_union(value: Any, declared: Declared) -> Any:
    problems = []
    for member in declared.inner:
        try:
            return fit(value, member)
        except TypeMismatch as problem:
            if member.kind != "none":
                problems.append(str(problem))
    raise TypeMismatch(problems[0] if len(problems) == 1 else f"{value!r} is {_name(value)}, wanted {declared}")


def _fit_float(value: Any) -> float:
    if type(value) in (int, float):
        if math.isfinite(value):
            return float(value)
        raise TypeMismatch(f"{value!r} is not a finite number")
    raise TypeMismatch(f"{value!r} is {_name(value)}, wanted float{_hint(value, Declared('float'))}")


def _name(value: Any) -> str:
    return "text" if isinstance(value, str) else "None" if value is None else type(value).__name__


def _hint(value: Any, declared: Declared) -> str:
    if declared.kind in ("float", "int") and isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return ""
        spelled = yaml_number(number) if declared.kind == "float" else str(int(number)) if number % 1 == 0 else ""
        return f": write {spelled} (YAML reads {value!r} as text)" if spelled else ""
    if declared.kind == "int" and isinstance(value, float) and value.is_integer():
        return f": write {int(value)}"
    if declared.kind == "bool":
        return ": write true or false in YAML, or papermill's -y 'name: true' (its -p passes text)"
    if declared.kind == "str" and type(value) in (int, float, bool):
        return ": put it in quotes in YAML, or use papermill's -r"
    if declared.kind == "list" and isinstance(value, tuple):
        return ": write a list (papermill turns tuples into text)"
    return ""


def from_text(text: str, declared: Declared) -> Any:
    """A command-line text as the declared type: `3e-4` for a float, `true` for a bool, `[1, 2]` for a list, of which
    a single value is its one item.
    """
    if declared.kind == "union":
        # text fits str always and a list of str nearly so: those last
        members = sorted(declared.inner, key=lambda member: (member.kind == "str", member.kind == "list"))
        for member in members:
            try:
                return from_text(text, member)
            except TypeMismatch:
                continue
        raise TypeMismatch(f"{text!r} cannot be read as {declared}")
    if declared.kind == "str":
        return text
    try:
        if declared.kind == "int":
            return int(text)
        if declared.kind == "float":
            return _fit_float(float(text))
        if declared.kind == "bool":
            return {"true": True, "false": False}[text.lower()]
        if declared.kind == "none":
            return {"none": None, "null": None}[text.lower()]
    except (ValueError, KeyError) as error:
        raise TypeMismatch(f"{text!r} cannot be read as {declared}") from error
    if declared.kind == "literal":
        return fit({str(allowed): allowed for allowed in declared.inner}.get(text, text), declared)
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise TypeMismatch(f"{text!r} cannot be read as {declared}") from error
    if declared.kind == "list" and declared.inner and isinstance(value, str | int | float):
        return [from_text(text, declared.inner[0])]
    return fit(value, declared)
