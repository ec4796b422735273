"""Second turns: what a user says to the answer, with that answer in the prompt, as a chat sends it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3lab.analysis.journal import begun
from eagle3lab.data.chat import render_prompt
from eagle3lab.engines.base import Request
from eagle3lab.workbench.files import append_jsonl


@dataclass(frozen=True)
class SecondTurns:
    """Prompt rows of second turns, and the ids of those that are too long to be asked."""

    rows: list[dict[str, Any]]
    too_long: list[str]

    def __str__(self) -> str:
        left_out = f", {len(self.too_long)} too long for the context: {', '.join(self.too_long)}"
        return f"{len(self.rows)} second turns" + (left_out if self.too_long else "")


def ask_second_turns(
    engine, rows: Sequence[Mapping[str, Any]], tokenizer, max_tokens: int, context: int | None, path: str | Path
) -> SecondTurns:
    """Prompt rows of the second turns, id `<first>-turn2`, of the rows that have `later_turns`.

    The engine answers the first turns greedily, with max_tokens at most. context: tokens that prompt and answer may
    have together (None: any number). path keeps the first answers (JSON lines), so that a benchmark that was cut off
    goes on with the same second prompts. Raises what the engine's `generate` and `journal.begun` raise.
    """
    asked = {row["id"]: row for row in rows if row.get("later_turns")}
    first = [Request(row["id"], row["prompt_ids"], max_tokens) for row in asked.values()]
    said = {line["id"]: line["output_ids"] for line in begun(path, "first turns", first)}
    waiting = [request for request in first if request.id not in said]
    for done in engine.generate(waiting, batch_size=8) if waiting else []:
        said[done.id] = list(done.output_ids)
        append_jsonl(path, {"id": done.id, "output_ids": said[done.id]})
    second = [_second(row, said[row_id], engine.end_ids, tokenizer) for row_id, row in asked.items()]
    fits = [context is None or row["n_prompt"] + max_tokens <= context for row in second]
    kept = [row for row, short in zip(second, fits, strict=True) if short]
    return SecondTurns(kept, [row["id"] for row, short in zip(second, fits, strict=True) if not short])


def _second(row: Mapping[str, Any], output_ids: list[int], end_ids, tokenizer) -> dict[str, Any]:
    text = tokenizer.decode([token for token in output_ids if token not in end_ids])
    answer, question = {"role": "assistant", "content": text}, {"role": "user", "content": row["later_turns"][0]}
    messages = [*row["messages"], answer, question]
    ids = render_prompt(tokenizer, messages, row.get("tools"))
    more = {"id": f"{row['id']}-turn2", "messages": messages, "later_turns": row["later_turns"][1:]}
    return {**row, **more, "prompt_ids": ids, "n_prompt": len(ids)}
