"""Second turns: what a user says to the answer, with that answer in the prompt, as a chat sends it."""

from collections.abc import Iterable, Mapping
from typing import Any

from eagle3lab.data.chat import render_prompt
from eagle3lab.engines.base import Request


def ask_second_turns(engine, rows: Iterable[Mapping[str, Any]], tokenizer, max_tokens: int) -> list[dict[str, Any]]:
    """Prompt rows of the second turns, id `<first>-turn2`, of the rows that have `later_turns`.

    The engine answers the first turns greedily, with max_tokens at most. Raises what its `generate` raises.
    """
    asked = {row["id"]: row for row in rows if row.get("later_turns")}
    first = [Request(row["id"], row["prompt_ids"], max_tokens) for row in asked.values()]
    said = {done.id: done.output_ids for done in engine.generate(first, batch_size=8)}
    return [_second(row, said[row_id], engine.end_ids, tokenizer) for row_id, row in asked.items()]


def _second(row: Mapping[str, Any], output_ids: list[int], end_ids, tokenizer) -> dict[str, Any]:
    text = tokenizer.decode([token for token in output_ids if token not in end_ids])
    answer, question = {"role": "assistant", "content": text}, {"role": "user", "content": row["later_turns"][0]}
    messages = [*row["messages"], answer, question]
    ids = render_prompt(tokenizer, messages, row.get("tools"))
    more = {"id": f"{row['id']}-turn2", "messages": messages, "later_turns": row["later_turns"][1:]}
    return {**row, **more, "prompt_ids": ids, "n_prompt": len(ids)}
