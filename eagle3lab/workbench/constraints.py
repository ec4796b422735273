"""Combinations of parameters that cannot work, as one table, refused before a kernel starts.

A rule speaks only where all of its names are parameters of the stage; a parameter set to None keeps silent
too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rule:
    """`holds(*values of names)` must be true; otherwise `message` is shown with names and values."""

    names: tuple[str, ...]
    holds: Callable[..., bool]
    message: str


def _at_least(name: str, least: int) -> Rule:
    return Rule((name,), lambda value: value >= least, f"must be at least {least}")


def _increasing(name: str) -> Rule:
    return Rule(
        (name,),
        lambda sizes: len(sizes) > 0 and all(a < b for a, b in zip([0, *sizes], sizes, strict=False)),
        "must be positive and strictly increasing",
    )


def _numbers(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


RULES: tuple[Rule, ...] = (
    *(
        _at_least(name, 1)
        for name in (
            "num_steps",
            "topk",
            "num_draft_tokens",
            "ttt_steps",
            "max_tokens",
            "batch_size",
            "batch_tokens",
            "epochs",
            "max_prompt_tokens",
            "max_length",
            "draft_vocab_size",
            "shard_tokens",
            "limit_train",
        )
    ),
    *(_at_least(name, 0) for name in ("seed", "temperature", "limit_heldout", "warmup_steps", "min_chars")),
    Rule(("lr",), lambda lr: 0 < lr < 1, "must lie between 0 and 1"),
    Rule(("warmup_ratio",), lambda ratio: 0 <= ratio < 1, "must lie in [0, 1)"),
    Rule(("heldout_share",), lambda share: 0 < share < 1, "must lie between 0 and 1"),
    Rule(
        ("min_chars", "max_chars"), lambda low, high: low < high, "the first must be smaller than the second"
    ),
    _increasing("subset_sizes"),
    Rule(("aux_layers",), lambda layers: len(set(layers)) == len(layers), "must not name a layer twice"),
    Rule(
        ("engine", "topk"),
        lambda engine, topk: engine != "embedded" or all(k == 1 for k in _numbers(topk)),
        "the embedded engine drafts chains: topk must be 1",
    ),
    Rule(
        ("topk", "num_steps", "num_draft_tokens"),
        lambda topk, steps, tokens: topk != 1 or tokens == steps + 1,
        "with topk 1 the verified tokens are the chain: num_draft_tokens must be num_steps + 1",
    ),
)


def violations(values: Mapping[str, Any]) -> list[str]:
    """One line for each rule that `values` break: `lr = 2.0: must lie between 0 and 1`.

    A list stands for several settings tried in turn, so a rule on a single number holds for each of its
    items.
    """
    found = []
    for rule in RULES:
        if any(values.get(name) is None for name in rule.names):
            continue
        chosen = [values[name] for name in rule.names]
        if not _holds(rule, chosen):
            shown = ", ".join(f"{name} = {value!r}" for name, value in zip(rule.names, chosen, strict=True))
            found.append(f"{shown}: {rule.message}")
    return found


def _holds(rule: Rule, chosen: list[Any]) -> bool:
    if (
        len(chosen) == 1
        and isinstance(chosen[0], list)
        and rule.names[0] not in ("subset_sizes", "aux_layers")
    ):
        return all(rule.holds(item) for item in chosen[0])
    if len(chosen) > 1 and rule.names[0] != "engine" and any(isinstance(value, list) for value in chosen):
        return True  # sweeps over several lists are the notebook's product, checked setting by setting there
    return rule.holds(*chosen)
