"""Prepared prompts as what a dispatch takes: one work a set, in the order of the sets, read as they are needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from eagle3lab.data.prepare import read_prompts
from eagle3lab.data.summary import set_summaries
from eagle3lab.engines.dispatch.work import Partition, Prompts, Work
from eagle3lab.workbench.files import iter_jsonl

__all__ = ["Partition", "prepared_works"]
SUITES = "suites.jsonl"


def prepared_works(
    prepared: str | Path,
    split: Literal["train", "heldout"],
    partitions: Mapping[str, Partition],
    limit: int | None = None,
) -> list[Work]:
    """The prompts of one split, each set in its own partition, named "<set>, <split>"; sets of the target's own answers
    have none. Benchmark suites stand behind the held-out prompts, in the partition "short", named "<suite>, benchmark".

    limit: prompts of each set, the first ones. Nothing is kept in memory: a work reads its file again each time.
    """
    works = []
    for summary in set_summaries(prepared):
        if summary["kind"] == "prompts" and summary["splits"].get(split):
            read = partial(read_prompts, Path(prepared) / summary["set"], split)
            name, partition = f"{summary['set']}, {split}", partitions[summary["partition"]]
            works.append(Work(name, partition, Prompts(read, limit)))
    if split == "heldout":
        suites = dict.fromkeys(row["set"] for row in iter_jsonl(Path(prepared) / SUITES))
        works += [
            Work(f"{suite}, benchmark", partitions["short"], Prompts(partial(_of_suite, Path(prepared), suite), limit))
            for suite in suites
        ]
    return works


def _of_suite(prepared: Path, suite: str) -> Iterator[dict[str, Any]]:
    return (row for row in iter_jsonl(prepared / SUITES) if row["set"] == suite)
