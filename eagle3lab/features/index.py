"""The index of a store in memory: one line a row, kept in columns, about 250 bytes a row with its id.

A million rows as dicts would take a gigabyte, as columns they take a quarter of it.
"""

from array import array
from collections.abc import Iterable, Iterator

NUMBERS = ("n", "n_last", "offset", "last_offset", "crc32")
WORDS = ("split", "set", "shard")  # few different ones: kept as codes


class Index:
    """Row id -> index line (a dict made on demand: id, split, set, shard, NUMBERS, loss_spans), in the order added."""

    def __init__(self, rows: Iterable[dict] = ()):
        self._position: dict[str, int] = {}
        self._numbers = {name: array("q") for name in NUMBERS}
        self._codes = {name: array("L") for name in WORDS}
        self._code_of: dict[str, int] = {}
        self._words: list[str] = []
        self._spans, self._spans_end = array("q"), array("q", [0])
        for row in rows:
            self.add(row)

    def add(self, row: dict) -> bool:
        """Adds a line; False, and nothing added, for an id that is there already."""
        if row["id"] in self._position:
            return False
        self._position[row["id"]] = len(self._position)
        for name in NUMBERS:
            self._numbers[name].append(row[name])
        for name in WORDS:
            code = self._code_of.setdefault(row[name], len(self._words))
            if code == len(self._words):
                self._words.append(row[name])
            self._codes[name].append(code)
        self._spans.extend(edge for span in row["loss_spans"] for edge in span)
        self._spans_end.append(len(self._spans))
        return True

    def __len__(self) -> int:
        return len(self._position)

    def __contains__(self, row_id: str) -> bool:
        return row_id in self._position

    def __iter__(self) -> Iterator[str]:
        return iter(self._position)

    def __getitem__(self, row_id: str) -> dict:
        at = self._position[row_id]
        edges = self._spans[self._spans_end[at] : self._spans_end[at + 1]]
        return {
            "id": row_id,
            **{name: self._words[self._codes[name][at]] for name in WORDS},
            **{name: self._numbers[name][at] for name in NUMBERS},
            "loss_spans": [list(pair) for pair in zip(edges[::2], edges[1::2], strict=True)],
        }

    def rows(self) -> Iterator[dict]:
        """All lines, in order."""
        return (self[row_id] for row_id in self)

    def total(self, name: str) -> int:
        """Sum of one of NUMBERS over all rows."""
        return sum(self._numbers[name])
