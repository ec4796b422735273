"""Prepared prompts as what a dispatch takes: one work a set and split, each in its partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from eagle3lab.engines.dispatch.work import Partition, Work

__all__ = ["Partition", "works_of"]


def works_of(
    prompts: Iterable[Mapping[str, Any]], partitions: Mapping[str, Partition], partition_of: Mapping[str, str]
) -> list[Work]:
    """Works in the order in which their first prompts come, named "<set>, <split>".

    prompts: rows of `read_prompts`. partition_of: set -> name of its partition; a set that is not there (a benchmark
    suite) is "short".
    """
    rows: dict[tuple[str, str], list[tuple[str, list[int]]]] = {}
    for prompt in prompts:
        rows.setdefault((prompt["set"], prompt["split"]), []).append((prompt["id"], prompt["prompt_ids"]))
    return [
        Work(f"{name}, {split}", partitions[partition_of.get(name, "short")], pairs)
        for (name, split), pairs in rows.items()
    ]
