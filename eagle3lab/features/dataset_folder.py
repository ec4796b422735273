"""A dataset folder as Hugging Face `datasets` keeps it (`load_from_disk`), written with pyarrow alone.

data-00000-of-00001.arrow holds the rows, state.json says that they are handed out as torch tensors, dataset_info.json
leaves the types to the Arrow schema.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from eagle3lab.workbench.files import write_json_atomic

DATA = "data-00000-of-00001.arrow"
BATCH_ROWS = 500


class TokenRows:
    """Rows of a dataset that is being written; see `token_dataset`."""

    def __init__(self, file):
        import pyarrow as pa

        ids = pa.list_(pa.int64())
        self._pa = pa
        self._schema = pa.schema([("input_ids", ids), ("loss_mask", ids), ("seq_len", pa.int64()), ("id", pa.string())])
        self._writer, self._rows = pa.ipc.new_stream(file, self._schema), []

    def add(self, row_id: str, input_ids_T: torch.Tensor, loss_mask_T: torch.Tensor) -> None:
        """Adds a row: ids int64 [T] and mask (any dtype, 0 or 1) [T]."""
        T = input_ids_T.shape[0]
        values = (input_ids_T.numpy(), loss_mask_T.long().numpy(), T, row_id)
        self._rows.append(dict(zip(self._schema.names, values, strict=True)))
        if len(self._rows) == BATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_batch(self._pa.RecordBatch.from_pylist(self._rows, schema=self._schema))
        self._rows = []

    def close(self) -> None:
        self._flush()
        self._writer.close()


@contextmanager
def token_dataset(folder: Path) -> Iterator[TokenRows]:
    """Rows of columns input_ids, loss_mask, seq_len and id into `folder`, which exists; readable once it is left."""
    with open(folder / DATA, "wb") as file:
        rows = TokenRows(file)
        yield rows
        rows.close()
    state = {
        "_data_files": [{"filename": DATA}], "_fingerprint": None, "_format_columns": None, "_format_kwargs": {},
        "_format_type": "torch", "_output_all_columns": False, "_split": None,
    }  # fmt: skip
    write_json_atomic(folder / "state.json", state)
    write_json_atomic(folder / "dataset_info.json", {})
