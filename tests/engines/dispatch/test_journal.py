"""The journal: whole lines, one process, one setting, nothing twice."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.engines.base import Completion
from eagle3lab.engines.dispatch import journal as module
from eagle3lab.engines.dispatch.journal import Journal, JournalError, read_answers, read_set_aside

ROOT = Path(__file__).parents[3]
SETTINGS = {"target": "t", "temperature": 0.0}


def completion(key, tokens=(4, 5), reason="stop"):
    return Completion(key, [1, 2], list(tokens), reason, 1.23456)


def test_a_finished_row_is_one_line_that_says_everything(tmp_path):
    with Journal(tmp_path, SETTINGS) as journal:
        journal.add("set", completion("a"), "http://x")
    assert json.loads((tmp_path / "completions.jsonl").read_text()) == {
        "id": "a", "set": "set", "prompt_ids": [1, 2], "output_ids": [4, 5], "finish_reason": "stop",
        "seconds": 1.235, "server": "http://x",
    }  # fmt: skip


def test_what_was_settled_is_known_when_it_is_opened_again(tmp_path):
    with Journal(tmp_path, SETTINGS) as journal:
        journal.add("set", completion("a", range(5), "length"), "s")
        journal.put_aside("b", "set", "refused", "400", 1, "s")
        journal.put_aside("c", "set", "refused", "400", 1, "s")
        journal.put_aside("c", "set", "timeout", "again", 3, "s")
        journal.put_aside("d", "set", "failed", "500", 3, "s")
        journal.add("set", completion("d"), "s")
    with Journal(tmp_path, SETTINGS) as journal:
        assert journal.done == {"a": (5, "length"), "d": (2, "stop")}
        assert journal.set_aside == {"b": "refused", "c": "timeout"}
    assert [(row["id"], row["reason"]) for row in read_set_aside(tmp_path)] == [("b", "400"), ("c", "again")]
    assert read_set_aside(tmp_path / "nothing") == []


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(0, 10_000), rows=st.integers(1, 6))
def test_cut_anywhere_it_keeps_the_whole_lines(tmp_path_factory, cut, rows):
    folder = tmp_path_factory.mktemp("journal")
    with Journal(folder, SETTINGS) as journal:
        for i in range(rows):
            journal.add("set", completion(f"row-{i} ü"), "s")
    path = folder / "completions.jsonl"
    data = path.read_bytes()[: cut % (path.stat().st_size + 1)]
    path.write_bytes(data)
    with Journal(folder, SETTINGS) as journal:
        assert list(journal.done) == [f"row-{i} ü" for i in range(data.count(b"\n"))]
        journal.add("set", completion("new"), "s")
    assert [row["id"] for row in read_answers(folder)][-1] == "new"


def test_readers_leave_a_line_that_is_being_written_alone(tmp_path):
    with Journal(tmp_path, SETTINGS) as journal:
        journal.add("set", completion("a"), "s")
        with open(tmp_path / "completions.jsonl", "ab") as file:
            file.write(b'{"id": "b", "outp')
        size = (tmp_path / "completions.jsonl").stat().st_size
        assert [row["id"] for row in read_answers(tmp_path)] == ["a"]
        assert (tmp_path / "completions.jsonl").stat().st_size == size


def test_a_row_that_is_there_twice_is_named(tmp_path):
    with Journal(tmp_path, SETTINGS) as journal:
        journal.add("set", completion("a"), "s")
        journal.add("set", completion("b"), "s")
        journal.add("set", completion("a"), "s")
    with pytest.raises(JournalError, match="line 3: row 'a' is there twice"):
        Journal(tmp_path, SETTINGS)
    with pytest.raises(JournalError):  # and it is not held locked by the one that failed
        Journal(tmp_path, SETTINGS)


def test_a_broken_line_is_named_with_the_way_out(tmp_path):
    with Journal(tmp_path, SETTINGS) as journal:
        journal.add("set", completion("a"), "s")
    path = tmp_path / "completions.jsonl"
    with open(path, "ab") as file:
        file.write(bytes(50) + b"\n")
    with pytest.raises(JournalError, match=r"completions.jsonl, line 2: not JSON.*cut the file before that line"):
        Journal(tmp_path, SETTINGS)
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    with Journal(tmp_path, SETTINGS) as journal:
        assert list(journal.done) == ["a"]


def test_other_settings_are_refused_and_new_ones_added(tmp_path):
    Journal(tmp_path, SETTINGS).close()
    Journal(tmp_path, {"target": "t", "max_tokens of b": 5}).close()
    with pytest.raises(JournalError, match="max_tokens of b=5, now it is 6"):
        Journal(tmp_path, {**SETTINGS, "max_tokens of b": 6})
    with pytest.raises(JournalError, match="temperature=0.0, now it is 0.7"):
        Journal(tmp_path, {"temperature": 0.7})


def test_two_processes_cannot_write_it(tmp_path):
    script = (
        "import sys; from eagle3lab.engines.dispatch.journal import Journal\n"
        "j = Journal(sys.argv[1], {}); print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    other = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(JournalError, match="another process"):
            Journal(tmp_path, {})
    finally:
        other.kill()
        other.communicate()
    Journal(tmp_path, {}).close()  # a killed process holds nothing


def test_it_is_forced_to_disk_by_rows_or_by_time(tmp_path, monkeypatch):
    synced, clock = [], [100.0]
    monkeypatch.setattr(module.os, "fsync", lambda handle: synced.append(handle))
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    with Journal(tmp_path, SETTINGS) as journal:
        synced.clear()
        assert not journal.due()
        for i in range(module.SYNC_ROWS - 1):
            journal.add("set", completion(str(i)), "s")
        assert not journal.due()
        journal.add("set", completion("last"), "s")
        assert journal.due()
        journal.sync()
        assert len(synced) == 2 and not journal.due()
        clock[0] += module.SYNC_SECONDS
        assert not journal.due()  # nothing new
        journal.put_aside("x", "set", "failed", "500", 1, "s")
        assert journal.due()
    assert len(synced) == 4  # closing forces it, too
