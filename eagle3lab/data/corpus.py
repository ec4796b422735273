"""The corpus: prompts with the answers to train on, one Parquet file, and nested subsets of it.

A row: {"id", "set", "split", "origin", "input_ids", "loss_spans", "finish_reason"}. origin: "target", answered here;
"given", the target's own answer that came with the data, sampled who knows how; "reference", text of somebody else.
Token ids are joined as they came from the engine; no text is tokenised again.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from eagle3lab.data.spans import check_spans
from eagle3lab.data.text import share
from eagle3lab.data.token_rows import (
    CorpusError,
    batch_of,
    corpus_schema,
    joined,
    row_digest,
    same_ids,
)
from eagle3lab.workbench.files import atomic_path

__all__ = ["CorpusError", "corpus_summary", "merge", "nested_subsets", "read_corpus", "row_digest", "write_corpus"]
_BATCH_ROWS = 512
_META = b"eagle3lab"
_REPEATING = ["set", "split", "origin", "finish_reason"]  # columns of few different values
_ENCODING = {"input_ids.list.element": "BYTE_STREAM_SPLIT"}  # ids are small: their upper bytes compress well, and fast


@dataclass
class Merge:
    """Iterator over corpus rows of prompts joined with the target's completions.

    `completions` are mappings with `id`, `output_ids`, `finish_reason` and, when kept, `prompt_ids`
    (checked). `references`: "none", "unanswered" (prompts without a completion) or "all" adds the data's own
    answer to a prompt, as a row of its own with id `<id>-reference` and origin "reference": text the target
    did not write. Prompts are held in memory, completions are streamed. After the iteration `counts["input"]
    == counts["rows"] + sum(skipped.values())`, where input counts completions and references.
    """

    prompts: Iterable[Mapping[str, Any]]
    completions: Iterable[Mapping[str, Any]]
    references: Literal["none", "unanswered", "all"] = "none"
    counts: Counter = field(default_factory=Counter)
    skipped: Counter = field(default_factory=Counter)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        prompts = {prompt["id"]: prompt for prompt in self.prompts}
        answered: set[str] = set()
        for done in self.completions:
            prompt = prompts.get(done["id"])
            if prompt is None:
                raise CorpusError(f"completion {done['id']!r} answers no prompt; prompts and answers differ in run")
            if "prompt_ids" in done and not same_ids(done["prompt_ids"], prompt["prompt_ids"]):
                raise CorpusError(f"completion {done['id']!r} was made from other prompt ids than its prompt has")
            self.counts["input"] += 1
            if done["id"] in answered:
                self.skipped["duplicate_id"] += 1
                continue
            answered.add(done["id"])
            yield from self._row(prompt, done["id"], "target", done["output_ids"], done["finish_reason"])
        if self.references == "none":
            return
        for key, prompt in prompts.items():
            ids = prompt.get("reference_ids")
            if ids is not None and len(ids) and (self.references == "all" or key not in answered):
                self.counts["input"] += 1
                reason = "length" if prompt.get("reference_cut") else "stop"
                yield from self._row(prompt, f"{key}-reference", "reference", ids, reason)

    def _row(self, prompt: Mapping, key: str, origin: str, answer_ids: list[int], finish: str) -> Iterator[dict]:
        if not len(answer_ids):
            self.skipped["empty_answer"] += 1
            return
        start, end = len(prompt["prompt_ids"]), len(prompt["prompt_ids"]) + len(answer_ids)
        check_spans(end, [[start, end]], key)
        self.counts["rows"] += 1
        self.counts[f"rows_{origin}"] += 1
        yield {
            "id": key,
            "set": prompt["set"],
            "split": prompt["split"],
            "origin": origin,
            "input_ids": joined(prompt["prompt_ids"], answer_ids),
            "loss_spans": [[start, end]],
            "finish_reason": finish,
        }


def merge(
    prompts: Iterable[Mapping[str, Any]],
    completions: Iterable[Mapping[str, Any]],
    references: Literal["none", "unanswered", "all"] = "none",
) -> Merge:
    """Join prompts and completions to corpus rows, streaming; see `Merge` for the counts it keeps."""
    if references not in ("none", "unanswered", "all"):
        raise ValueError(f"references is {references!r}; possible: none, unanswered, all")
    return Merge(prompts, completions, references)


def _fingerprint(digests: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest()


def write_corpus(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Stream rows to a Parquet file, whole or not at all.

    Returns {"rows", "tokens", "loss_tokens", "splits", "sets", "origins", "finish_reasons", "fingerprint"}.
    The fingerprint depends on the rows, not on their order; it is kept in the file. Raises CorpusError for a
    second row with the same id and for no row at all, MaskError for a bad mask.
    """
    import pyarrow.parquet as pq

    schema, rows = corpus_schema(), iter(rows)
    digests: dict[str, bytes] = {}
    tokens = loss = 0
    tallies: dict[str, Counter] = {name: Counter() for name in ("split", "set", "origin", "finish_reason")}
    options = {"compression": "lz4", "use_dictionary": _REPEATING, "column_encoding": _ENCODING}
    with (
        atomic_path(path) as temporary,
        pq.ParquetWriter(temporary, schema, **options) as writer,
        ThreadPoolExecutor(1) as beside,  # Arrow compresses and writes while the next rows are read
    ):
        writing = None
        while batch := list(islice(rows, _BATCH_ROWS)):
            for row in batch:
                if row["id"] in digests:
                    raise CorpusError(f"row id {row['id']!r} comes twice; de-duplicate before writing")
                check_spans(len(row["input_ids"]), row["loss_spans"], row["id"])
                digests[row["id"]] = row_digest(row)
                tokens += len(row["input_ids"])
                loss += sum(end - start for start, end in row["loss_spans"])
                for name, tally in tallies.items():
                    tally[row[name]] += 1
            done, writing = writing, beside.submit(writer.write_batch, batch_of(batch))
            if done:
                done.result()
        if not writing:
            raise CorpusError(f"no row for {Path(path).name}: every completion was empty, or there were none")
        writing.result()
        summary = {"rows": len(digests), "tokens": tokens, "loss_tokens": loss}
        summary |= {f"{name}s": dict(sorted(tally.items())) for name, tally in tallies.items()}
        summary["fingerprint"] = _fingerprint(digests.values())
        writer.add_key_value_metadata({_META: json.dumps(summary).encode()})
    return summary


def corpus_summary(path: str | Path) -> dict[str, Any]:
    """What `write_corpus` returned, read from the file's metadata without reading rows."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(path).metadata or {}
    if _META not in metadata:
        raise CorpusError(f"{path} is not a corpus written by this package")
    return json.loads(metadata[_META])


def read_corpus(path: str | Path, split: str | None = None, ids: Iterable[str] | None = None) -> Iterator[dict]:
    """Rows in file order, a batch in memory at a time; only one split or only some ids when given."""
    import pyarrow.parquet as pq

    wanted = None if ids is None else set(ids)
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_BATCH_ROWS):
            for row in batch.to_pylist():
                if (split is None or row["split"] == split) and (wanted is None or row["id"] in wanted):
                    yield row


def nested_subsets(
    ids: Iterable[str], sizes: Iterable[int], seed: int, strata: Mapping[str, str] | None = None
) -> dict[int, list[str]]:
    """size -> ids, each subset a prefix of the next, so that curves over size differ by added data alone.

    The choice depends on the ids and `seed`, not on the order of `ids`. With `strata` (id -> stratum, e.g.
    the set) each subset holds every stratum in its share of the whole, to within (1 + number of strata) / 2
    rows. ValueError for repeated ids, sizes that do not increase, or a size larger than there are ids.
    """
    ids, sizes = list(ids), list(sizes)
    if len(set(ids)) != len(ids):
        raise ValueError("ids repeat; subsets are made of different rows")
    if not sizes or sizes[0] < 1 or any(a >= b for a, b in zip(sizes, sizes[1:], strict=False)):
        raise ValueError(f"subset sizes must be positive and increasing, got {sizes}")
    if sizes[-1] > len(ids):
        raise ValueError(f"subset size {sizes[-1]} is larger than the corpus ({len(ids)} rows)")
    members: dict[str, list[str]] = {}
    for key in sorted(ids, key=lambda key: (share(seed, key), key)):
        members.setdefault(strata[key] if strata else "", []).append(key)
    # Spread each stratum evenly over [0, 1): every prefix of the merged order is then stratified.
    placed = [((n + 0.5) / len(keys), share(seed, k), k) for keys in members.values() for n, k in enumerate(keys)]
    order = [key for _, _, key in sorted(placed)]
    return {size: order[:size] for size in sizes}
