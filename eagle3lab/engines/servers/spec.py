"""What the specifications of all engines' servers share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from eagle3lab.engines.servers.own_flags import own_flag

DTYPES = ("auto", "bfloat16", "float16", "float32")
DEVICES = ("cuda", "cpu")


class SpecError(ValueError):
    """A server specification that contradicts itself. The message names the parameter."""


def check_values(spec: Any, counts: Iterable[str]) -> None:
    """The fields that all specifications have, and the fields of these names: None, or a whole number above 0.
    SpecError names the one that is wrong."""
    if not spec.target:
        raise SpecError("target is empty: give the target's folder")
    for name, allowed in (("dtype", DTYPES), ("device", DEVICES)):
        if getattr(spec, name) not in allowed:
            raise SpecError(f"{name}={getattr(spec, name)!r} is none of {', '.join(allowed)}")
    for name in counts:
        value = getattr(spec, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise SpecError(f"{name}={value!r} must be a whole number, 1 or more")
    if spec.mem_fraction is not None and not 0 < spec.mem_fraction < 1:
        raise SpecError(f"mem_fraction={spec.mem_fraction} must lie between 0 and 1")


def checked_layers(values: Iterable[int]) -> tuple[int, ...]:
    """hs indices to capture; SpecError when there is none, or one that is no index."""
    layers = tuple(values)
    if not layers or any(not isinstance(k, int) or isinstance(k, bool) or k < 0 for k in layers):
        raise SpecError(f"aux_layers={layers} must be hs indices: at least one whole number, none below 0")
    return layers


def checked_words(extra: Iterable[str], own: Iterable[str]) -> tuple[str, ...]:
    """Further flags of a command line, one word each; SpecError for one text, and for a flag among `own`, those that
    are written from the specification."""
    if isinstance(extra, str):
        raise SpecError(f"extra={extra!r} is one text: give a list, one flag or value each")
    words = tuple(map(str, extra))
    for word in words:
        if flag := own_flag(word, own):
            raise SpecError(
                f"extra has {word!r}: {flag} is written from the other fields, and of two the later one would win; set "
                "the field (algorithm, num_steps, target, dtype, device, cuda_graphs ...) instead"
            )
    return words
