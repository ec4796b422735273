"""The client's end of a capture session: orders to the writers inside a server, and what they say."""

from __future__ import annotations

import re
import time
from pathlib import Path

from eagle3lab.draft.aux_layers import layers_sglang_reads
from eagle3lab.engines.servers.errors import ServerGone
from eagle3lab.engines.servers.model_files import is_local, read_target
from eagle3lab.engines.sglang.attach import ServerInfo
from eagle3lab.engines.sglang.capture_files import (
    CaptureFolder,
    Follower,
    Order,
    RowFacts,
    RowFailure,
    Status,
    StoreSpec,
    take_lock,
)

POLL_S = 0.02
LOOK_S = 0.5  # how often the writers' status is looked at while rows are sent


class CaptureError(RuntimeError):
    """The capture cannot go on. What is durable stays; run it again when the cause is mended."""


def check_capturing(info: ServerInfo, aux_layers: list[int] | None = None) -> None:
    """Raises CaptureError for a server that was not started to capture whole rows, or captures other layers than
    `aux_layers` (hs indices)."""
    if not info.captures:
        raise CaptureError(f"{info.url} captures no states: start a server with capture_folder")
    if info.radix_cache:
        raise CaptureError(f"{info.url} has a prefix cache, which swallows states: start it with --disable-radix-cache")
    if aux_layers is not None and is_local(info.target):
        target = read_target(info.target)
        found = layers_sglang_reads(info.layer_ids, target.num_layers, target.architecture)
        if found != list(aux_layers):
            raise CaptureError(
                f"{info.url} captures aux_layers {found}, wanted are {list(aux_layers)}: start one with these"
            )


class CaptureSession:
    """`with CaptureSession(...) as session:` rows are announced and sent, then `end` makes all of them durable.

    A session that is left by an exception is ended all the same where its writers still live, so that nothing that
    went through the server is lost.

    Raises CaptureError when the folder has no writer, two servers, another client, or a writer that failed; ServerGone
    when the writers die.
    """

    def __init__(self, url: str, folder: str | Path, store: StoreSpec | None, timeout_s: float):
        self.url, self.folder, self.store, self.timeout_s = url, CaptureFolder(folder), store, timeout_s
        self.waits, self.waited_s = 0, 0.0
        self._sent, self._looked, self._ended = 0, 0.0, False

    def __enter__(self) -> CaptureSession:
        self._lock = take_lock(self.folder.path / "client.lock")
        if self._lock is None:
            raise CaptureError(f"another client captures through {self.folder.path}; wait for it")
        try:
            self._begin()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, kind, *_failure) -> None:
        try:
            if kind is not None and not self._ended:
                self.end()
        except (CaptureError, ServerGone):
            pass  # the first error says more
        finally:
            self._lock.close()

    def announce(self, row_id: str, n: int, checksum: int, **facts) -> str:
        """Tells the writers of a row that will be sent, and returns the request id to send it with."""
        self._sent += 1
        rid = f"{re.sub(r'[^A-Za-z0-9_.-]', '_', row_id)[:80]}-{self.number}-{self._sent}"
        self.folder.announce(self.number, RowFacts(rid, row_id, n, checksum, **facts))
        return rid

    def look(self, at_once: bool = False) -> None:
        """Raises CaptureError or ServerGone when a writer failed or died; looks now and then only."""
        now = time.monotonic()
        if at_once or now - self._looked >= LOOK_S:
            self._looked = now
            self._check(self._statuses())

    def new_failures(self) -> list[RowFailure]:
        """Rows that the writers gave up since the last call."""
        return [failure for follower in self._failures for failure in follower.new()]

    def end(self) -> None:
        """Returns when every row that went through the server is durable, or among `new_failures`."""
        self._ended = True
        for status in self._order("end"):
            self.waits += status.waits
            self.waited_s += status.waited_s

    def _begin(self) -> None:
        found = self.folder.living()
        if not found:
            raise CaptureError(
                f"no server captures into {self.folder.path}; start one with this capture folder (its log says whether "
                "it found the plugin)"
            )
        if len({status.parent_pid for status in found}) > 1:
            raise CaptureError(
                f"several servers capture into {self.folder.path}; give every server a folder of its own"
            )
        last = self.folder.order()
        self.number = last.number + 1 if last else 1
        self._writers = {status.writer for status in found}
        self._failures = [Follower(self.folder.errors(self.number, name), RowFailure) for name in sorted(self._writers)]
        self._order("begin")
        self.folder.forget_before(self.number)

    def _order(self, command: str) -> list[Status]:
        """Gives an order and waits until every writer has answered."""
        last = self.folder.order()
        order = Order(last.number + 1 if last else 1, command, self.number, self.store if command == "begin" else None)
        self.folder.write_order(order)
        deadline = time.monotonic() + self.timeout_s
        while True:
            statuses = self._statuses()
            if all(status.answered >= order.number for status in statuses):
                self._check(statuses)
                return statuses
            if time.monotonic() > deadline:
                raise CaptureError(
                    f"the writers of {self.folder.path} did not answer {command!r} in {self.timeout_s:.0f} s"
                )
            time.sleep(POLL_S)

    def _statuses(self) -> list[Status]:
        """Of this session's writers; ServerGone when one of them died."""
        found = {status.writer: status for status in self.folder.living()}
        if not self._writers <= set(found):
            raise ServerGone(
                f"the server at {self.url} died during the capture; start it and run the capture again", self.url
            )
        return [found[writer] for writer in sorted(self._writers)]

    def _check(self, statuses: list[Status]) -> None:
        for status in statuses:
            if status.state == "failed":
                raise CaptureError(f"capture stopped inside the server: {status.error}")
