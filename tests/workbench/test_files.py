"""Atomic files and JSON lines."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3lab.workbench.files import (
    append_jsonl,
    atomic_path,
    iter_jsonl,
    read_jsonl,
    sha256_file,
    write_json_atomic,
    write_text_atomic,
)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "a.txt"
    write_text_atomic(target, "old")
    with pytest.raises(RuntimeError), atomic_path(target) as temporary:
        assert temporary.parent == tmp_path and temporary.suffix == ".txt"
        temporary.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_json_refuses_nan_and_keeps_key_order(tmp_path):
    write_json_atomic(tmp_path / "a.json", {"b": 1, "a": "ä"})
    assert list(json.loads((tmp_path / "a.json").read_text())) == ["b", "a"]
    with pytest.raises(ValueError):
        write_json_atomic(tmp_path / "a.json", {"x": float("nan")})
    assert json.loads((tmp_path / "a.json").read_text())["b"] == 1


def test_sha256_of_a_file_is_that_of_its_bytes(tmp_path):
    data = bytes(range(256)) * 9000  # more than one chunk
    (tmp_path / "x").write_bytes(data)
    assert sha256_file(tmp_path / "x") == hashlib.sha256(data).hexdigest()


def test_partial_last_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_jsonl(path, {"a": 1})
    with path.open("a") as file:
        file.write('{"a": 2')
    with pytest.raises(ValueError, match=r"rows.jsonl, line 2: partial"):
        read_jsonl(path)
    with pytest.raises(ValueError, match="partial line"):
        append_jsonl(path, {"a": 3})
    assert read_jsonl(path, repair=True) == [{"a": 1}]
    append_jsonl(path, {"a": 3})
    assert read_jsonl(path) == [{"a": 1}, {"a": 3}]


def test_a_bad_line_in_the_middle_is_never_repaired(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a":\n{"a": 3}\n')
    with pytest.raises(ValueError, match="line 2"):
        read_jsonl(path, repair=True)


def test_a_reader_leaves_what_a_writer_adds_meanwhile_alone(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_jsonl(path, {"a": 1})
    rows = iter_jsonl(path)
    assert next(rows) == {"a": 1}
    append_jsonl(path, {"a": 2})
    list(rows)
    assert read_jsonl(path) == [{"a": 1}, {"a": 2}]
    with path.open("a") as file:
        file.write('{"a": 3')
    assert list(iter_jsonl(path, partial="skip")) == [{"a": 1}, {"a": 2}]
    assert path.read_text().endswith('{"a": 3')


@given(
    rows=st.lists(st.dictionaries(st.text(), st.integers() | st.text()), min_size=1),
    cut=st.integers(0, 10_000),
)
def test_any_cut_loses_only_the_last_row(tmp_path_factory, rows, cut):
    path = tmp_path_factory.mktemp("cut") / "rows.jsonl"
    for row in rows:
        append_jsonl(path, row)
    data = path.read_bytes()
    kept = data[: cut % (len(data) + 1)]
    path.write_bytes(kept)
    assert read_jsonl(path, repair=True) == rows[: kept.count(b"\n")]
