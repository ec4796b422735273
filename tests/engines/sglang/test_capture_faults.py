"""Capture when something breaks that a real server cannot be made to break: disks, clients, servers, forward passes."""

import errno
import threading

import pytest

from eagle3lab.engines.servers.errors import ServerGone
from eagle3lab.engines.sglang import capture_writer
from eagle3lab.engines.sglang.capture import capture_to_store, durable_ids
from eagle3lab.engines.sglang.capture_files import CaptureFolder
from eagle3lab.engines.sglang.capture_session import CaptureError
from eagle3lab.features import store as store_module
from tests.engines.capture_target import Target, check_store, corpus, spec
from tests.engines.fake_server import Status


def test_a_full_disk_stops_the_capture_with_its_text_and_leaves_nothing_half_written(tmp_path, monkeypatch):
    rows, write, room = corpus(), store_module.write_blocks, [2]

    def until_full(path, blocks):
        if not room[0]:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        room[0] -= 1
        write(path, blocks)

    monkeypatch.setattr(store_module, "write_blocks", until_full)
    with Target(tmp_path / "capture") as server:
        with pytest.raises(CaptureError, match="stopped inside the server: the disk of .*/store is full.*make room"):
            capture_to_store(server.url, tmp_path / "capture", rows, spec(tmp_path), concurrency=1)
        shards = sorted((tmp_path / "store").glob("*shard*"))
        assert len(shards) == 2 and not [path for path in shards if path.name.startswith(".")]
        kept = durable_ids(tmp_path / "store")
        assert 0 < len(kept) < len(rows)

        room[0] = 1000  # the same server goes on when there is room
        asked = len(server.bodies)
        report = capture_to_store(server.url, tmp_path / "capture", rows, spec(tmp_path))
    assert report.skipped == len(kept) and len(server.bodies) - asked == len(rows) - len(kept)
    check_store(tmp_path / "store", rows)


def test_a_failure_is_told_even_when_the_status_cannot_be_written_at_first(tmp_path, monkeypatch):
    write, refusals = CaptureFolder.write_status, [3]

    def write_status(folder, status):
        if status.state == "failed" and refusals[0]:
            refusals[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        write(folder, status)

    def full(path, blocks):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(CaptureFolder, "write_status", write_status)
    monkeypatch.setattr(store_module, "write_blocks", full)
    with Target(tmp_path / "capture") as server:
        with pytest.raises(CaptureError, match="is full"):
            capture_to_store(server.url, tmp_path / "capture", corpus(), spec(tmp_path))
    assert refusals == [0]


def test_the_forward_pass_waits_while_the_queue_is_full_and_that_is_counted(tmp_path, monkeypatch):
    write, writing, go_on = store_module.write_blocks, threading.Event(), threading.Event()

    def slow(path, blocks):
        writing.set()
        go_on.wait()
        write(path, blocks)

    monkeypatch.setattr(store_module, "write_blocks", slow)
    reports = []
    with Target(tmp_path / "capture", queue_passes=1) as server:
        client = threading.Thread(
            target=lambda: reports.append(
                capture_to_store(server.url, tmp_path / "capture", corpus(), spec(tmp_path, shard_tokens=1))
            )
        )
        client.start()
        assert writing.wait(30)
        while not server.writer._queue.full():
            pass
        client.join(0.3)
        assert len(reports) == 0 and server.writer.status.rows < len(corpus())
        go_on.set()
        client.join(60)
    assert reports[0].waits > 0 and reports[0].rows == len(corpus())
    check_store(tmp_path / "store", corpus())


def test_a_server_that_dies_is_noticed_and_the_next_one_captures_the_rest(tmp_path):
    rows = corpus()
    server = Target(tmp_path / "capture")

    def die(body, start, item):
        if len(server.bodies) == 8:
            server.writer._stop.set()
            server.writer._lock.close()  # what the kernel does for a killed process
            return Status(503, "gone")
        return item

    server.spoil = die
    with server, pytest.raises(ServerGone, match="died during the capture; start it and run the capture again"):
        capture_to_store(server.url, tmp_path / "capture", rows, spec(tmp_path), concurrency=1)
    kept = durable_ids(tmp_path / "store")
    assert 0 < len(kept) < 8
    with Target(tmp_path / "capture", pid=2) as server:
        report = capture_to_store(server.url, tmp_path / "capture", rows, spec(tmp_path))
        assert report.skipped == len(kept) and len(server.bodies) == len(rows) - len(kept)
    check_store(tmp_path / "store", rows)


def test_an_interrupted_client_leaves_what_went_through_the_server_durable(tmp_path):
    rows = corpus()

    def interrupt(report):
        if report.rows == 4:
            raise KeyboardInterrupt

    with Target(tmp_path / "capture") as server:
        with pytest.raises(KeyboardInterrupt):
            capture_to_store(
                server.url,
                tmp_path / "capture",
                rows,
                spec(tmp_path, shard_tokens=10**6),
                concurrency=1,
                on_row=interrupt,
            )
        assert {row.id for row in rows[:4]} <= durable_ids(tmp_path / "store")
        capture_to_store(server.url, tmp_path / "capture", rows, spec(tmp_path))
    check_store(tmp_path / "store", rows)


def test_what_a_killed_client_left_in_the_server_is_kept_by_the_next_session(tmp_path):
    rows, folder = corpus(), CaptureFolder(tmp_path / "capture")
    with Target(tmp_path / "capture") as server:
        # the first client's last deeds: a session begun, rows sent, no end
        with pytest.raises(KeyboardInterrupt):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("eagle3lab.engines.sglang.capture_session.CaptureSession.end", lambda self: None)
                capture_to_store(
                    server.url, tmp_path / "capture", rows[:6], spec(tmp_path, shard_tokens=10**6), concurrency=1,
                    on_row=lambda report: (_ for _ in ()).throw(KeyboardInterrupt) if report.rows == 6 else None,
                )  # fmt: skip
        assert folder.living()[0].state == "capturing"
        assert not durable_ids(tmp_path / "store")
        report = capture_to_store(server.url, tmp_path / "capture", rows, spec(tmp_path))
    assert (report.skipped, report.rows) == (6, 6)
    check_store(tmp_path / "store", rows)


def test_an_exception_in_a_forward_pass_ends_the_session_not_the_server(tmp_path, monkeypatch):
    def broken(*args):
        raise RuntimeError("CUDA error")

    with Target(tmp_path / "capture") as server:
        with monkeypatch.context() as patch:
            patch.setattr(capture_writer, "split_pass", broken)
            with pytest.raises(CaptureError, match="RuntimeError: CUDA error"):
                capture_to_store(server.url, tmp_path / "capture", corpus(3), spec(tmp_path))
        capture_to_store(server.url, tmp_path / "capture", corpus(3), spec(tmp_path))
    check_store(tmp_path / "store", corpus(3))
