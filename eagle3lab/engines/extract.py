"""From rows of tokens to a finished feature store, through either engine; what is durable is never captured again."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from eagle3lab.engines.choice import MOST_RESTARTS, EngineChoice
from eagle3lab.engines.servers.errors import ServerGone
from eagle3lab.engines.sglang.capture import CaptureRow, StoreSpec, capture_to_store, durable_ids
from eagle3lab.engines.sglang.server import SGLangServer
from eagle3lab.features.estimate import SAMPLE_ROWS, StoreEstimate, estimate_by_sample
from eagle3lab.features.store import FeatureWriter, finish_store
from eagle3lab.features.verify import set_damaged_aside

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
    on_estimate: Callable[[StoreEstimate], None] | None = None,
) -> dict:
    """Captures all rows that the store does not hold yet, and returns store.json's content.

    Where an estimate was made it returns "rest" besides: the rows and tokens that the estimate was of, the seconds it
    said (`estimated_s`) and the seconds they took (`seconds`).

    Where it holds all of them, it is read from end to end first: rows of damaged shards, which a warning names, are
    captured again.

    batch_tokens: of one forward pass, padding included (embedded engine; a server makes its own batches).
    on_progress: called with the tokens captured so far, earlier runs' included. scratch: folder through which the
    plugin inside a server is spoken to; a server is started for it, so `choice.servers` must be empty.
    on_estimate: told what the missing rows will take, once a few of them are captured, before a disk that is too small
    for them is refused; None: nothing is estimated and nothing refused.

    Raises DiskFullError before the bulk of the work, ExtractionError for rows that a server refuses, FeatureStoreError,
    CaptureError (disk full, wrong layers) and ServerGone when a server died more than `MOST_RESTARTS` times.
    """
    if durable_ids(store.folder).issuperset(row.id for row in rows):
        for damage in set_damaged_aside(store.folder):
            warnings.warn(str(damage), stacklevel=2)
    if choice.engine == "embedded":
        return _embedded(choice, store, rows, batch_tokens, on_progress, on_estimate)
    if choice.servers:
        raise ValueError(
            f"servers={list(choice.servers)}: capture needs a server that was started for it; leave servers empty, "
            "or use engines.sglang.capture.capture_to_store with the folder your server was started with"
        )
    return _served(choice, store, rows, on_progress, Path(scratch).absolute(), on_estimate)


def _embedded(choice, store, rows, batch_tokens, on_progress, on_estimate) -> dict:
    engine = choice.open(store.aux_layers)
    writer = FeatureWriter(
        store.folder, store.fingerprint, store.aux_layers, store.hidden_size, store.shard_tokens, store.codec,
        head_VH=engine.lm_head_VH,
    )  # fmt: skip
    todo = {row.id: row for row in rows if row.id not in writer.done_ids}
    done = sum(len(row.input_ids) for row in rows if row.id not in todo)

    def capture(some):
        nonlocal done
        for features in engine.capture(((row.id, row.input_ids) for row in some), batch_tokens):
            row = todo[features.id]
            writer.add(row.id, row.input_ids, row.loss_spans, features.aux_TAH, features.last_TH, row.split, row.set)
            done += len(row.input_ids)
            on_progress(done)

    def capture_now(some):
        capture(some)
        writer.flush()

    estimate = _look_ahead(store, [*todo.values()], capture_now, on_estimate, engine.lm_head_VH.shape[0])
    began = time.perf_counter()
    capture([row for row in todo.values() if row.id not in writer.done_ids])
    info = writer.close()
    return info | _told_and_taken(estimate, time.perf_counter() - began)


def _told_and_taken(estimate: StoreEstimate | None, seconds: float) -> dict:
    if estimate is None:
        return {}
    times = {"estimated_s": round(estimate.hours * 3600, 2), "seconds": round(seconds, 2)}
    return {"rest": {"rows": estimate.rows, "tokens": estimate.tokens, **times}}


def _look_ahead(store, todo, capture, on_estimate, vocab_size=0) -> StoreEstimate | None:
    """Captures a sample of many missing rows, tells what the rest will take, and refuses a disk that is too small."""
    if on_estimate is None or len(todo) <= 2 * SAMPLE_ROWS:
        return None
    estimate = estimate_by_sample(
        store.folder, todo, capture, store.codec, len(store.aux_layers), store.hidden_size, vocab_size
    )
    on_estimate(estimate)
    estimate.require_disk(store.folder)
    return estimate


def _served(choice, store, rows, on_progress, scratch, on_estimate) -> dict:
    spec = replace(choice.spec, capture_folder=str(scratch), aux_layers=tuple(store.aux_layers))
    log = None if choice.logs is None else Path(choice.logs) / "capture-server.log"
    with SGLangServer(spec, choice.python, log) as server:
        for restarts in range(MOST_RESTARTS + 1):
            durable = durable_ids(store.folder)
            todo = [row for row in rows if row.id not in durable]
            try:
                estimate = _look_ahead(
                    store, todo, lambda some: capture_to_store(server.url, scratch, some, store), on_estimate
                )
                began, durable = time.perf_counter(), durable_ids(store.folder)
                before = sum(len(row.input_ids) for row in rows if row.id in durable)
                report = capture_to_store(
                    server.url, scratch, rows, store, on_row=lambda so_far, n=before: on_progress(n + so_far.tokens)
                )
                seconds = time.perf_counter() - began
                break
            except ServerGone:
                if server.alive() or restarts == MOST_RESTARTS:
                    raise
                warnings.warn(f"the server died, see {server.log}; it is started again", stacklevel=2)
                server.restart()
    if report.errors:
        first = next(iter(report.errors.values()))
        raise ExtractionError(f"{len(report.errors)} of {len(rows)} rows could not be captured, the first: {first}")
    return finish_store(store.folder, [row.id for row in rows]) | _told_and_taken(estimate, seconds)
