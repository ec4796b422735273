"""Ranges of the numbers of a training. A notebook refuses what is outside before its kernel starts, the recipe and the
job refuse it wherever they are made: one table for both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any


@dataclass(frozen=True)
class Range:
    """`holds(value)` must be true, and is false for NaN; `message` goes on from "name = value"."""

    holds: Callable[[Any], bool]
    message: str


def at_least(least: int) -> Range:
    """A finite number of `least` or more."""
    return Range(lambda value: least <= value < inf, f"must be at least {least}")


def above(limit: float) -> Range:
    """A finite number above the limit."""
    return Range(lambda value: limit < value < inf, f"must be a finite number above {limit}")


SHARE = Range(lambda value: 0 <= value <= 1, "must lie in [0, 1]")
RANGES: dict[str, Range] = {
    # the recipe
    **dict.fromkeys(("ttt_steps", "epochs", "batch_tokens", "accumulate", "max_length", "window_tokens"), at_least(1)),
    **dict.fromkeys(("step_decay", "step_weights", "lr", "head_lr"), above(0)),
    "clip_norm": above(0),  # 0 trains nothing, less climbs
    "weight_decay": at_least(0),
    "warmup_share": Range(lambda value: 0 <= value < 1, "must lie in [0, 1)"),
    "final_lr_share": SHARE,
    "lk_weight": SHARE,
    "explode_factor": above(1),
    # the job
    **dict.fromkeys(("keep", "log_every", "checkpoint_every", "evaluate_every", "num_steps"), at_least(1)),
    "heldout_rows": at_least(0),
}


def outside(values: Mapping[str, Any]) -> list[str]:
    """One line for each of the values that leaves its range: `clip_norm = 0: must be ...`. None keeps silent; of a list
    every item must hold."""
    found = []
    for name, value in values.items():
        if name not in RANGES or value is None:
            continue
        items = value if isinstance(value, list | tuple) else [value]
        if not all(RANGES[name].holds(item) for item in items):
            found.append(f"{name} = {value!r}: {RANGES[name].message}")
    return found
