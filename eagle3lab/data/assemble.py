"""Prepared sets and the target's answers -> the corpus: joined, without repeats, mixed, shuffled, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from eagle3lab.data.corpus import merge, write_corpus
from eagle3lab.data.mixing import Shuffled, WithoutRepeats, parse_weights
from eagle3lab.data.token_lines import read_token_lines

__all__ = ["assemble_corpus", "completions_of", "parse_weights", "prepared_prompts", "prepared_samples"]


def prepared_prompts(prepared: str | Path) -> Iterator[dict[str, Any]]:
    """Prompts of all sets of a prepared folder and of its benchmark suites, as merging needs them: without messages,
    ids as arrays."""
    columns, ids = ("id", "set", "split", "reference_cut"), ("prompt_ids", "reference_ids")
    folder = Path(prepared)
    for file in [*sorted(folder.glob("[!.]*/prompts.jsonl")), folder / "suites.jsonl"]:
        if file.exists():
            yield from read_token_lines(file, columns, ids)


def prepared_samples(prepared: str | Path) -> Iterator[dict[str, Any]]:
    """Corpus rows of the sets whose answers are the target's own, ids as arrays."""
    columns = ("id", "set", "split", "origin", "loss_spans", "finish_reason")
    for file in sorted(Path(prepared).glob("[!.]*/tokenized.jsonl")):
        yield from read_token_lines(file, columns, ("input_ids",))


def completions_of(path: str | Path) -> Iterator[dict[str, Any]]:
    """The target's answers from completions.jsonl, as merging needs them, ids as arrays. CorpusError for a file whose
    last line is cut off: repair it first (`read_jsonl(path, repair=True)`)."""
    return read_token_lines(path, ("id", "finish_reason"), ("prompt_ids", "output_ids"))


def assemble_corpus(
    prepared: str | Path,
    completions: Iterable[Mapping[str, Any]],
    path: str | Path,
    *,
    references: Literal["none", "unanswered", "all"] = "none",
    weights: Mapping[str, float] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Write the shuffled corpus of a prepared folder and the answers to its prompts; whole or not at all.

    Answers are joined with their prompts (`merge`), rows of target-native sets follow, repeats are left out, `weights`
    set the mixture of the sets' training rows, and the order depends on the ids and `seed` alone. Held-out prompts get
    no reference rows. Returns the summary of `write_corpus` with "input" (answers, references and native samples) and
    "left_out" (reason -> rows); input == rows + all that is left out. Memory holds the prompts' ids and one bucket of
    rows. Errors as of `merge`, `write_corpus` and `quotas`.
    """
    merged = merge(prepared_prompts(prepared), completions, references)
    native = heldout_references = 0

    def rows() -> Iterator[Mapping[str, Any]]:
        nonlocal native, heldout_references
        for row in merged:
            if row["split"] == "train" or row["origin"] == "target":
                yield row
            else:
                heldout_references += 1
        for row in prepared_samples(prepared):
            native += 1
            yield row

    single = WithoutRepeats(rows())
    shuffled = Shuffled(single, seed, Path(path).parent, weights)
    summary = write_corpus(path, shuffled)
    left_out = merged.skipped + single.skipped + shuffled.skipped
    if heldout_references:
        left_out["heldout_reference"] = heldout_references
    read = merged.counts["input"] + native
    if read != summary["rows"] + sum(left_out.values()):
        raise AssertionError(f"{read} rows read, {summary['rows']} written, left out: {dict(left_out)}")
    return summary | {"input": read, "left_out": dict(left_out)}
