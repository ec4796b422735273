"""What the specifications of all engines' servers share."""

from __future__ import annotations

from collections.abc import Iterable

DTYPES = ("auto", "bfloat16", "float16", "float32")
DEVICES = ("cuda", "cpu")


class SpecError(ValueError):
    """A server specification that contradicts itself. The message names the parameter."""


def checked_layers(values: Iterable[int]) -> tuple[int, ...]:
    """hs indices to capture; SpecError when there is none, or one that is no index."""
    layers = tuple(values)
    if not layers or any(not isinstance(k, int) or isinstance(k, bool) or k < 0 for k in layers):
        raise SpecError(f"aux_layers={layers} must be hs indices: at least one whole number, none below 0")
    return layers


def checked_words(extra: Iterable[str]) -> tuple[str, ...]:
    """Further flags of a command line, one word each; SpecError for one text."""
    if isinstance(extra, str):
        raise SpecError(f"extra={extra!r} is one text: give a list, one flag or value each")
    return tuple(map(str, extra))
