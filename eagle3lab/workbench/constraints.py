"""Combinations of parameters that cannot work, as one table, refused before a kernel starts.

A rule speaks only where all of its names are parameters of the stage; a parameter set to None keeps silent
too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .estimates import CODECS, is_codec
from .known_sets import KNOWN_SETS, SET_OPTIONS, names_a_set, options_fit
from .ranges import RANGES
from .server_commands import OWN_FLAGS, names_no_own_flag


@dataclass(frozen=True)
class Rule:
    """`holds(*values of names)` must be true; otherwise `message` is shown with names and values. whole: see
    `violations`."""

    names: tuple[str, ...]
    holds: Callable[..., bool]
    message: str
    whole: bool = False


def _at_least(name: str, least: int) -> Rule:
    return Rule((name,), lambda value: value >= least, f"must be at least {least}")


def _increasing(name: str) -> Rule:
    return Rule(
        (name,),
        lambda values: all(a < b for a, b in zip([0, *values], values, strict=False)),
        "must be positive and strictly increasing",
        whole=True,
    )


def _numbers(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


VARIED = (
    "rows", "tokens",
    "ttt_steps", "step_decay", "lk_weight", "lr", "head_lr", "weight_decay", "warmup_share", "final_lr_share",
    "clip_norm", "epochs", "batch_tokens", "accumulate", "max_length", "window_tokens", "explode_factor",
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps",
    "rope_theta", "max_position_embeddings",
)  # fmt: skip
"""What a scaling study can train: subsets, numbers of the recipe, numbers of the drafter's sizes."""

RATES = ("lr", "head_lr")  # a recipe may have any above 0; in a notebook one of 1 or more is a slip of the pen

RULES: tuple[Rule, ...] = (
    *(
        _at_least(name, 1)
        for name in (
            "topk",
            "num_draft_tokens",
            "max_tokens",
            "batch_size",
            "max_prompt_tokens",
            "concurrency",
            "long_concurrency",
            "long_max_tokens",
            "bench_prompts",
            "rounds",
            "grid_topk",
            "grid_draft_tokens",
            "grid_concurrency",
            "draft_hidden_size",
            "draft_intermediate_size",
            "draft_num_attention_heads",
            "draft_num_key_value_heads",
            "draft_head_dim",
            "draft_vocab_size",
            "shard_tokens",
            "limit_train",
        )
    ),
    *(
        _at_least(name, 0)
        for name in (
            "seed",
            "temperature",
            "grid_temperatures",
            "limit_heldout",
            "warmup_steps",
            "min_chars",
        )
    ),
    Rule(("codec",), is_codec, f"is none of {CODECS}"),
    *(Rule((name,), limits.holds, limits.message) for name, limits in RANGES.items() if name not in RATES),
    *(Rule((name,), lambda lr: 0 < lr < 1, "must lie between 0 and 1") for name in RATES),
    Rule(("warmup_ratio",), lambda ratio: 0 <= ratio < 1, "must lie in [0, 1)"),
    Rule(("heldout_share",), lambda share: 0 < share < 1, "must lie between 0 and 1"),
    Rule(("min_chars", "max_chars"), lambda low, high: low < high, "the first must be smaller than the second"),
    _increasing("amounts"),
    Rule(
        ("vary",),
        lambda vary: vary in (*VARIED, "draft_vocab_size"),
        f"is nothing that a study can vary: {', '.join(VARIED)}; draft_vocab_size of finished runs",
    ),
    Rule(
        ("vary", "amounts"),
        lambda vary, amounts: vary != "draft_vocab_size" or not amounts,
        "the trainings of a study share one vocabulary map: run 03 and 04 once for each draft_vocab_size, name those "
        "trainings in collect_runs, and set amounts = []",
        whole=True,
    ),
    _at_least("wanted", 1),
    Rule(
        ("wanted", "num_steps"),
        lambda wanted, steps: all(value <= steps + 1 for value in wanted),
        "a verification commits at most num_steps + 1 tokens",
        whole=True,
    ),
    Rule(
        ("vary", "amounts"),
        lambda vary, amounts: vary != "rows" or all(float(amount).is_integer() for amount in amounts),
        "rows are whole numbers",
        whole=True,
    ),
    Rule(
        ("vary", "amounts"),
        lambda vary, amounts: vary not in RANGES or all(RANGES[vary].holds(amount) for amount in amounts),
        "an amount is outside what the varied number may be",
        whole=True,
    ),
    Rule(
        ("train_seeds",),
        lambda seeds: len(set(seeds)) == len(seeds) and all(seed >= 0 for seed in seeds),
        "must be 0 or more, and not name a seed twice",
        whole=True,
    ),
    Rule(("aux_layers",), lambda layers: len(set(layers)) == len(layers), "must not name a layer twice", whole=True),
    Rule(
        ("sets",),
        names_a_set,
        f"is no known set with an address; known: {', '.join(KNOWN_SETS)}; another is NAME:ADAPTER:PATH or "
        "NAME:ADAPTER:hub:OWNER/NAME",
    ),
    Rule(
        ("set_options", "sets"),
        options_fit,
        f"an option is SET.NAME=VALUE, of a set that is named; names: {', '.join(SET_OPTIONS)}",
        whole=True,
    ),
    Rule(
        ("processes", "accumulate"),
        lambda processes, accumulate: 1 <= processes <= accumulate,
        "processes share the micro-batches of a step: at least 1, and at most accumulate",
    ),
    Rule(
        ("sharded", "processes"),
        lambda sharded, processes: processes > 1 or not sharded,
        "weights are split over processes: set processes to at least 2",
    ),
    Rule(
        ("export_best", "heldout_rows"),
        lambda best, rows: rows > 0 or not best,
        "the best weights are known by held-out rows: set heldout_rows and evaluate_every",
    ),
    Rule(
        ("engine", "topk"),
        lambda engine, topk: engine != "embedded" or all(k == 1 for k in _numbers(topk)),
        "the embedded engine drafts chains: topk must be 1",
        whole=True,
    ),
    Rule(
        ("engine", "grid_concurrency", "grid_topk"),
        lambda engine, concurrency, topk: engine != "embedded" or not concurrency or {*concurrency, *topk} == {1},
        "the embedded engine speculates one request at a time, in chains: both must be [1]",
        whole=True,
    ),
    Rule(
        ("engine", "beside"),
        lambda engine, beside: engine != beside,
        "a second engine beside the first is another one, or none",
    ),
    Rule(
        ("engine", "codec"),
        lambda engine, codec: engine != "sglang" or "+top" not in codec,
        "a server's capture plugin has no output head: a top-k teacher needs the embedded engine",
    ),
    Rule(
        ("topk", "num_steps", "num_draft_tokens"),
        lambda topk, steps, tokens: topk != 1 or tokens == steps + 1,
        "with topk 1 the verified tokens are the chain: num_draft_tokens must be num_steps + 1",
    ),
    Rule(("draft_head_dim",), lambda size: size % 2 == 0, "must be even: RoPE turns pairs"),
    *(
        Rule(
            (options,),
            lambda words, options=options: names_no_own_flag(words, options),
            f"{', '.join(OWN_FLAGS[options])} are written by the workbench, and of two the later one would win: set "
            "the parameter instead (target, dtype, num_steps, server_device, grid_cuda_graphs ...)",
            whole=True,
        )
        for options in OWN_FLAGS
    ),
    Rule(
        ("servers", "beside"),
        lambda servers, beside: len(servers) in (0, 2),
        "a benchmark of servers that run already needs two, the first without a drafter and the second with it; or "
        "none, and they are started here",
        whole=True,
    ),
    Rule(
        ("grid_topk", "grid_draft_tokens"),
        lambda topk, tokens: tokens or all(k == 1 for k in topk),
        "these are trees: give their num_draft_tokens",
        whole=True,
    ),
    Rule(
        ("grid_concurrency", "grid_topk", "grid_temperatures", "grid_cuda_graphs"),
        lambda concurrency, *others: not concurrency or all(others),
        "a grid needs at least one value of each",
        whole=True,
    ),
    Rule(
        ("grid_concurrency", "bench_prompts", "second_turns"),
        lambda concurrency, prompts, second: max(concurrency, default=0) <= prompts * (1 + second),
        "at least as many requests as the largest concurrency are needed: raise bench_prompts",
        whole=True,
    ),
)


def violations(values: Mapping[str, Any]) -> list[str]:
    """One line for each rule that `values` break: `lr = 2.0: must lie between 0 and 1`.

    A list stands for several settings tried in turn, so a rule on one name holds for each of its items, and a rule on
    several names is left to the notebook that combines them; a rule with `whole` takes lists as they are.
    """
    found = []
    for rule in RULES:
        if any(values.get(name) is None for name in rule.names):
            continue
        for chosen in _cases(rule, [values[name] for name in rule.names]):
            if not rule.holds(*chosen):
                shown = ", ".join(f"{name} = {value!r}" for name, value in zip(rule.names, chosen, strict=True))
                found.append(f"{shown}: {rule.message}")
    return found


def _cases(rule: Rule, chosen: list[Any]) -> list[list[Any]]:
    """The values that a rule is asked about, one after the other."""
    if rule.whole or not any(isinstance(value, list) for value in chosen):
        return [chosen]
    return [[item] for item in chosen[0]] if len(chosen) == 1 else []
