"""Capturing a target's states through a running SGLang server.

In bulk through our plugin inside the server (`capture_to_store`, `capture_states`); for checks through the server's own
JSON answers (`capture_json`, aux states only).

Shapes: T tokens, A aux layers, H hidden, E = A * H.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file

from eagle3lab.engines.base import Features
from eagle3lab.engines.servers.bounded import bounded
from eagle3lab.engines.servers.errors import RequestRefused, ServerFault
from eagle3lab.engines.servers.threads import iterate_in_thread
from eagle3lab.engines.sglang.assemble import RowError, ids_checksum
from eagle3lab.engines.sglang.attach import server_info
from eagle3lab.engines.sglang.capture_files import FOLDER_VARIABLE, StoreSpec
from eagle3lab.engines.sglang.capture_session import POLL_S, CaptureError, CaptureSession, check_capturing
from eagle3lab.engines.sglang.capture_sinks import states_file
from eagle3lab.engines.sglang.client import Client
from eagle3lab.features.checks import NonFiniteStateError
from eagle3lab.features.codec import Codec
from eagle3lab.features.layout import read_index, read_parts, shard_is_whole
from eagle3lab.workbench.files import write_text_atomic

ENTRY_POINT = "eagle3lab-capture = eagle3lab.engines.sglang.plugin:register"
REPOSITORY = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class CaptureRow:
    """One row to capture: its id and tokens, and what the store keeps with it."""

    id: str
    input_ids: list[int]
    loss_spans: list[list[int]] = field(default_factory=list)
    split: str = "train"
    set: str = ""


@dataclass
class CaptureReport:
    """What a capture did: rows given == rows captured + skipped (durable before) + errors (row id -> text). `waits`
    counts the forward passes that waited for the disk, `waited_s` their seconds, over all of the server's writers."""

    rows: int = 0
    tokens: int = 0
    skipped: int = 0
    errors: dict[str, str] = field(default_factory=dict)
    waits: int = 0
    waited_s: float = 0.0
    seconds: float = 0.0


def plugin_environment(capture_folder: str | Path) -> dict[str, str]:
    """Environment variables of a server that captures into `capture_folder` (made when missing; one server a folder).

    PYTHONPATH holds the repository's root and a folder through which SGLang finds the plugin without eagle3lab being
    installed; put the server's own PYTHONPATH behind it.
    """
    folder = Path(capture_folder).absolute()
    found = folder / "plugin"
    info = found / "eagle3lab_capture-1.dist-info"
    write_text_atomic(info / "METADATA", "Metadata-Version: 2.1\nName: eagle3lab-capture\nVersion: 1\n")
    write_text_atomic(info / "entry_points.txt", f"[sglang.srt.plugins]\n{ENTRY_POINT}\n")
    return {FOLDER_VARIABLE: str(folder), "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(found)])}


def durable_ids(store_folder: str | Path) -> set[str]:
    """Ids of the rows that are on disk in any part of a feature store, finished or not."""
    folder = Path(store_folder)
    ids: set[str] = set()
    for part, manifest in read_parts(folder).items():
        whole = [entry for entry in manifest["shards"] if shard_is_whole(folder, entry)]
        ids.update(read_index(folder, part, whole)[0])
    return ids


def capture_to_store(
    url: str,
    capture_folder: str | Path,
    rows: Iterable[CaptureRow],
    store: StoreSpec,
    concurrency: int = 16,
    timeout_s: float = 600.0,
    on_row: Callable[[CaptureReport], None] | None = None,
) -> CaptureReport:
    """Captures the rows that are not durable yet into the store's folder; returns when all of them are durable.

    The store is readable after `finish_store(folder, ids)`, which is left to the caller: other servers may write into
    the same folder. `on_row` is called after every row with the numbers so far (rows and tokens sent).

    A row that the server refuses, or whose states are not finite, is in `errors`. Raises CaptureError for a server that
    captures other layers and when the plugin had to stop (disk full), ServerGone when the server dies: run it again.
    ValueError for a codec with a top-k teacher.
    """
    if Codec.of(store.codec).top:
        raise ValueError(
            f"codec={store.codec!r} needs the target's output head, which the plugin has not: take a codec that keeps "
            "states (bf16, fp8), or let `capture_states` hand the rows to a FeatureWriter here"
        )
    began, report = time.monotonic(), CaptureReport()
    check_capturing(server_info(url), store.aux_layers)
    with CaptureSession(url, capture_folder, store, timeout_s) as session:
        done = durable_ids(store.folder)
        sent: dict[str, int] = {}

        def wanted() -> Iterator[CaptureRow]:
            for row in rows:
                if row.id in done or row.id in sent:
                    report.skipped += 1
                else:
                    sent[row.id] = len(row.input_ids)
                    yield row

        for row, error in iterate_in_thread(lambda: _send(session, wanted(), concurrency)):
            if error is None:
                report.rows, report.tokens = report.rows + 1, report.tokens + len(row.input_ids)
            else:
                report.errors[row.id] = error
            if on_row is not None:
                on_row(report)
        session.end()
        report.errors = {**{failure.id: failure.error for failure in session.new_failures()}, **report.errors}
        lost = set(sent) - durable_ids(store.folder) - set(report.errors)
        if lost:
            raise CaptureError(
                f"{len(lost)} rows went through {url} but are not in {store.folder}: {sorted(lost)[:3]} ..."
            )
        report.rows = len(sent) - len(report.errors)
        report.tokens = sum(n for row_id, n in sent.items() if row_id not in report.errors)
        report.waits, report.waited_s = session.waits, session.waited_s
    report.seconds = time.monotonic() - began
    return report


async def _send(session, rows, concurrency) -> AsyncIterator[tuple[CaptureRow, str | None]]:
    """Sends rows; (row, None) when it went through the server, (row, error) when the server did not run it."""
    async with Client(session.url, concurrency=concurrency, timeout_s=session.timeout_s) as client:

        async def send(row):
            facts = {"loss_spans": row.loss_spans, "split": row.split, "set": row.set}
            rid = session.announce(row.id, len(row.input_ids), ids_checksum(row.input_ids), **facts)
            try:
                await client.prefill(row.id, row.input_ids, rid=rid)
            except (RequestRefused, ServerFault) as error:
                return row, str(error)
            finally:
                session.look()
            return row, None

        async for result in bounded(rows, send, concurrency):
            yield result


def capture_states(
    url: str,
    capture_folder: str | Path,
    rows: Iterable[tuple[str, list[int]]],
    concurrency: int = 4,
    timeout_s: float = 600.0,
) -> Iterator[Features]:
    """Exact states of (id, input_ids) rows in the target's dtype, as they come: aux_TAH and last_TH of all T tokens.

    Raises RequestRefused, NonFiniteStateError or RowError naming the row, CaptureError and ServerGone as above.
    """
    check_capturing(server_info(url))
    with CaptureSession(url, capture_folder, None, timeout_s) as session:
        folder = session.folder.states(session.number)
        try:
            yield from iterate_in_thread(lambda: _states(session, folder, rows, concurrency))
            session.end()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


async def _states(session, folder, rows, concurrency) -> AsyncIterator[Features]:
    async with Client(session.url, concurrency=concurrency, timeout_s=session.timeout_s) as client:
        failed: dict[str, Exception] = {}

        async def fetch(row):
            row_id, input_ids = row
            rid = session.announce(row_id, len(input_ids), ids_checksum(input_ids))
            await client.prefill(row_id, input_ids, rid=rid)
            path = states_file(folder, rid)
            while not path.exists():
                session.look()
                for failure in session.new_failures():
                    kind = NonFiniteStateError if failure.kind == "NonFiniteStateError" else RowError
                    failed[failure.rid] = kind(failure.error)
                if rid in failed:
                    raise failed[rid]
                await asyncio.sleep(POLL_S)
            states = load_file(path)
            path.unlink()
            return Features(row_id, states["input_ids"].long(), states["aux"], states["last"])

        async for features in bounded(rows, fetch, concurrency):
            yield features


def capture_json(
    url: str, rows: Iterable[tuple[str, list[int]]], concurrency: int = 4, timeout_s: float = 600.0
) -> Iterator[tuple[str, torch.Tensor]]:
    """(id, aux_TE float32) of (id, input_ids) rows from the server's own answers: slow, for checks.

    The server needs --enable-return-aux-hidden-states (or, when it speculates with EAGLE3, which feeds its drafter the
    same states, --enable-return-hidden-states) and must prefill a row in one piece. Raises RowError for a row of which
    it gave only a part, errors of `Client.prefill` otherwise.
    """

    async def fetch(client, row):
        row_id, input_ids = row
        # a key of its own: a prompt found in the server's prefix cache would lack the states of its cached tokens
        answer = await client.prefill(row_id, input_ids, return_hidden_states=True, extra_key=secrets.token_hex(8))
        given = answer["meta_info"].get("hidden_states")
        if not given:
            raise RowError(f"row {row_id!r}: no hidden states; start the server with a flag that returns them")
        aux_TE = torch.tensor(given[0], dtype=torch.float32)
        if aux_TE.dim() != 2 or aux_TE.shape[0] != len(input_ids):
            raise RowError(
                f"row {row_id!r}: states of {tuple(aux_TE.shape)} for {len(input_ids)} tokens; the server's JSON holds "
                "only the last piece of a chunked prefill: start it with a larger --chunked-prefill-size"
            )
        return row_id, aux_TE

    async def answers():
        async with Client(url, concurrency=concurrency, timeout_s=timeout_s) as client:
            async for answer in bounded(rows, lambda row: fetch(client, row), concurrency):
                yield answer

    return iterate_in_thread(answers)
