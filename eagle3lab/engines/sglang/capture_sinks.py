"""Where captured rows go: into a feature store, or one exact file a row.

Shapes: T tokens, A aux layers, H hidden.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from safetensors.torch import save_file

from eagle3lab.engines.sglang.assemble import Row
from eagle3lab.engines.sglang.capture_files import RowFacts, StoreSpec
from eagle3lab.features.checks import require_finite
from eagle3lab.features.layout import FeatureStoreError
from eagle3lab.features.store import FeatureWriter
from eagle3lab.workbench.files import atomic_path


class SessionError(RuntimeError):
    """The whole session cannot go on; the message says why and what to do."""


class Sink(Protocol):
    """Takes whole rows. ValueError from `add` is that row's own, anything else ends the session."""

    def add(self, facts: RowFacts, row: Row) -> None: ...

    def close(self) -> None:
        """Makes everything durable."""


class StoreSink:
    """Rows go through `FeatureWriter` into a part of the store that no other writer uses."""

    def __init__(self, spec: StoreSpec, part: str):
        self._shape = (len(spec.aux_layers), spec.hidden_size)
        self._writer = FeatureWriter(
            spec.folder,
            spec.fingerprint,
            spec.aux_layers,
            spec.hidden_size,
            spec.shard_tokens,
            codec=spec.codec,
            part=part,
        )

    def add(self, facts: RowFacts, row: Row) -> None:
        found = tuple(row.aux_TAH.shape[1:])
        if found != self._shape:
            raise SessionError(
                f"the server captures {found[0]} layers of size {found[1]}, the feature store wants {self._shape[0]} "
                f"of size {self._shape[1]}; is it the right target, started with these aux layers?"
            )
        try:
            self._writer.add(
                facts.id, row.input_ids_T, facts.loss_spans, row.aux_TAH, row.last_TH, facts.split, facts.set
            )
        except FeatureStoreError as error:  # a ValueError, but of the store (its disk is full), not of this row
            raise SessionError(str(error)) from error

    def close(self) -> None:
        self._writer.close()


class StatesSink:
    """Every row becomes `<rid>.safetensors` in the target's dtype: input_ids int32 [T], aux [T, A, H], last [T, H]."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def add(self, facts: RowFacts, row: Row) -> None:
        require_finite(facts.id, row.aux_TAH, row.last_TH, list(range(row.aux_TAH.shape[1])))
        with atomic_path(states_file(self._folder, facts.rid)) as temporary:
            save_file({"input_ids": row.input_ids_T, "aux": row.aux_TAH.contiguous(), "last": row.last_TH}, temporary)

    def close(self) -> None:
        """Every file is durable already."""


def states_file(folder: Path, rid: str) -> Path:
    """The file of one request's states."""
    return folder / f"{rid}.safetensors"
