"""Parameters: read from the notebook's parameters cell by its syntax tree, layered, and fitted strictly.

Layers: cell defaults < params/<profile>/common.yaml < params/<profile>/<stage>.yaml < command line; of a profile that
`extends` another one, that one's two files come first.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .constraints import violations
from .layers import COMMON, EXTENDS, profile_chain
from .notebooks import load_notebook, parameters_cell
from .root import show_path
from .stages import STAGES, Stage, get_stage
from .types import Declared, TypeMismatch, fit, from_text, nearest, parse_annotation

CELL_DEFAULT = "cell default"
COMMAND_LINE = "command line"


class ParameterError(ValueError):
    """A parameter that is unknown, of the wrong type, or impossible; the text says what to write."""


class CommandLineText(str):
    """A value typed on the command line: read as text of the declared type instead of as a value."""


@dataclass(frozen=True)
class Param:
    """One line of a parameters cell: its name, declared type, default value and comment."""

    name: str
    declared: Declared
    default: Any
    comment: str


@dataclass(frozen=True)
class Resolved:
    """The final values of a stage's parameters, in cell order, and where each came from."""

    values: dict[str, Any]
    origins: dict[str, str]


def run_parameter(stage: str) -> str:
    """Name of the parameter that picks the upstream run of `stage`: `training_run`."""
    return f"{stage}_run"


def read_parameters(notebook: str | Path) -> list[Param]:
    """The parameters of a notebook, by its syntax tree (papermill's own parser misses `str | None` and
    more).

    Each line is `name: type = literal  # comment`; a leading `from typing import Literal` is allowed.
    Raises ParameterError with notebook and line for anything else, NotebookError without exactly one such
    cell.
    """
    name = show_path(notebook)
    cell = parameters_cell(load_notebook(notebook), name)
    try:
        body = ast.parse(cell).body
    except SyntaxError as error:
        raise ParameterError(f"{name}: the parameters cell is not Python: {error}") from error
    comments = _comments(cell)
    params: list[Param] = []
    for statement in body:
        if isinstance(statement, ast.ImportFrom) and statement.module == "typing":
            continue
        where = f"{name}, parameters cell, line {statement.lineno}"
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value):
            raise ParameterError(
                f"{where}: write `name: type = literal  # comment`, found "
                f"`{ast.unparse(statement)}`; derive values in a later cell"
            )
        param = statement.target.id
        if any(known.name == param for known in params):
            raise ParameterError(f"{where}: {param} stands twice")
        try:
            declared = parse_annotation(statement.annotation)
            default = fit(ast.literal_eval(statement.value), declared)
        except TypeMismatch as problem:
            raise ParameterError(f"{where}: {param}: {problem}") from None
        except ValueError as problem:
            raise ParameterError(f"{where}: {param} must be a plain literal of a supported type: {problem}") from None
        comment = comments.get(statement.end_lineno or statement.lineno, "")
        params.append(Param(param, declared, default, comment))
    return params


def _comments(cell: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(cell).readline)
    return {token.start[0]: token.string.lstrip("# ").strip() for token in tokens if token.type == tokenize.COMMENT}


def stage_parameters(stage: str) -> list[Param]:
    """The parameters of a stage's notebook; ParameterError when one that every stage must have is missing.

    Needed: `profile: str`, `runs_dir: str`, and `<upstream>_run: str` for each stage that this one needs.
    """
    spec = get_stage(stage)
    params = read_parameters(spec.notebook_path)
    for needed in needed_parameters(spec):
        if not any(param.name == needed and param.declared.kind == "str" for param in params):
            raise ParameterError(f"{spec.notebook} lacks the parameter `{needed}: str`")
    return params


def needed_parameters(stage: Stage) -> list[str]:
    """Names that the parameters cell of a stage must hold."""
    return ["profile", "runs_dir", *(run_parameter(upstream) for upstream in stage.needs)]


def all_parameter_names() -> set[str]:
    """Names that at least one of the notebooks present knows."""
    return set().union(*_names_by_stage().values())


def _names_by_stage() -> dict[str, set[str]]:
    """Stage -> the names that its notebook knows, of the notebooks present."""
    present = {name: stage.notebook_path for name, stage in STAGES.items() if stage.notebook_path.exists()}
    return {name: {param.name for param in read_parameters(path)} for name, path in present.items()}


def resolve_parameters(stage: str, profile: str, overrides: Mapping[str, Any] | None = None) -> Resolved:
    """The values a stage runs with under a profile, each with its origin.

    `overrides` are values, or CommandLineText to be read as the declared type. Raises ParameterError for an
    unknown name (with the nearest right one), a value of the wrong type, or an impossible combination, and
    LayerError for a parameter file that cannot be used.
    """
    params = {param.name: param for param in stage_parameters(stage)}
    values = {name: param.default for name, param in params.items()}
    origins = dict.fromkeys(params, CELL_DEFAULT)

    def put(name: str, value: Any, origin: str) -> None:
        values[name] = fit_parameter(params[name], value, f"{stage}, {origin}")
        origins[name] = origin

    for layers in profile_chain(profile):
        for layer in (COMMON, stage):
            if layer not in layers:
                continue
            path, written = layers[layer]
            known = {*all_parameter_names(), EXTENDS} if layer == COMMON else set(params)
            for name, value in written.items():
                if name not in known:
                    raise ParameterError(f"{show_path(path)}: unknown parameter {name!r}{nearest(name, known)}")
                if name in params:
                    put(name, value, show_path(path))
    for name, value in (overrides or {}).items():
        if name not in params:
            raise ParameterError(f"{stage} has no parameter {name!r}{nearest(name, params)}")
        if name == "profile":
            raise ParameterError("the profile is chosen by the command (`run PROFILE`), not as a parameter")
        put(name, value, COMMAND_LINE)
    refuse_impossible(stage, values)
    return Resolved(values, origins)


def fit_parameter(param: Param, value: Any, where: str) -> Any:
    """`value` as the declared type of `param`; ParameterError begins with `where`."""
    try:
        return from_text(value, param.declared) if isinstance(value, CommandLineText) else fit(value, param.declared)
    except TypeMismatch as problem:
        raise ParameterError(f"{where}: {param.name}: {problem}") from None


def refuse_impossible(stage: str, values: Mapping[str, Any]) -> None:
    """ParameterError that lists every constraint the values break."""
    broken = violations(values)
    if broken:
        raise ParameterError(f"{stage}: impossible parameters: " + "; ".join(broken))


def share_overrides(stages: list[str], overrides: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Overrides for each of `stages`: a name goes to all that know it; ParameterError when none does."""
    known = {stage: {param.name for param in stage_parameters(stage)} for stage in stages}
    everywhere = set().union(*known.values())
    for name in overrides:
        if name not in everywhere:
            elsewhere = [stage for stage, names in _names_by_stage().items() if name in names]
            if elsewhere:
                belongs = f"parameter {name!r} belongs to {', '.join(elsewhere)}, which is not selected"
                raise ParameterError(f"{belongs}; selected: {', '.join(stages)}")
            raise ParameterError(f"unknown parameter {name!r}{nearest(name, everywhere)} in {', '.join(stages)}")
    return {stage: {n: v for n, v in overrides.items() if n in names} for stage, names in known.items()}
