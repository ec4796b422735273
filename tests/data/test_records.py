import gzip
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.data import records
from eagle3lab.data.records import JsonArray, JsonLines, RecordsError
from eagle3lab.data.tables import open_records

ROWS = [
    {"id": "a_0", "text": "x" * 50},
    {"id": "b", "text": 'quote " and \\ and ü 日本'},
    {"n": [1, {"m": None}]},
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


class Trickle(io.BytesIO):
    """A stream that gives at most 3 bytes at a time and remembers the largest request."""

    largest = 0

    def read(self, size=-1):
        self.largest = max(self.largest, size)
        return super().read(3)


@settings(max_examples=400, deadline=None)
@given(st.lists(json_values, max_size=6), st.sampled_from([None, 1]), st.booleans())
def test_every_array_is_read_as_json_reads_it_however_it_arrives(rows, indent, ascii_only):
    data = json.dumps(rows, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return
    reader = JsonArray(Trickle(data))
    assert list(reader) == rows
    assert reader.lost == []


@given(st.integers(min_value=1, max_value=10_000))
def test_a_file_cut_anywhere_yields_its_whole_records_and_tells_the_rest(cut):
    data = json.dumps(ROWS, ensure_ascii=False).encode()
    cut = 1 + cut % (len(data) - 1)
    reader = JsonArray(Trickle(data[:cut]))
    rows = list(reader)
    assert rows == ROWS[: len(rows)]
    (lost,) = reader.lost
    assert lost.record == len(rows)
    assert lost.byte + lost.dropped_bytes <= cut
    # what was whole is whole: the next record does not end before the cut
    if len(rows) < len(ROWS):
        assert len(json.dumps(ROWS[: len(rows) + 1], ensure_ascii=False).encode()) - 1 > cut - 1


def test_a_cut_in_the_middle_of_a_string_is_located():
    data = b'[{"id": 1}, {"id": 2, "text": "unfini'
    reader = JsonArray(io.BytesIO(data), "cut.json")
    assert list(reader) == [{"id": 1}]
    (lost,) = reader.lost
    assert (lost.record, lost.byte, lost.dropped_bytes) == (1, 12, len(data) - 12)
    assert "Unterminated string" in lost.reason


def test_a_cut_inside_a_multibyte_character_loses_only_that_record():
    data = '[{"a": 1}, {"b": "日'.encode()[:-1]
    reader = JsonArray(io.BytesIO(data))
    assert list(reader) == [{"a": 1}]
    assert len(reader.lost) == 1


@pytest.mark.parametrize(
    ("data", "rows", "lost"),
    [
        (b"[1, 23", [1], 1),
        (b"[0, 1.", [0], 1),
        (b"[-0.5, -", [-0.5], 1),
        (b'["a", "b"', ["a", "b"], 1),
        (b"[[1], [2]  ", [[1], [2]], 1),
        (b"[0.0, 1e9]", [0.0, 1e9], 0),
        (b"[true, fal", [True], 1),
        (b"[]", [], 0),
        (b"[", [], 1),
    ],
)
def test_a_value_counts_only_when_it_shows_that_it_is_whole(data, rows, lost):
    reader = JsonArray(Trickle(data))
    assert list(reader) == rows
    assert len(reader.lost) == lost


def test_a_missing_comma_is_an_error():
    with pytest.raises(RecordsError, match="Expecting ',' delimiter"):
        list(JsonArray(io.BytesIO(b'[{"a": 1} {"b": "and a good deal of text"}]')))


def test_a_malformed_record_in_the_middle_is_an_error_with_its_place():
    data = b'[{"id": 1}, {"id": oops, "text": "much more text behind it"}, {"id": 3}]'
    reader = iter(JsonArray(io.BytesIO(data), "bad.json"))
    assert next(reader) == {"id": 1}
    with pytest.raises(RecordsError, match=r"bad.json: record 1 \(byte 12\) is malformed"):
        next(reader)


def test_bytes_that_are_not_utf8_are_an_error():
    with pytest.raises(RecordsError, match="not UTF-8"):
        list(JsonArray(io.BytesIO(b'[{"a": "\xff\xfe"}]')))


def test_something_that_is_no_array_is_an_error():
    with pytest.raises(RecordsError, match="not a JSON array"):
        list(JsonArray(io.BytesIO(b"<html>"), "page"))


def test_memory_is_bounded_by_the_record_not_by_the_file(monkeypatch):
    monkeypatch.setattr(records, "_CHUNK_BYTES", 256)
    data = json.dumps([{"i": i, "t": "x" * 100} for i in range(500)]).encode()
    stream = io.BytesIO(data)
    reader = JsonArray(stream)
    longest = 0
    for _ in reader:
        longest = max(longest, len(reader._buffer))
    assert longest < 1024 < len(data)


def test_an_endless_record_is_refused(monkeypatch):
    monkeypatch.setattr(records, "_CHUNK_BYTES", 64)
    with pytest.raises(RecordsError, match="larger than"):
        list(JsonArray(io.BytesIO(b'["' + b"x" * 10_000), max_record_bytes=1000))


def test_a_broken_line_costs_one_row_of_json_lines():
    reader = JsonLines(io.BytesIO(b'{"a": 1}\n\n{"b": \n{"c": 3}\n{"d": "cu'))
    assert list(reader) == [{"a": 1}, {"c": 3}]
    assert [(lost.record, lost.byte) for lost in reader.lost] == [(1, 10), (3, 26)]


def test_files_are_told_apart_by_their_first_byte(tmp_path):
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf\n [1, 2]")
    (tmp_path / "b.jsonl").write_bytes(b'{"x": 1}\n{"x": 2}\n')
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b'{"x": 3}\n'))
    found = []
    for name in ("a.json", "b.jsonl", "c.jsonl.gz"):
        with open_records(tmp_path / name) as reader:
            found.append(list(reader))
    assert found == [[1, 2], [{"x": 1}, {"x": 2}], [{"x": 3}]]
