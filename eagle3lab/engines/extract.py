"""From rows of tokens to a finished feature store, through either engine; what is durable is never captured again."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from eagle3lab.engines.choice import MOST_RESTARTS, EngineChoice
from eagle3lab.engines.sglang.capture import CaptureRow, StoreSpec, capture_to_store, durable_ids
from eagle3lab.engines.sglang.errors import ServerGone
from eagle3lab.engines.sglang.server import SGLangServer
from eagle3lab.features.store import FeatureWriter, finish_store

__all__ = ["CaptureRow", "ExtractionError", "StoreSpec", "extract"]


class ExtractionError(RuntimeError):
    """Rows could not be captured; the message names them. What is durable stays."""


def extract(
    choice: EngineChoice,
    store: StoreSpec,
    rows: Sequence[CaptureRow],
    batch_tokens: int,
    on_progress: Callable[[int], None] = lambda tokens: None,
    scratch: str | Path = "capture",
) -> dict:
    """Captures all rows that the store does not hold yet, and returns store.json's content.

    batch_tokens: of one forward pass, padding included (embedded engine; a server makes its own batches).
    on_progress: called with the tokens captured so far, earlier runs' included. scratch: folder through which the
    plugin inside a server is spoken to; a server is started for it, so `choice.servers` must be empty.

    Raises ExtractionError for rows that a server refuses, FeatureStoreError, CaptureError (disk full, wrong layers)
    and ServerGone when a server died more than `MOST_RESTARTS` times.
    """
    if choice.engine == "embedded":
        return _embedded(choice, store, rows, batch_tokens, on_progress)
    if choice.servers:
        raise ValueError(
            f"servers={list(choice.servers)}: capture needs a server that was started for it; leave servers empty, "
            "or use engines.sglang.capture.capture_to_store with the folder your server was started with"
        )
    return _served(choice, store, rows, on_progress, Path(scratch).absolute())


def _embedded(choice, store, rows, batch_tokens, on_progress) -> dict:
    engine = choice.open(store.aux_layers)
    writer = FeatureWriter(
        store.folder, store.fingerprint, store.aux_layers, store.hidden_size, store.shard_tokens, store.codec,
        head_VH=engine.lm_head_VH,
    )  # fmt: skip
    todo = {row.id: row for row in rows if row.id not in writer.done_ids}
    done = sum(len(row.input_ids) for row in rows if row.id not in todo)
    for features in engine.capture(((row.id, row.input_ids) for row in todo.values()), batch_tokens):
        row = todo[features.id]
        writer.add(row.id, row.input_ids, row.loss_spans, features.aux_TAH, features.last_TH, row.split, row.set)
        done += len(row.input_ids)
        on_progress(done)
    return writer.close()


def _served(choice, store, rows, on_progress, scratch) -> dict:
    spec = replace(choice.spec, capture_folder=str(scratch), aux_layers=tuple(store.aux_layers))
    log = None if choice.logs is None else Path(choice.logs) / "capture-server.log"
    with SGLangServer(spec, choice.python, log) as server:
        for restarts in range(MOST_RESTARTS + 1):
            durable = durable_ids(store.folder)
            before = sum(len(row.input_ids) for row in rows if row.id in durable)
            try:
                report = capture_to_store(
                    server.url, scratch, rows, store, on_row=lambda so_far, n=before: on_progress(n + so_far.tokens)
                )
                break
            except ServerGone:
                if server.alive() or restarts == MOST_RESTARTS:
                    raise
                warnings.warn(f"the server died, see {server.log}; it is started again", stacklevel=2)
                server.restart()
    if report.errors:
        first = next(iter(report.errors.values()))
        raise ExtractionError(f"{len(report.errors)} of {len(rows)} rows could not be captured, the first: {first}")
    return finish_store(store.folder, [row.id for row in rows])
