"""Writing a feature store: rows are gathered into shards; a shard appears whole or not at all.

Shapes: T tokens, A aux layers, H hidden, M slots with a teacher.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from eagle3lab.features.checks import require_finite
from eagle3lab.features.layout import (
    CODEC,
    INDEX,
    STORE,
    as_stored,
    check_fingerprint,
    read_store,
    shard_name,
    valid_rows,
)
from eagle3lab.features.reader import FeatureRow, FeatureStore
from eagle3lab.features.slots import spans_to_mask, teacher_slots
from eagle3lab.workbench.files import (
    append_jsonl,
    atomic_path,
    sha256_file,
    write_json_atomic,
    write_text_atomic,
)

__all__ = ["FeatureRow", "FeatureStore", "FeatureWriter"]


class FeatureWriter:
    """Writes rows into `folder`, or goes on where an earlier writer of the same fingerprint was cut off.

    `done_ids` are the rows already on disk: do not capture them again. Rows become durable when their shard
    of at least `shard_tokens` tokens is full, or at `close`; a killed writer loses only the rows of the
    shard it was filling. Aux states are kept as bfloat16 for every token, last hidden states only for
    `teacher_slots`.

    Raises FeatureStoreError when the folder holds features of another fingerprint, layers or size.
    """

    def __init__(
        self,
        folder: str | Path,
        fingerprint: dict,
        aux_layers: list[int],
        hidden_size: int,
        shard_tokens: int = 65536,
    ):
        if shard_tokens < 1:
            raise ValueError(f"shard_tokens={shard_tokens}, at least 1 is needed")
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.shard_tokens = shard_tokens
        self.store = {
            "codec": CODEC,
            "fingerprint": as_stored(fingerprint),
            "aux_layers": list(aux_layers),
            "hidden_size": hidden_size,
            "complete": False,
            "rows": 0,
            "tokens": 0,
            "teacher_slots": 0,
            "bytes": 0,
            "shards": [],
        }
        rows = self._resume()
        self.done_ids = {row["id"] for row in rows}
        self._number = max((int(entry["name"][6:11]) for entry in self.store["shards"]), default=-1) + 1
        self._buffer: list[tuple[dict, dict[str, torch.Tensor]]] = []

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
        """Adds one row. `input_ids` are T ints (list or tensor); the states may be of any float dtype.

        Raises ValueError naming the row for a second row of the same id, wrong shapes or bad spans, and
        NonFiniteStateError naming row and layer for NaN or infinity.
        """
        if row_id in self.done_ids:
            raise ValueError(f"row {row_id!r} is in {self.folder} already; skip the ids in done_ids")
        ids_T = torch.as_tensor(input_ids, dtype=torch.int32)
        T, shape = ids_T.shape[0], (len(self.store["aux_layers"]), self.store["hidden_size"])
        if tuple(aux_TAH.shape) != (T, *shape) or tuple(last_TH.shape) != (T, shape[1]):
            raise ValueError(
                f"row {row_id!r} has {T} tokens, aux states {tuple(aux_TAH.shape)} and last states "
                f"{tuple(last_TH.shape)}; expected {(T, *shape)} and {(T, shape[1])}"
            )
        # clone: a slice that is kept would keep the whole batch it was cut from
        aux_TAH = aux_TAH.detach().to("cpu", torch.bfloat16, copy=True).contiguous()
        last_TH = last_TH.detach().to("cpu", torch.bfloat16)
        require_finite(row_id, aux_TAH, last_TH, self.store["aux_layers"])
        try:
            slots_M = teacher_slots(spans_to_mask(loss_spans, T))
        except ValueError as error:
            raise ValueError(f"row {row_id!r}: {error}") from error
        row = {
            "id": row_id,
            "split": split,
            "set": set,
            "n": T,
            "n_last": slots_M.shape[0],
            "loss_spans": loss_spans,
        }
        self._buffer.append((row, {"input_ids": ids_T, "aux": aux_TAH, "last": last_TH[slots_M]}))
        self.done_ids.add(row_id)
        if sum(row["n"] for row, _ in self._buffer) >= self.shard_tokens:
            self._write_shard()

    def close(self) -> dict:
        """Writes what is still in memory, marks the store complete and returns store.json's content."""
        if self._buffer:
            self._write_shard()
        self.store["complete"] = True
        write_json_atomic(self.folder / STORE, self.store)
        return self.store

    def _write_shard(self) -> None:
        """Shard, then its index rows, then store.json: the last makes the first two count."""
        name, offset, last_offset, lines = shard_name(self._number), 0, 0, []
        for row, _ in self._buffer:
            lines.append({**row, "shard": name, "offset": offset, "last_offset": last_offset})
            offset, last_offset = offset + row["n"], last_offset + row["n_last"]
        tensors = {key: torch.cat([t[key] for _, t in self._buffer]) for key in ("input_ids", "aux", "last")}
        path = self.folder / name
        with atomic_path(path) as temporary:
            save_file(tensors, temporary)
        for line in lines:
            append_jsonl(self.folder / INDEX, line)
        size = path.stat().st_size
        self.store["shards"].append(
            {
                "name": name,
                "rows": len(lines),
                "tokens": offset,
                "teacher_slots": last_offset,
                "bytes": size,
                "sha256": sha256_file(path),
            }
        )
        self._count()
        write_json_atomic(self.folder / STORE, self.store)
        self._number += 1
        self._buffer = []

    def _count(self) -> None:
        for total in ("rows", "tokens", "teacher_slots", "bytes"):
            self.store[total] = sum(entry[total] for entry in self.store["shards"])

    def _resume(self) -> list[dict]:
        """Takes over the valid shards of an earlier writer and clears away what it left unfinished."""
        old, rows = read_store(self.folder), []
        if old is not None:
            names = ("codec", "aux_layers", "hidden_size")
            check_fingerprint(
                self.folder,
                {**old["fingerprint"], **{n: old[n] for n in names}},
                {**self.store["fingerprint"], **{n: self.store[n] for n in names}},
            )
            rows = valid_rows(self.folder, old, repair=True)
            kept = {row["shard"] for row in rows}
            self.store["shards"] = [entry for entry in old["shards"] if entry["name"] in kept]
            self._count()
        keep = {entry["name"] for entry in self.store["shards"]}
        # store.json first: a kill in between must not leave it listing a shard that is gone
        write_json_atomic(self.folder / STORE, self.store)
        write_text_atomic(
            self.folder / INDEX, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        )
        for path in [*self.folder.glob("shard-*.safetensors"), *self.folder.glob(".shard-*.tmp.safetensors")]:
            if path.name not in keep:
                path.unlink()
        return rows
