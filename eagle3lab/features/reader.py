"""Reading a feature store, row by row, with memory that does not grow with it."""

import random
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from eagle3lab.features.codec import Codec, teacher_tensors, token_tensors
from eagle3lab.features.encode import FeatureRow, decode_row
from eagle3lab.features.finish import checked_index, quarantine
from eagle3lab.features.layout import PLAN, STORE, FeatureStoreError, check_fingerprint, read_manifest
from eagle3lab.features.shardfile import ShardFile, checksum

OPEN_SHARDS = 32  # file handles kept


class FeatureStore:
    """A finished feature store. Sizes of shards are checked when it is opened, every row's checksum when it is read.
    Rows may be read from several threads.

    Attributes: ids (in stored order), aux_layers, hidden_size, fingerprint, codec, info (store.json).
    Raises FeatureStoreError for a missing or unfinished store, and for a fingerprint other than `expect_fingerprint`
    (field by field). A damaged shard is moved aside and DamagedShardError names it and the rows to capture again.
    """

    def __init__(self, folder: str | Path, expect_fingerprint: dict | None = None):
        self.folder = Path(folder)
        if (self.folder / PLAN).exists():
            raise FeatureStoreError(
                f"{self.folder} holds no states: its rows are captured while a drafter is trained, by notebook 04 and "
                'in one process; for everything else extract with features "store"'
            )
        if not (self.folder / STORE).exists():
            raise FeatureStoreError(
                f"{self.folder} holds no finished feature store; run the extraction, it goes on from here"
            )
        self.info = read_manifest(self.folder / STORE)
        self.fingerprint, self.codec = self.info["fingerprint"], Codec.of(self.info["codec"])
        if expect_fingerprint is not None:
            check_fingerprint(self.folder, self.fingerprint, expect_fingerprint)
        self.aux_layers, self.hidden_size = self.info["aux_layers"], self.info["hidden_size"]
        self._shards = {entry["name"]: entry for entry in self.info["shards"]}
        self._index, _ = checked_index(self.folder, self.info["shards"])
        self.ids = list(self._index)
        self._open: OrderedDict[str, ShardFile] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.ids)

    def index(self, row_id: str) -> dict:
        """The index line of a row (n, n_last, split, set, loss_spans ...), without reading its shard."""
        if row_id not in self._index:
            raise KeyError(f"{self.folder} has no row {row_id!r}")
        return self._index[row_id]

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
        return decode_row(self.codec, entry, self._read(entry))

    def _read(self, entry: dict) -> dict[str, torch.Tensor]:
        """The stored tensors of a row, checked."""
        name, start, last = entry["shard"], entry["offset"], entry["last_offset"]
        try:
            shard = self._shard(name)
            stored = shard.read(token_tensors(self.codec), start, start + entry["n"])
            stored |= shard.read(teacher_tensors(self.codec), last, last + entry["n_last"])
            why = f"the checksum of row {entry['id']!r} differs" if checksum(stored) != entry["crc32"] else None
        except (EOFError, FileNotFoundError, KeyError, ValueError) as error:
            why = f"{type(error).__name__}: {error}"
        if why:
            raise quarantine(self.folder, self._shards[name]["part"], {name: why})
        return stored

    def _shard(self, name: str) -> ShardFile:
        with self._lock:
            if name not in self._open:
                self._open[name] = ShardFile(self.folder / name, self._shards[name].get("header_crc32"))
            self._open.move_to_end(name)
            if len(self._open) > OPEN_SHARDS:
                self._open.popitem(last=False)  # closed when the last thread that reads from it lets go
            return self._open[name]
