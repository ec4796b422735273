"""Training without a store: rows are captured when they are read, and look as if they came from one.

Shapes: T tokens, A aux layers, H hidden, V target vocabulary.

Every epoch costs a forward pass of the target; of the states nothing is written. A row is captured alone, so what is
trained on does not depend on its neighbours; a store holds rows captured in batches, which differ by the target's
rounding alone.

What stands in a store's place in a folder (`write_plan`):
    live.json    what store.json says, with the dtype of the target
    rows.jsonl   id, input_ids, loss_spans, split and set of every row
"""

import json
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

import torch

from eagle3lab.features.codec import Codec
from eagle3lab.features.encode import decode_row, encode_row
from eagle3lab.features.layout import PLAN, FeatureStoreError, as_stored
from eagle3lab.features.reader import FeatureRow
from eagle3lab.features.slots import spans_to_mask, teacher_slots
from eagle3lab.workbench.files import atomic_folder, read_json, read_jsonl, write_json_atomic

ROWS = "rows.jsonl"


class States(Protocol):
    """What a capture yields: the id of a row, its aux states [T, A, H] and post-norm last hidden states [T, H]."""

    id: str
    aux_TAH: torch.Tensor
    last_TH: torch.Tensor


class LiveFeatures:
    """The rows of a corpus with the interface of a FeatureStore (ids, index, row, rows, aux_layers, hidden_size).

    rows: dicts with id, input_ids, loss_spans, split and set. capture: takes (id, input_ids) pairs and yields their
    states, as `engine.capture` does; it is called with one row, in the thread that reads, by one thread at a time.
    States are rounded as the codec would. A top-k teacher needs head_VH. Raises ValueError for ids that repeat.
    """

    def __init__(
        self,
        rows: Iterable[dict],
        capture: Callable[[list[tuple[str, list[int]]]], Iterable[States]],
        aux_layers: list[int],
        hidden_size: int,
        codec: str = "bf16",
        head_VH: torch.Tensor | None = None,
        fingerprint: dict | None = None,
    ):
        self.aux_layers, self.hidden_size, self.fingerprint = list(aux_layers), hidden_size, fingerprint or {}
        self._one_at_a_time = threading.Lock()
        self.codec, self._capture, self._head_VH = Codec.of(codec), capture, head_VH
        self.codec.check_head(head_VH)
        self._rows: dict[str, dict] = {}
        for row in rows:
            if row["id"] in self._rows:
                raise ValueError(f"row {row['id']!r} stands twice in the corpus")
            self._rows[row["id"]] = row
        self.ids = list(self._rows)

    @classmethod
    def open(cls, folder: str | Path, capture, head_VH: torch.Tensor | None = None) -> "LiveFeatures":
        """The rows that `write_plan` put into a folder."""
        plan = read_json(Path(folder) / PLAN)
        sizes = plan["aux_layers"], plan["hidden_size"], plan["codec"]
        head_VH = head_VH if Codec.of(plan["codec"]).top else None
        return cls(read_jsonl(Path(folder) / ROWS), capture, *sizes, head_VH, plan["fingerprint"])

    def __len__(self) -> int:
        return len(self.ids)

    def index(self, row_id: str) -> dict:
        """id, split, set, n, n_last and loss_spans of a row, without capturing it. KeyError for an unknown id."""
        if row_id not in self._rows:
            raise KeyError(f"the corpus has no row {row_id!r}")
        row = self._rows[row_id]
        n = len(row["input_ids"])
        n_last = teacher_slots(spans_to_mask(row["loss_spans"], n)).shape[0]
        return {**{name: row[name] for name in ("id", "split", "set", "loss_spans")}, "n": n, "n_last": n_last}

    def rows(self, ids: Iterable[str] | None = None, order: int | None = None) -> Iterator[FeatureRow]:
        """As FeatureStore.rows."""
        chosen = list(self.ids if ids is None else ids)
        if order is not None:
            random.Random(order).shuffle(chosen)
        for row_id in chosen:
            yield self.row(row_id)

    def row(self, row_id: str) -> FeatureRow:
        """Captures one row. Raises NonFiniteStateError and ValueError as FeatureWriter.add does."""
        entry, ids = self.index(row_id), self._rows[row_id]["input_ids"]
        with self._one_at_a_time:
            (states,) = self._capture([(row_id, ids)])
        sizes = (self.aux_layers, self.hidden_size)
        block = encode_row(
            self.codec, row_id, ids, entry["loss_spans"], states.aux_TAH, states.last_TH, *sizes, self._head_VH
        )
        return decode_row(self.codec, entry, block)


def write_plan(
    folder: str | Path,
    rows: Iterable[dict],
    fingerprint: dict,
    aux_layers: list[int],
    hidden_size: int,
    codec: str,
    dtype: str,
) -> dict:
    """Writes what a training without a store goes by, whole or not at all; returns what live.json says.

    dtype: of the target when it is captured. `bytes` are those of the rows' tokens: there is nothing else on disk.
    Raises ValueError for an unknown codec and for bad spans, with the row; FeatureStoreError for a folder that holds
    anything but an older plan, such as a store, which would be replaced.
    """
    folder = Path(folder)
    if other := sorted({path.name for path in folder.glob("*")} - {PLAN, ROWS}):
        raise FeatureStoreError(f"{folder} holds {other[0]}, no plan: use another folder, or remove this one")
    counts, name = {"rows": 0, "tokens": 0, "teacher_slots": 0, "bytes": 0}, Codec.of(codec).name
    with atomic_folder(folder) as part:
        with open(part / ROWS, "w", encoding="utf-8") as file:
            for row in rows:
                line = json.dumps({key: row[key] for key in ("id", "input_ids", "loss_spans", "split", "set")}) + "\n"
                try:
                    mask_T = spans_to_mask(row["loss_spans"], len(row["input_ids"]))
                except ValueError as error:
                    raise ValueError(f"row {row['id']!r}: {error}") from error
                counts["rows"] += 1
                counts["tokens"] += mask_T.shape[0]
                counts["teacher_slots"] += teacher_slots(mask_T).shape[0]
                counts["bytes"] += len(line)
                file.write(line)
        plan = {"codec": name, "dtype": dtype, "aux_layers": list(aux_layers), "hidden_size": hidden_size, **counts}
        plan["fingerprint"] = as_stored(fingerprint)
        write_json_atomic(part / PLAN, plan)
    return plan
