"""One data set -> prepared/<set>/: prompts.jsonl, errors.jsonl, summary.json.

Every row read is a prompt, skipped with a reason, or an error with a reason; the sum is asserted. Which rows
are kept under a limit depends on the seed and on the prompts, not on their place in the file, and the prompts
of a smaller limit are the first ones of a larger limit.
"""

from __future__ import annotations

import heapq
import json
import os
import secrets
import shutil
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eagle3lab.data.adapters import ADAPTERS, Conversation, RowError, RowSkipped
from eagle3lab.data.chat import (
    ChatError,
    end_token_ids,
    render_conversation,
    render_prompt,
    special_token_in,
    special_tokens,
)
from eagle3lab.data.sources import SetSpec, open_rows
from eagle3lab.data.spans import MaskError
from eagle3lab.data.suites import benchmark_texts
from eagle3lab.data.text import digest, normalise, share
from eagle3lab.workbench.files import atomic_path, write_json_atomic


@dataclass(frozen=True)
class Limits:
    """What a prompt must be to be kept. A limit of None means all; characters and tokens are inclusive
    bounds.

    `min_chars` / `max_chars` bound the first user text; `max_prompt_tokens` bounds the rendered prompt,
    template included. `max_reference_tokens` 0 keeps no reference answers.
    """

    limit_train: int | None = None
    limit_heldout: int | None = 64
    min_chars: int = 20
    max_chars: int = 1500
    max_prompt_tokens: int = 256
    max_reference_tokens: int = 0
    heldout_share: float = 0.1
    seed: int = 0

    def check(self, context_length: int | None) -> None:
        """ValueError naming the parameter when the limits cannot be met."""
        if not 0 < self.heldout_share < 1:
            raise ValueError(f"heldout_share must lie between 0 and 1, got {self.heldout_share}")
        if not 0 < self.min_chars <= self.max_chars:
            raise ValueError(f"min_chars {self.min_chars} and max_chars {self.max_chars} leave no prompt")
        for name in ("limit_train", "limit_heldout"):
            if getattr(self, name) is not None and getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if context_length is not None and self.max_prompt_tokens >= context_length:
            raise ValueError(
                f"max_prompt_tokens {self.max_prompt_tokens} leaves no room for an answer in the "
                f"target's context of {context_length} tokens; lower it"
            )


def split_of(conversation_id: str, seed: int, heldout_share: float) -> str:
    """'heldout' or 'train', by a hash of the conversation: all its chunks fall on one side, whatever else is
    read."""
    return "heldout" if share(seed, f"split:{conversation_id}") < heldout_share else "train"


def prepare_set(
    spec: SetSpec,
    tokenizer: Any,
    out_dir: str | Path,
    limits: Limits,
    *,
    context_length: int | None = None,
    blocked: Mapping[str, str] | None = None,
    seen: set[str] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Read a set and write out_dir/<set>/ (whole or not at all); returns the summary, also in summary.json.

    A prompt row: {"id", "set", "split", "messages", "prompt_ids", "n_prompt"} and, where the data holds an
    answer and `max_reference_tokens` > 0, "reference_ids" and "reference_cut". `blocked` maps normalised
    benchmark texts to their ids (default: `benchmark_texts()`). `seen` holds digests of prompts kept from
    other sets; pass one set object to several calls to de-duplicate across them, it is added to.
    `on_progress(rows_read)` is called every 500 rows. Raises ValueError for impossible limits and
    RecordsError for a malformed file.
    """
    limits.check(context_length)
    one = _Pass(spec, tokenizer, limits, benchmark_texts() if blocked is None else blocked, seen)
    with open_rows(spec) as records:
        for number, row in enumerate(records):
            one.offer(number, row)
            if on_progress and number % 500 == 499:
                on_progress(number + 1)
        lost = [entry.as_dict() for entry in records.lost]
    for entry in lost:
        one.fall("error", entry["record"], None, "unreadable_record", entry["reason"])
    prompts = one.kept()
    summary = one.summary(prompts, lost)
    _write_folder(Path(out_dir) / spec.name, prompts, one.fallen, summary)
    return summary


class _Pass:
    """The state of one pass over a set: what is kept so far, what fell out, what was seen."""

    def __init__(
        self, spec: SetSpec, tokenizer: Any, limits: Limits, blocked: Mapping, seen: set[str] | None
    ):
        self.spec, self.tokenizer, self.limits, self.blocked = spec, tokenizer, limits, blocked
        self.kept_before = set() if seen is None else seen
        self.seen: set[str] = set()
        self.adapt = ADAPTERS[spec.adapter]
        self.ends = end_token_ids(tokenizer)
        self.specials = special_tokens(tokenizer)
        self.fallen: list[dict[str, Any]] = []
        self.counts = {"skipped": Counter(), "error": Counter()}
        self.heaps: dict[str, list] = {"train": [], "heldout": []}
        self.room = {"train": limits.limit_train, "heldout": limits.limit_heldout}
        self.input = 0

    def offer(self, number: int, row: Any) -> None:
        self.input += 1
        key = None
        try:
            conversation = self.adapt(row, self.spec.name)
            key = conversation.id
            self._place(number, conversation)
        except RowError as error:
            self.fall("error", number, key, error.reason, error.detail, count_input=False)
        except RowSkipped as skip:
            self.fall("skipped", number, key, skip.reason, skip.detail, count_input=False)

    def fall(
        self, kind: str, number: int, key: str | None, reason: str, detail: str, count_input: bool = True
    ) -> None:
        self.input += count_input
        self.counts[kind][reason] += 1
        self.fallen.append({"row": number, "id": key, "kind": kind, "reason": reason, "detail": detail})

    def _place(self, number: int, conversation: Conversation) -> None:
        """Keep the row if its place in the seeded order is within the limit; the row it pushes out is
        skipped."""
        first = next(i for i, m in enumerate(conversation.messages) if m["role"] == "user")
        text = conversation.messages[first]["content"]
        if not self.limits.min_chars <= len(text) <= self.limits.max_chars:
            raise RowSkipped(
                "too_short" if len(text) < self.limits.min_chars else "too_long", f"{len(text)} chars"
            )
        normal = normalise(text)
        if normal in self.blocked:
            raise RowSkipped("benchmark", self.blocked[normal])
        known = digest(normal)
        if known in self.seen or known in self.kept_before:
            raise RowSkipped("duplicate", "of this set" if known in self.seen else "of another set")
        self.seen.add(known)
        split = split_of(conversation.id, self.limits.seed, self.limits.heldout_share)
        heap, limit = self.heaps[split], self.room[split]
        rank = -share(self.limits.seed, f"order:{known}")
        full = limit is not None and len(heap) >= limit
        # Rows that cannot get in are not tokenised: that is most of the work.
        if full and (limit == 0 or rank <= heap[0][0]):
            raise RowSkipped("over_limit", split)
        prompt = self._prompt(f"{self.spec.name}-{known[:16]}", split, conversation, first)
        entry = (rank, number, conversation.id, known, prompt, conversation.messages[: first + 2])
        if not full:
            heapq.heappush(heap, entry)
            return
        _, number, key, *_ = heapq.heappushpop(heap, entry)
        self.fall("skipped", number, key, "over_limit", split, count_input=False)

    def _prompt(self, key: str, split: str, conversation: Conversation, first: int) -> dict[str, Any]:
        messages = conversation.messages[: first + 1]
        if special := special_token_in(self.specials, messages):
            raise RowSkipped("special_token_in_text", special)
        try:
            ids = render_prompt(self.tokenizer, messages)
        except ChatError as error:
            raise RowError("template", str(error)) from error
        if len(ids) > self.limits.max_prompt_tokens:
            raise RowSkipped("too_many_tokens", f"{len(ids)} tokens")
        if self.tokenizer.unk_token_id in ids:
            raise RowSkipped("unknown_token", "the target's vocabulary cannot spell the prompt")
        row = {"id": key, "set": self.spec.name, "split": split, "messages": messages}
        return row | {"prompt_ids": ids, "n_prompt": len(ids)}

    def _reference(self, messages: list[dict[str, str]], n_prompt: int) -> dict[str, Any]:
        """The data's own first answer as ids; nothing when there is none that the template can hold."""
        limit = self.limits.max_reference_tokens
        if not limit or messages[-1]["role"] != "assistant" or special_token_in(self.specials, messages):
            return {}
        try:
            ids, spans = render_conversation(self.tokenizer, messages, self.ends)
        except (ChatError, MaskError):
            return {}
        answer = ids[spans[0][0] : spans[0][1]]
        if spans[0][0] != n_prompt or self.tokenizer.unk_token_id in answer:
            return {}
        return {"reference_ids": answer[:limit], "reference_cut": len(answer) > limit}

    def kept(self) -> list[dict[str, Any]]:
        """The kept prompts, train before heldout, each in the seeded order; `seen` of the caller learns
        them."""
        heaps = (self.heaps["train"], self.heaps["heldout"])
        entries = [
            entry for heap in heaps for entry in sorted(heap, reverse=True, key=lambda entry: entry[:2])
        ]
        self.kept_before.update(known for _, _, _, known, _, _ in entries)
        return [prompt | self._reference(messages, prompt["n_prompt"]) for *_, prompt, messages in entries]

    def summary(self, prompts: list[dict[str, Any]], lost: list[dict[str, Any]]) -> dict[str, Any]:
        skipped, errors = (sum(self.counts[kind].values()) for kind in ("skipped", "error"))
        if self.input != len(prompts) + skipped + errors:
            raise AssertionError(
                f"{self.spec.name}: {self.input} rows read, {len(prompts)} + {skipped} + {errors}"
            )
        lengths = sorted(prompt["n_prompt"] for prompt in prompts)
        tokens = (
            {"sum": sum(lengths), "min": lengths[0], "median": statistics.median(lengths)} if lengths else {}
        )
        return {
            "set": self.spec.name,
            "adapter": self.spec.adapter,
            "origin": self.spec.origin(),
            "input": self.input,
            "prompts": len(prompts),
            "splits": dict(Counter(prompt["split"] for prompt in prompts)),
            "skipped": dict(self.counts["skipped"].most_common()),
            "errors": dict(self.counts["error"].most_common()),
            "lost": lost,
            "references": sum("reference_ids" in prompt for prompt in prompts),
            "prompt_tokens": tokens | ({"max": lengths[-1]} if lengths else {}),
            "limits": asdict(self.limits),
            "chat_template_sha256": digest(str(self.tokenizer.chat_template)),
        }


def _write_folder(folder: Path, prompts: list[dict], fallen: list[dict], summary: dict[str, Any]) -> None:
    """Write the three files into a folder beside `folder` and swap it in."""
    tag = f"{os.getpid()}-{secrets.token_hex(4)}"
    new, old = folder.with_name(f".{folder.name}.{tag}.new"), folder.with_name(f".{folder.name}.{tag}.old")
    new.mkdir(parents=True)
    try:
        for name, rows in (("prompts.jsonl", prompts), ("errors.jsonl", fallen)):
            with atomic_path(new / name) as temporary, open(temporary, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_json_atomic(new / "summary.json", summary)
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def read_prompts(folder: str | Path, split: str | None = None) -> Iterator[dict[str, Any]]:
    """Prompt rows of a prepared/<set> folder in their order, streaming; one split only when given."""
    with open(Path(folder) / "prompts.jsonl", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            if split is None or row["split"] == split:
                yield row
