"""The thread inside a server that turns forward passes into stored rows.

The forward pass hands its states over through a bounded queue and waits when it is full. The thread assembles
rows, stores them, obeys the client's orders and keeps the status file. Whatever goes wrong here ends the session and
is told in the status; the server goes on serving.

Shapes: N tokens of a pass, H hidden, E = A * H for A aux layers.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from eagle3lab.engines.sglang.assemble import Assembler, Expected, Piece, RowError, split_pass
from eagle3lab.engines.sglang.capture_files import (
    CaptureFolder,
    Follower,
    Order,
    RowFacts,
    RowFailure,
    Status,
    new_writer_name,
    take_lock,
)
from eagle3lab.engines.sglang.capture_sinks import SessionError, Sink, StatesSink, StoreSink
from eagle3lab.features.layout import FeatureStoreError

QUEUE_PASSES = 4  # forward passes in flight between server and disk
POLL_S = 0.05  # how often an idle writer looks for an order
STATUS_S = 1.0  # how often the status is written while rows come in

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pass:
    """One forward pass on the host. `ready` waits until the copies into the tensors are done."""

    rids: list[str]
    starts: list[int]
    lengths: list[int]
    ids_N: torch.Tensor
    aux_NE: torch.Tensor
    last_NH: torch.Tensor
    ready: Callable[[], None] = lambda: None


class CaptureWriter:
    """One writer of a capture folder. `capturing` says whether passes are wanted now."""

    def __init__(self, folder: str | Path, parent_pid: int, queue_passes: int = QUEUE_PASSES):
        self.folder = CaptureFolder(folder)
        self.status = Status(new_writer_name(), parent_pid)
        self.capturing = False
        self._queue: queue.Queue[Pass] = queue.Queue(queue_passes)
        self._assembler = Assembler()
        self._facts: dict[str, RowFacts] = {}
        self._reader: Follower[RowFacts] | None = None
        self._sink: Sink | None = None
        self._told, self._seen, self._stop = 0.0, None, threading.Event()
        self._thread = threading.Thread(target=self._run, name="eagle3lab-capture", daemon=True)

    def start(self) -> None:
        """Takes the folder's last order as answered (it was given to an earlier server), tells so, and runs."""
        self._lock = take_lock(self.folder.lock(self.status.writer))
        self._seen = self._control_stamp()  # before reading: an order that comes in between is then seen once more
        order = self.folder.order()
        self.status.answered = order.number if order else 0
        self.folder.write_status(self.status)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread without storing anything more; a server that goes down does not call it."""
        self._stop.set()
        self._thread.join()
        self._lock.close()

    def put(self, item: Pass) -> None:
        """Hands a forward pass over; waits while the queue is full, and counts that."""
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            began = time.monotonic()
            while self._thread.is_alive():  # a server must not hang on a thread that is gone
                try:
                    self._queue.put(item, timeout=1.0)
                    break
                except queue.Full:
                    continue
            self.status.waits += 1
            self.status.waited_s += time.monotonic() - began

    def fail(self, error: str) -> None:
        """Ends the session; what is stored stays, what is only in memory is gone."""
        if self.capturing:
            log.error("eagle3lab capture stopped: %s", error)
            self.capturing = False
            self.status.error = error
            self.status.state = "failed"  # last: the writer's thread may be writing the status down
            self._told = 0.0

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._take(self._queue.get(timeout=POLL_S))
            except queue.Empty:
                pass
            except Exception as error:
                self.fail(_text(error))
            try:
                self._obey()
            except Exception as error:
                self.fail(_text(error))
            if self.status.state == "failed":
                self._forget()
            self._tell()

    def _take(self, item: Pass) -> None:
        if self._sink is None or self.status.state != "capturing":
            return  # a pass of before the failure, or of before the end
        item.ready()
        for piece in split_pass(item.rids, item.starts, item.lengths, item.ids_N, item.aux_NE, item.last_NH):
            if not self._assembler.expects(piece.rid):
                self._learn()
            if self._assembler.expects(piece.rid):
                self._take_piece(piece)
            else:
                self.status.foreign += 1

    def _take_piece(self, piece: Piece) -> None:
        try:
            row = self._assembler.add(piece)
            if row is None:
                return
            self._sink.add(self._facts[piece.rid], row)
        except ValueError as error:
            self._row_error(piece.rid, error)
        else:
            self.status.rows += 1
            self.status.tokens += row.input_ids_T.shape[0]
        del self._facts[piece.rid]

    def _row_error(self, rid: str, error: ValueError) -> None:
        self.status.row_errors += 1
        failure = RowFailure(rid, self._facts[rid].id, type(error).__name__, str(error))
        self.folder.row_failed(self.status.session, self.status.writer, failure)

    def _learn(self) -> None:
        for facts in self._reader.new():
            self._facts[facts.rid] = facts
            self._assembler.expect(facts.rid, Expected(facts.id, facts.n, facts.checksum))

    def _control_stamp(self):
        try:
            stat = self.folder.control.stat()
        except FileNotFoundError:
            return None
        return stat.st_ino, stat.st_mtime_ns

    def _obey(self) -> None:
        stamp = self._control_stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        order = self.folder.order()
        if order is None or order.number <= self.status.answered:
            return
        try:
            self._begin(order) if order.command == "begin" else self._end(order)
        finally:
            self.status.answered = order.number
            self._told = 0.0

    def _begin(self, order: Order) -> None:
        if self._sink is not None:
            self._sink.close()  # of a client that was cut off: what it captured is kept
        self._forget()
        self.status = Status(self.status.writer, self.status.parent_pid, self.status.answered, session=order.session)
        self.status.state, self.capturing = "capturing", True  # so that `fail` takes what comes next
        self._reader = Follower(self.folder.rows(order.session), RowFacts)
        if order.store is None:
            self._sink = StatesSink(self.folder.states(order.session))
        else:
            self._sink = StoreSink(order.store, part=self.status.writer)

    def _end(self, order: Order) -> None:
        if self.status.session != order.session or self.status.state != "capturing":
            return
        while True:  # everything the forward passes handed over before the client gave the order
            try:
                self._take(self._queue.get_nowait())
            except queue.Empty:
                break
        self._sink.close()
        for rid, error in self._assembler.unfinished().items():
            self._row_error(rid, RowError(error))
        self.capturing, self.status.state = False, "idle"
        self._forget()

    def _forget(self) -> None:
        self._assembler, self._facts, self._reader, self._sink = Assembler(), {}, None, None

    def _tell(self) -> None:
        now = time.monotonic()
        if self._told and (not self.capturing or now - self._told < STATUS_S):
            return
        try:
            self.folder.write_status(self.status)
            self._told = now
        except OSError:
            log.exception("eagle3lab capture: the status could not be written; trying again")


def _text(error: Exception) -> str:
    if isinstance(error, (SessionError, FeatureStoreError)):
        return str(error)
    if isinstance(error, OSError):
        return f"{error}; what is stored stays: make room or mend the folder and run the capture again"
    return f"{type(error).__name__}: {error}"
