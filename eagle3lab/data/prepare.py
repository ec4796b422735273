"""One data set -> prepared/<set>/: prompts.jsonl (or tokenized.jsonl beside it), errors.jsonl, summary.json.

Every row read is a prompt, tokenized, skipped with a reason, or an error with a reason; the sum is asserted. Which
rows are kept under a limit depends on the seed and on the prompts, not on their place in the file, and the prompts
of a smaller limit are the first ones of a larger limit.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TextIO

from eagle3lab.data.adapters import ADAPTERS, RowError, RowSkipped
from eagle3lab.data.chat import check_as_served
from eagle3lab.data.choice import Choice
from eagle3lab.data.filters import row_filter
from eagle3lab.data.fingerprint import preparation_fingerprint
from eagle3lab.data.language import language_of
from eagle3lab.data.limits import SETTINGS, Limits
from eagle3lab.data.records import RecordsError
from eagle3lab.data.shape import Shaper
from eagle3lab.data.sources import SetSpec, open_rows, pinned
from eagle3lab.data.suites import benchmark_texts
from eagle3lab.data.summary import ERRORS, Tally
from eagle3lab.data.text import digest, row_stem, share
from eagle3lab.workbench.files import atomic_folder, write_json_atomic

__all__ = ["Limits", "prepare_set", "read_prompts", "read_tokenized", "split_of"]
OF_ANOTHER_SET = "of another set: "
_PROGRESS_ROWS = 500


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
    end_ids: set[int] | None = None,
    blocked: Mapping[str, str] | None = None,
    seen: set[str] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Read a set and write out_dir/<set>/ (whole or not at all); returns the summary, also in summary.json.

    A prompt row: {"id", "set", "split", "messages", "prompt_ids", "n_prompt"}, "tools" where it has some and, where
    the data holds an answer and `max_reference_tokens` > 0, "reference_ids" and "reference_cut". A tokenized row is a
    row of the corpus, with the target's own answers in `loss_spans`. `end_ids` end an answer (default: the
    tokenizer's eos). `blocked` maps normalised benchmark texts to their ids (default: `benchmark_texts()`). `seen`
    holds text keys of rows kept from other sets; pass one set object to several calls to de-duplicate across them,
    it is added to. `on_progress(rows_read)` is called every 500 rows. Raises ValueError for impossible limits,
    ChatError for a tokenizer that disagrees with its own chat template, and RecordsError for a malformed file or one
    that changes while it is read.
    """
    limits.check(context_length)
    check_as_served(tokenizer)
    spec = pinned(spec)
    blocked = benchmark_texts() if blocked is None else blocked
    origin = spec.origin()
    fingerprint = preparation_fingerprint(spec, tokenizer, limits, context_length, end_ids, blocked, origin)
    shaper = Shaper(spec, tokenizer, limits, context_length, end_ids)
    with atomic_folder(Path(out_dir) / spec.name) as folder:
        with ExitStack() as stack:
            fallen = stack.enter_context(_open_text(folder / ERRORS))
            file = stack.enter_context(TemporaryFile(dir=folder))
            prompts = stack.enter_context(_open_text(folder / "prompts.jsonl"))
            native = spec.kind == "tokenized"
            tokenized = stack.enter_context(_open_text(folder / "tokenized.jsonl")) if native else None
            one = _Pass(spec, limits, shaper, blocked, seen or set(), fallen, Choice(file, _room(limits)))
            with open_rows(spec) as records:
                for number, row in enumerate(islice(records, spec.max_rows)):
                    one.offer(number + len(records.lost), row, getattr(records, "line", None))
                    if on_progress and number % _PROGRESS_ROWS == _PROGRESS_ROWS - 1:
                        on_progress(number + 1)
                lost = [entry.as_dict() for entry in records.lost]
            for entry in lost:
                one.input += 1
                one.fall("error", entry["record"], None, "unreadable_record", entry["reason"], entry["line"])
            keys = one.write(prompts, tokenized)
        summary = one.summary(lost) | {"fingerprint": fingerprint}
        if summary["origin"] != origin:
            raise RecordsError(f"set {spec.name!r}: {spec.path} changed while it was read; start again when it rests")
        write_json_atomic(folder / "summary.json", summary)
    if seen is not None:
        seen.update(keys)
    return summary


def _open_text(path: Path) -> TextIO:
    return open(path, "w", encoding="utf-8", errors="backslashreplace")


def _room(limits: Limits) -> dict[str, int | None]:
    return {"train": limits.limit_train, "heldout": limits.limit_heldout}


class _Pass:
    """The state of one pass over a set: what is kept so far, what fell out, what was seen."""

    def __init__(
        self,
        spec: SetSpec,
        limits: Limits,
        shaper: Shaper,
        blocked: Mapping[str, str],
        seen_before: set[str],
        fallen: TextIO,
        choice: Choice,
    ):
        self.spec, self.limits, self.shaper, self.blocked = spec, limits, shaper, blocked
        self.adapt = ADAPTERS[spec.adapter]
        self.wanted = row_filter(spec.where, spec.columns)
        self.seen_before, self.seen = frozenset(seen_before), set[str]()
        self.fallen, self.choice = fallen, choice
        self.counts = {"skipped": Counter(), "error": Counter()}
        self.tally = Tally()
        self.input = 0

    def offer(self, number: int, row: Any, line: int | None = None) -> None:
        """Take in one raw row: it is kept, or falls with its reason. One that breaks its adapter is an error, too."""
        self.input += 1
        key = None
        try:
            row, missed = self.wanted(row)
            if missed:
                raise RowSkipped("filtered", missed)
            conversation = self.adapt(row, self.spec.name)
            key = conversation.id
            self._place(number, conversation)
        except RowError as error:
            self.fall("error", number, key, error.reason, error.detail, line)
        except RowSkipped as skip:
            self.fall("skipped", number, key, skip.reason, skip.detail, line)
        except (OSError, MemoryError):  # the disk or the machine is at fault, not the row
            raise
        except Exception as error:
            self.fall("error", number, key, "broken_row", f"{type(error).__name__}: {error}", line)

    def fall(self, kind: str, number: int, key: str | None, reason: str, detail: str, line: int | None = None) -> None:
        """Count a row that is not kept and write down why; with its `line` (from 1) where a row is a line."""
        self.counts[kind][reason] += 1
        told = {"row": number, "id": key, "kind": kind, "reason": reason, "detail": detail}
        told |= {} if line is None else {"line": line}
        self.fallen.write(json.dumps(told, ensure_ascii=False) + "\n")

    def _place(self, number: int, conversation: Any) -> None:
        """Keep the row if its place in the seeded order is within the limit; the row it pushes out is
        skipped."""
        shaped = self.shaper.shape(conversation)
        if hit := next((text for text in shaped.asked if text in self.blocked), None):
            raise RowSkipped("benchmark", self.blocked[hit])
        known = digest(shaped.text)
        key = known[:16]
        if key in self.seen or key in self.seen_before:
            raise RowSkipped("duplicate", "of this set" if key in self.seen else OF_ANOTHER_SET + key)
        self.seen.add(key)
        split = split_of(conversation.id, self.limits.seed, self.limits.heldout_share)
        rank = share(self.limits.seed, f"order:{known}")
        # Rows that cannot get in are not tokenised: that is most of the work.
        if not self.choice.would_keep(split, rank):
            raise RowSkipped("over_limit", split)
        head = {"id": f"{self.spec.name}-{key}", "set": self.spec.name, "split": split}
        row: dict[str, Any] = {"language": language_of(shaped.asked[0])}
        if self.spec.kind == "prompts":
            row |= {"prompt": head | self.shaper.prompt(shaped), "answer": shaped.answer}
        else:
            row |= {"samples": [_sample_row(head, sample) for sample in self.shaper.samples(shaped)]}
        out = self.choice.keep(split, rank, number, conversation.id, row)
        if out:
            self.fall("skipped", *out, "over_limit", split)

    def write(self, prompts: TextIO, tokenized: TextIO | None) -> set[str]:
        """Write the kept rows, train before heldout, each in the seeded order; returns their text keys."""
        keys = set()
        for row in self.choice.rows():
            if tokenized:
                rows, file = row["samples"], tokenized
            else:
                rows, file = [row["prompt"] | self.shaper.reference(row["prompt"], row["answer"])], prompts
            file.writelines(json.dumps(one, ensure_ascii=False) + "\n" for one in rows)
            self.tally.add(rows, row["language"])
            keys.add(row_stem(rows[0]["id"])[1])
        return keys

    def summary(self, lost: list[dict[str, Any]]) -> dict[str, Any]:
        """What was read and what became of it; AssertionError when a row is unaccounted for."""
        native = self.spec.kind == "tokenized"
        prompts, tokenized = (0, self.tally.kept) if native else (self.tally.kept, 0)
        skipped, errors = (sum(self.counts[kind].values()) for kind in ("skipped", "error"))
        if self.input != prompts + tokenized + skipped + errors:
            raise AssertionError(
                f"{self.spec.name}: {self.input} rows read, {prompts} + {tokenized} + {skipped} + {errors}"
            )
        return {
            "set": self.spec.name,
            "input": self.input,
            "prompts": prompts,
            "tokenized": tokenized,
            "skipped": dict(self.counts["skipped"].most_common()),
            "errors": dict(self.counts["error"].most_common()),
            "lost": lost,
            **self.tally.summary(),
            "adapter": self.spec.adapter,
            "kind": self.spec.kind,
            "partition": self.spec.partition,
            "origin": self.spec.origin(),
            "settings": {name: getattr(self.spec, name) for name in SETTINGS},
            "limits": asdict(self.limits),
            "chat_template_sha256": digest(str(self.shaper.tokenizer.chat_template)),
        }


def _sample_row(head: dict[str, Any], sample: dict[str, Any]) -> dict[str, Any]:
    """A row of the corpus from one sample; each answer of a conversation that is a sample of its own has its id."""
    turn = "" if sample["turn"] is None else f"-t{sample['turn']}"
    row = head | {"id": head["id"] + turn, "origin": "given"}
    return row | {name: sample[name] for name in ("input_ids", "loss_spans", "finish_reason")}


def read_prompts(folder: str | Path, split: str | None = None) -> Iterator[dict[str, Any]]:
    """Prompt rows of a prepared/<set> folder in their order, streaming; one split only when given."""
    return _read_lines(Path(folder) / "prompts.jsonl", split)


def read_tokenized(folder: str | Path, split: str | None = None) -> Iterator[dict[str, Any]]:
    """Tokenized rows of a prepared/<set> folder, which are rows of the corpus; none for a set of prompts."""
    file = Path(folder) / "tokenized.jsonl"
    return _read_lines(file, split) if file.exists() else iter(())


def _read_lines(path: Path, split: str | None) -> Iterator[dict[str, Any]]:
    with open(path, encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            if split is None or row["split"] == split:
                yield row
