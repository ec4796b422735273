"""The rows of a set that stay under its limits: the first ones in a seeded order, whatever their order in the file.

Ranks are in memory, the rows wait in a file: memory does not grow with their length.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO


@dataclass
class Choice:
    """Rows kept so far, a heap for each split whose top is the row to go first. `room`: the limit of each split,
    None for no limit. `file`: an empty binary file open for reading and writing."""

    file: BinaryIO
    room: Mapping[str, int | None]
    heaps: dict[str, list[tuple[float, int, str, int]]] = field(default_factory=dict)

    def would_keep(self, split: str, rank: float) -> bool:
        """Whether a row of this rank gets in; the lowest ranks are kept."""
        heap, limit = self.heaps.get(split, []), self.room[split]
        return limit is None or len(heap) < limit or (limit > 0 and -rank > heap[0][0])

    def keep(self, split: str, rank: float, number: int, key: str, row: Any) -> tuple[int, str] | None:
        """Keep row `number` of conversation `key`; returns (number, key) of the row that it pushes out, if any."""
        heap, limit = self.heaps.setdefault(split, []), self.room[split]
        offset = self.file.seek(0, 2)
        self.file.write(json.dumps(row, ensure_ascii=False).encode("utf-8") + b"\n")
        entry = (-rank, number, key, offset)
        if limit is None or len(heap) < limit:
            heapq.heappush(heap, entry)
            return None
        _, number, key, _ = heapq.heappushpop(heap, entry)
        return number, key

    def rows(self) -> Iterator[Any]:
        """The kept rows: train before heldout, each in the seeded order."""
        for split in self.room:
            for *_, offset in sorted(self.heaps.get(split, []), reverse=True):
                self.file.seek(offset)
                yield json.loads(self.file.readline())
