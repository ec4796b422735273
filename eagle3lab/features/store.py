"""Writing a feature store: rows are gathered into shards; a shard appears whole or not at all.

Shapes: T tokens, A aux layers, H hidden, V target vocabulary.
"""

import os
import shutil
import zlib
from pathlib import Path

import torch

from eagle3lab.features.codec import Codec, teacher_tensors
from eagle3lab.features.encode import FeatureRow, encode_row
from eagle3lab.features.finish import finish_store
from eagle3lab.features.index import Index
from eagle3lab.features.layout import (
    FORMAT,
    PLAN,
    STORE,
    DiskFullError,
    FeatureStoreError,
    as_stored,
    check_fingerprint,
    check_part_name,
    identity,
    index_line,
    index_path,
    lock_path,
    manifest_path,
    read_index,
    read_manifest,
    read_parts,
    says_full,
    shard_is_whole,
    shard_name,
    shard_number,
    sizes,
    told_when_full,
    write_index,
)
from eagle3lab.features.lock import release, take
from eagle3lab.features.reader import FeatureStore
from eagle3lab.features.shardfile import checksum, header_checksum, write_blocks
from eagle3lab.workbench.files import atomic_path, write_json_atomic

_NEWEST: dict[Path, object] = {}  # lock of a part -> mark of the writer of this process that may write it

__all__ = ["FeatureRow", "FeatureStore", "FeatureWriter", "finish_store"]


class FeatureWriter:
    """Writes rows into `folder`, or goes on where an earlier writer of the same fingerprint was cut off.

    part: None for the only writer of a folder, whose `close` makes the store readable. Several writers (processes,
    servers) each have a part of another name; when all are done `finish_store(folder)` makes the store readable.
    `done_ids` are the rows on disk when this writer was opened, in any part, and those it added: do not capture them
    again. Rows become durable when their shard of at least `shard_tokens` tokens is full, at `flush` and at `close`; a
    killed writer loses only the rows of the shard it was filling.
    codec: see codec.py. A top-k teacher needs `head_VH`, the target's output head; logits are computed in its dtype.

    Raises FeatureStoreError when the folder holds features of another fingerprint, codec, layers or size, and when
    another process writes this part; DiskFullError when a shard does not fit (what was stored before stays whole).
    """

    def __init__(
        self,
        folder: str | Path,
        fingerprint: dict,
        aux_layers: list[int],
        hidden_size: int,
        shard_tokens: int = 65536,
        codec: str = "bf16",
        part: str | None = None,
        head_VH: torch.Tensor | None = None,
    ):
        if shard_tokens < 1:
            raise ValueError(f"shard_tokens={shard_tokens}, at least 1 is needed")
        if not aux_layers or len(set(aux_layers)) < len(aux_layers) or min(aux_layers) < 0:
            raise ValueError(f"aux_layers={list(aux_layers)} must be different layers, at least one, counted from 0")
        self.codec = Codec.of(codec)
        self.codec.check_head(head_VH)
        self.sole, self.part = part is None, "00" if part is None else part
        check_part_name(self.part)
        self.folder, self.shard_tokens = Path(folder), shard_tokens
        self.head_VH = head_VH if self.codec.top else None
        self.manifest = {
            "format": FORMAT,
            "codec": self.codec.name,
            "vocab_size": None if self.head_VH is None else self.head_VH.shape[0],
            "fingerprint": as_stored(fingerprint),
            "aux_layers": list(aux_layers),
            "hidden_size": hidden_size,
            "complete": False,
            **sizes([]),
            "shards": [],
        }
        if (self.folder / PLAN).exists():
            raise FeatureStoreError(
                f"{self.folder} holds the plan of a training without a store ({PLAN}); use another folder, or remove it"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        if not take(lock_path(self.folder, self.part)):
            raise FeatureStoreError(
                f"another process writes part {self.part!r} of {self.folder}; give this writer another part"
            )
        try:
            with told_when_full(self.folder):
                self.done_ids = self._resume()
        except BaseException:
            release(lock_path(self.folder, self.part))
            raise
        _NEWEST[lock_path(self.folder, self.part).resolve()] = self._mark = object()
        self._number = max((shard_number(entry["name"]) for entry in self.manifest["shards"]), default=-1) + 1
        self._rows: list[dict] = []
        self._blocks: list[dict[str, torch.Tensor]] = []

    def add(
        self,
        row_id: str,
        input_ids,
        loss_spans: list[list[int]],
        aux_TAH: torch.Tensor,
        last_TH: torch.Tensor,
        split: str = "train",
        set: str = "",
    ) -> None:
        """Adds one row. `input_ids` are T ints (list or tensor); the states may be of any float dtype and device.

        Raises ValueError naming the row for a second row of the same id, wrong shapes or bad spans, and
        NonFiniteStateError naming row and layer for NaN or infinity.
        """
        if not all(isinstance(word, str) for word in (row_id, split, set)):
            raise ValueError(f"row {row_id!r}: its id, split={split!r} and set={set!r} are texts")
        if row_id in self.done_ids:
            raise ValueError(f"row {row_id!r} is in {self.folder} already; skip the ids in done_ids")
        sizes_ = (self.manifest["aux_layers"], self.manifest["hidden_size"])
        block = encode_row(self.codec, row_id, input_ids, loss_spans, aux_TAH, last_TH, *sizes_, self.head_VH)
        n, n_last = block["input_ids"].shape[0], block[teacher_tensors(self.codec)[0]].shape[0]
        counts = {"n": n, "n_last": n_last, "loss_spans": loss_spans, "crc32": checksum(block)}
        self._rows.append({"id": row_id, "split": split, "set": set, **counts})
        self._blocks.append(block)
        self.done_ids.add(row_id)
        if sum(row["n"] for row in self._rows) >= self.shard_tokens:
            self.flush()

    def flush(self) -> None:
        """Makes the rows added so far durable, as a shard of their own."""
        if not self._rows:
            return
        self._check_newest()
        name, offset, last_offset, lines = shard_name(self.part, self._number), 0, 0, []
        for row in self._rows:
            line = {**row, "shard": name, "offset": offset, "last_offset": last_offset}
            lines.append(index_line(line))
            offset, last_offset = offset + row["n"], last_offset + row["n_last"]
        path, index = self.folder / name, index_path(self.folder, self.part)
        shards, index_bytes = self.manifest["shards"], index.stat().st_size
        try:
            # shard, then its index rows, then the part's JSON: the last makes the first two count
            with atomic_path(path) as temporary:
                write_blocks(temporary, self._blocks)
            text = "".join(lines).encode()
            with open(index, "ab") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            counts = {"rows": len(lines), "tokens": offset, "teacher_slots": last_offset, "bytes": path.stat().st_size}
            counts |= {"header_crc32": header_checksum(path), "index_crc32": zlib.crc32(text)}
            self.manifest["shards"] = [*shards, {"name": name, "part": self.part, **counts}]
            self._save_manifest()
        except BaseException as error:  # an interrupt too: what was not finished is taken back, and may be tried again
            self.manifest["shards"] = shards
            path.unlink(missing_ok=True)
            os.truncate(index, index_bytes)
            if says_full(error):
                raise self._disk_full() from error
            raise
        self._number += 1
        self._rows, self._blocks = [], []

    def close(self) -> dict:
        """Writes what is still in memory and marks the part complete. Returns store.json's content for the only writer
        of a folder, else the part's JSON."""
        self.flush()
        self._check_newest()
        self.manifest["complete"] = True
        with told_when_full(self.folder):
            self._save_manifest()
        release(lock_path(self.folder, self.part))
        return finish_store(self.folder, self.done_ids) if self.sole else self.manifest

    def _check_newest(self) -> None:
        """The lock keeps other processes away, not a second writer of this one (a cell of a notebook run again)."""
        if _NEWEST.get(lock_path(self.folder, self.part).resolve()) is not self._mark:
            raise FeatureStoreError(
                f"another writer of this process has taken over part {self.part!r} of {self.folder}: go on with that "
                "one, or give each a part of its own"
            )

    def _disk_full(self) -> DiskFullError:
        size = sum(tensor.nbytes for block in self._blocks for tensor in block.values())
        return DiskFullError(
            f"the disk of {self.folder} is full: {size / 1e6:.1f} MB to write for {len(self._rows)} rows, "
            f"{shutil.disk_usage(self.folder).free / 1e6:.1f} MB free. What was stored before is whole; make room and "
            "run the extraction again, it captures only what is missing"
        )

    def _save_manifest(self) -> None:
        self.manifest |= sizes(self.manifest["shards"])
        write_json_atomic(manifest_path(self.folder, self.part), self.manifest)

    def _resume(self) -> set[str]:
        """Takes over the valid shards of an earlier writer of this part, clears away what it left unfinished, and
        returns the ids that are on disk in any part."""
        if (self.folder / STORE).exists():
            read_manifest(self.folder / STORE)  # refuses another format
        done: set[str] = set()
        own = Index()
        for part, manifest in read_parts(self.folder).items():
            check_fingerprint(self.folder, identity(manifest), identity(self.manifest))
            shards = [entry for entry in manifest["shards"] if shard_is_whole(self.folder, entry)]
            index, lacking = read_index(self.folder, part, shards)
            done.update(index)
            if part == self.part:
                own = index
                self.manifest["shards"] = [entry for entry in shards if entry["name"] not in lacking]
        (self.folder / STORE).unlink(missing_ok=True)  # the store is unfinished while it is written to
        # the part's JSON first: a kill in between must not leave it listing a shard that is gone
        self._save_manifest()
        write_index(self.folder, self.part, own.rows())
        keep = {entry["name"] for entry in self.manifest["shards"]}
        for pattern in ("shard-{}-*", ".shard-{}-*.tmp.*", ".part-{}.*.tmp.*", ".index-{}.*.tmp.*"):
            for path in self.folder.glob(pattern.format(self.part)):
                if path.name not in keep:
                    path.unlink()
        return done
