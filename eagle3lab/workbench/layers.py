"""Parameter files read strictly: what YAML 1.1 changes silently is refused with the line it stands on.

A profile may stand on another one: `extends: kimi_k25` in its common.yaml. Everything it says itself, in common.yaml or
a stage's file, goes before everything that the other one says. Plain papermill is given the files in the same order:
`-f params/kimi_k25/common.yaml -f params/kimi_k25/STAGE.yaml -f params/OWN/common.yaml -f params/OWN/STAGE.yaml`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from .root import repository_root, show_path
from .stages import STAGES
from .types import nearest

COMMON, EXTENDS = "common", "extends"
PLAN = "plan"  # facts and assumptions for `plan`, no layer of parameters (assumptions.py)


class LayerError(ValueError):
    """A parameter file or folder that cannot be used; the text names file and line."""


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader without dates, with only `true`/`false` as truth values and only plain decimal integers."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def strict_bool(self, node: yaml.ScalarNode) -> bool:
        if node.value.lower() not in ("true", "false"):
            raise LayerError(
                f"line {node.start_mark.line + 1}: {node.value} is read as a truth value: "
                "write true or false, or put it in quotes"
            )
        return node.value.lower() == "true"

    def strict_int(self, node: yaml.ScalarNode) -> int:
        if not re.fullmatch(r"[-+]?(0|[1-9][0-9_]*)", node.value):
            raise LayerError(
                f"line {node.start_mark.line + 1}: {node.value} is not a plain decimal integer "
                "(YAML would read 010 as 8): write it in decimal, or put it in quotes"
            )
        return int(node.value.replace("_", ""))

    def strict_mapping(self, node: yaml.MappingNode) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node)
            if key in seen:
                raise LayerError(f"line {key_node.start_mark.line + 1}: {key} stands twice")
            seen.add(key)
        return self.construct_mapping(node, deep=True)


_StrictLoader.add_constructor("tag:yaml.org,2002:bool", _StrictLoader.strict_bool)
_StrictLoader.add_constructor("tag:yaml.org,2002:int", _StrictLoader.strict_int)
_StrictLoader.add_constructor("tag:yaml.org,2002:map", _StrictLoader.strict_mapping)


def load_layer(path: Path) -> dict[str, Any]:
    """The flat mapping of one parameter file (empty for an empty file); LayerError names file and line."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except LayerError as error:
        raise LayerError(f"{show_path(path)}, {error}") from None
    except yaml.YAMLError as error:
        raise LayerError(f"{show_path(path)} is not YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise LayerError(f"{show_path(path)} must hold `name: value` lines and nothing else")
    return content


def profiles() -> list[str]:
    """Names of the profiles: the folders under params/ that hold a common.yaml."""
    return sorted(path.parent.name for path in (repository_root() / "params").glob(f"*/{COMMON}.yaml"))


def profile_layers(profile: str) -> dict[str, tuple[Path, dict[str, Any]]]:
    """All files of a profile: `common`, stage names and `plan` -> (file, values).

    LayerError for an unknown profile, a file named after no stage, or a common.yaml that does not say
    `profile: <its folder>` (plain papermill needs that line to give the run the same identity).
    """
    folder = repository_root() / "params" / profile
    if not (folder / f"{COMMON}.yaml").exists():
        raise LayerError(
            f"no profile {profile!r} under params/{nearest(profile, profiles())}; "
            f"there are: {', '.join(profiles()) or 'none'}"
        )
    layers = {path.stem: (path, load_layer(path)) for path in sorted(folder.glob("*.yaml"))}
    for name in layers:
        if name not in (COMMON, PLAN) and name not in STAGES:
            raise LayerError(f"{show_path(layers[name][0])} is named after no stage{nearest(name, STAGES)}")
    written = layers[COMMON][1].get("profile")
    if written != profile:
        raise LayerError(f"{show_path(layers[COMMON][0])} must hold the line `profile: {profile}` (found: {written!r})")
    for name, (path, values) in layers.items():
        if name != COMMON and "profile" in values:
            raise LayerError(f"{show_path(path)}: `profile` belongs in common.yaml alone")
    return layers


def profile_chain(profile: str) -> list[dict[str, tuple[Path, dict[str, Any]]]]:
    """The files of a profile (see `profile_layers`) behind those of the profiles it stands on, the last word last.
    LayerError for a profile that stands on itself, else as `profile_layers`."""
    chain: dict[str, dict[str, tuple[Path, dict[str, Any]]]] = {}
    name: str | None = profile
    while name is not None:
        if name in chain:
            raise LayerError(f"profile {profile!r} stands on itself: {' extends '.join([*chain, name])}")
        chain[name] = profile_layers(name)
        name = chain[name][COMMON][1].get(EXTENDS)
    return [*chain.values()][::-1]


def common_names(profile: str) -> set[str]:
    """Names in a profile's common.yaml, and in those it stands on; empty for a profile that has no files (a notebook
    used by hand)."""
    if not (repository_root() / "params" / profile / f"{COMMON}.yaml").exists():
        return set()
    return {name for layers in profile_chain(profile) for name in layers[COMMON][1]}
