"""The files through which a client and the plugin inside a server talk to each other.

    control.json                     the client's last order: begin or end a session
    rows-<session>.jsonl             RowFacts: what the client says of each row before it sends it
    status-<writer>.json             Status of one writer (a server has one per data-parallel rank)
    status-<writer>.lock             locked as long as that writer's process lives
    errors-<session>-<writer>.jsonl  RowFailure: rows that could not be captured, and why
    states-<session>/<rid>.safetensors   the states of one row, in sessions without a store
    client.lock                      locked as long as a client works in the folder

The folder must be on a disk that client and server share. The client writes a row's facts before it sends the
row; a writer answers an order by raising `Status.answered` to the order's number.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Generic, Literal, TypeVar

from eagle3lab.workbench.files import append_jsonl, read_json, write_json_atomic

T = TypeVar("T")
FOLDER_VARIABLE = "EAGLE3LAB_CAPTURE_FOLDER"


@dataclass(frozen=True)
class StoreSpec:
    """The feature store that a session fills: the arguments of `FeatureWriter`."""

    folder: str
    fingerprint: dict
    aux_layers: list[int]
    hidden_size: int
    shard_tokens: int = 65536
    codec: str = "bf16"


@dataclass(frozen=True)
class Order:
    """`number` grows with every order; `session` is the number of the order that began the session. With a
    `store` rows go there, without one every row becomes a file of its own."""

    number: int
    command: Literal["begin", "end"]
    session: int
    store: StoreSpec | None = None


@dataclass(frozen=True)
class RowFacts:
    """What a writer must know of a row: its name in the server (`rid`) and in the store (`id`), its length,
    `assemble.ids_checksum` of its tokens, and what the store keeps besides the states."""

    rid: str
    id: str
    n: int
    checksum: int
    loss_spans: list[list[int]] = field(default_factory=list)
    split: str = "train"
    set: str = ""


@dataclass(frozen=True)
class RowFailure:
    """A row that a writer could not capture; `kind` is the name of the exception."""

    rid: str
    id: str
    kind: str
    error: str


@dataclass
class Status:
    """What a writer has done in its last session. `waits` counts forward passes that had to wait for the
    writer, `waited_s` their seconds; `foreign` counts pieces of requests that nobody announced."""

    writer: str
    parent_pid: int
    answered: int = 0
    state: Literal["idle", "capturing", "failed"] = "idle"
    error: str | None = None
    session: int = 0
    rows: int = 0
    tokens: int = 0
    row_errors: int = 0
    foreign: int = 0
    waits: int = 0
    waited_s: float = 0.0


class CaptureFolder:
    """Names, readers and writers of the files above."""

    def __init__(self, folder: str | Path):
        self.path = Path(folder).absolute()

    @property
    def control(self) -> Path:
        return self.path / "control.json"

    def rows(self, session: int) -> Path:
        return self.path / f"rows-{session}.jsonl"

    def status(self, writer: str) -> Path:
        return self.path / f"status-{writer}.json"

    def lock(self, writer: str) -> Path:
        return self.path / f"status-{writer}.lock"

    def errors(self, session: int, writer: str) -> Path:
        return self.path / f"errors-{session}-{writer}.jsonl"

    def states(self, session: int) -> Path:
        return self.path / f"states-{session}"

    def order(self) -> Order | None:
        """The last order, None where there never was one."""
        if not self.control.exists():
            return None
        raw = read_json(self.control)
        return Order(**{**raw, "store": StoreSpec(**raw["store"]) if raw["store"] else None})

    def write_order(self, order: Order) -> None:
        write_json_atomic(self.control, asdict(order))

    def announce(self, session: int, facts: RowFacts) -> None:
        """Appends a row's facts; call it before the row is sent."""
        append_jsonl(self.rows(session), asdict(facts))

    def row_failed(self, session: int, writer: str, failure: RowFailure) -> None:
        append_jsonl(self.errors(session, writer), asdict(failure))

    def write_status(self, status: Status) -> None:
        write_json_atomic(self.status(status.writer), asdict(status))

    def forget_before(self, session: int) -> None:
        """Removes what earlier sessions left."""
        for path in self.path.glob("*-*"):
            kind, number = path.name.split(".")[0].split("-")[:2]
            if kind in ("rows", "errors", "states") and int(number) < session:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def living(self) -> list[Status]:
        """The status of every writer whose process lives; what dead ones left is removed."""
        found = []
        for path in sorted(self.path.glob("status-*.json")):
            writer = path.stem.removeprefix("status-")
            dead = take_lock(self.lock(writer))
            if dead is None:
                found.append(Status(**read_json(path)))
                continue
            path.unlink()
            self.lock(writer).unlink()
            dead.close()
        return found


class Follower(Generic[T]):
    """Reads the lines that another process appends to a JSON-lines file, as they come."""

    def __init__(self, path: Path, kind: Callable[..., T]):
        self._path, self._kind, self._offset = path, kind, 0

    def new(self) -> list[T]:
        """What was appended since the last call; a line that is not whole yet comes with a later call."""
        if not self._path.exists():
            return []
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [self._kind(**json.loads(line)) for line in whole.splitlines()]


def take_lock(path: Path) -> IO | None:
    """Locks the file (made when missing) until the returned file is closed or its process dies; None when it
    is locked already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "a", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def new_writer_name() -> str:
    """A name no other writer has had, good for a part of a feature store: process id and random letters."""
    return f"{os.getpid()}_{os.urandom(4).hex()}"
