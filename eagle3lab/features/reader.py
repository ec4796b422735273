"""Reading a feature store, row by row, with memory that does not grow with it.

Shapes: T tokens, A aux layers, H hidden, M slots with a teacher.
"""

import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from eagle3lab.features.layout import FeatureStoreError, check_fingerprint, read_store, valid_rows
from eagle3lab.features.slots import spans_to_mask, teacher_slots
from eagle3lab.workbench.files import sha256_file

OPEN_SHARDS = 32  # memory-mapped at the same time


@dataclass
class FeatureRow:
    """One row. `last_MH[j]` is the post-norm last hidden state of slot `last_slots[j]`."""

    id: str
    split: str
    set: str
    input_ids_T: torch.Tensor  # int64
    loss_mask_T: torch.Tensor  # bool, l_t
    aux_TAH: torch.Tensor  # bfloat16
    last_slots: torch.Tensor  # int64 [M]
    last_MH: torch.Tensor  # bfloat16


class FeatureStore:
    """A complete feature store. Sizes are checked when it is opened, a shard's SHA-256 when it is first read.

    Attributes: ids (in stored order), aux_layers, hidden_size, fingerprint, info (store.json).
    Raises FeatureStoreError for a missing, unfinished or damaged store, and for a fingerprint other than
    `expect_fingerprint` (field by field).
    """

    def __init__(self, folder: str | Path, expect_fingerprint: dict | None = None):
        self.folder = Path(folder)
        self.info = read_store(self.folder)
        if self.info is None or not self.info["complete"]:
            raise FeatureStoreError(
                f"{self.folder} holds no finished feature store; run the extraction, it goes on from here"
            )
        self.fingerprint = self.info["fingerprint"]
        if expect_fingerprint is not None:
            check_fingerprint(self.folder, self.fingerprint, expect_fingerprint)
        self.aux_layers, self.hidden_size = self.info["aux_layers"], self.info["hidden_size"]
        self._rows = {row["id"]: row for row in valid_rows(self.folder, self.info)}
        self.ids = list(self._rows)
        self._shards = {entry["name"]: entry for entry in self.info["shards"]}
        for name, entry in self._shards.items():
            path = self.folder / name
            size = path.stat().st_size if path.exists() else None
            if size != entry["bytes"]:
                raise self._damaged(name, f"{size} bytes instead of {entry['bytes']}")
        self._open: OrderedDict[str, object] = OrderedDict()
        self._verified: set[str] = set()

    def __len__(self) -> int:
        return len(self.ids)

    def index(self, row_id: str) -> dict:
        """The index line of a row (n, n_last, split, set, loss_spans ...), without reading its shard."""
        if row_id not in self._rows:
            raise KeyError(f"{self.folder} has no row {row_id!r}")
        return self._rows[row_id]

    def rows(self, ids: Iterable[str] | None = None, order: int | None = None) -> Iterator[FeatureRow]:
        """Yields the rows of `ids` in the order given (all rows in stored order when None); `order` is a
        seed that shuffles them, the same way for the same ids and seed. Raises KeyError for an unknown
        id."""
        chosen = list(self.ids if ids is None else ids)
        if order is not None:
            random.Random(order).shuffle(chosen)
        for row_id in chosen:
            yield self.row(row_id)

    def row(self, row_id: str) -> FeatureRow:
        """Reads one row."""
        entry = self.index(row_id)
        shard = self._shard(entry["shard"])
        tokens = slice(entry["offset"], entry["offset"] + entry["n"])
        last = slice(entry["last_offset"], entry["last_offset"] + entry["n_last"])
        mask_T = spans_to_mask(entry["loss_spans"], entry["n"])
        return FeatureRow(
            row_id,
            entry["split"],
            entry["set"],
            shard.get_slice("input_ids")[tokens].long(),
            mask_T,
            shard.get_slice("aux")[tokens],
            teacher_slots(mask_T),
            shard.get_slice("last")[last],
        )

    def _shard(self, name: str):
        if name in self._open:
            self._open.move_to_end(name)
            return self._open[name]
        path = self.folder / name
        if name not in self._verified:
            if sha256_file(path) != self._shards[name]["sha256"]:
                raise self._damaged(name, "its checksum differs from store.json")
            self._verified.add(name)
        self._open[name] = safe_open(path, framework="pt")
        if len(self._open) > OPEN_SHARDS:
            self._open.popitem(last=False)
        return self._open[name]

    def _damaged(self, name: str, what: str) -> FeatureStoreError:
        return FeatureStoreError(
            f"{self.folder / name} is damaged ({what}); remove the folder and extract again"
        )
