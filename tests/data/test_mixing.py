"""Rows of several sets mixed: read, told apart, shuffled, weighted."""

import json
import subprocess
from collections import Counter
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.data import token_lines
from eagle3lab.data.corpus import CorpusError
from eagle3lab.data.mixing import Shuffled, WithoutRepeats, parse_weights, quotas
from eagle3lab.data.text import row_stem
from eagle3lab.data.token_lines import read_token_lines
from eagle3lab.data.token_rows import batch_of, rows_of


def _row(set_name, n, split="train", **more):
    row = {"id": f"{set_name}-{n:016x}", "set": set_name, "split": split, "origin": "target"}
    return row | {"input_ids": [1, n + 2, 7], "loss_spans": [[1, 3]], "finish_reason": "stop"} | more


def _ids(rows):
    return [row["id"] for row in rows]


def _lines(tmp_path, text, *columns):
    (tmp_path / "x.jsonl").write_text(text)
    return list(read_token_lines(tmp_path / "x.jsonl", columns, ["input_ids"]))


def _plain(rows):
    return [{name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in row.items()} for row in rows]


values = st.one_of(st.none(), st.integers(), st.floats(), st.text(max_size=5), st.just("\ud800"),
                   st.lists(st.integers(0, 9), max_size=3),
                   st.dictionaries(st.sampled_from(["input_ids", "x"]), st.lists(st.integers(0, 9))))  # fmt: skip
lines = st.dictionaries(st.sampled_from(["text", "meta", '"input_ids":', "x"]), values, max_size=4)
ids = st.lists(st.one_of(st.integers(0, 200_000), st.just(2**31 - 1)), max_size=5)


@settings(deadline=None)
@given(
    rows=st.lists(st.tuples(lines, st.one_of(st.none(), ids), st.booleans()), max_size=6),
    separators=st.sampled_from([(", ", ": "), (",", ":"), (" ,\t", " :\r")]),
    block=st.sampled_from([1, 40, 2**20]),
)
def test_rows_are_read_as_json_reads_them_wherever_the_name_stands(tmp_path_factory, rows, separators, block):
    rows = [line | ({} if found is None and absent else {"input_ids": found}) for line, found, absent in rows]
    text = "".join(json.dumps(row, separators=separators) + "\n" for row in rows)
    with patch.object(token_lines, "BLOCK_BYTES", block):
        found = _lines(tmp_path_factory.mktemp("lines"), text)
    assert all(row["input_ids"].dtype == np.int32 for row in found if "input_ids" in row)
    assert _plain(found) == [{} if row.get("input_ids") is None else {"input_ids": row["input_ids"]} for row in rows]


def test_a_line_that_only_python_reads_as_json_is_read(tmp_path):
    text = '{"id": "a", "x": NaN, "input_ids": [1, 2]}\n{"id": "\\ud800", "input_ids": []}\n{"id": "c"}\n'
    rows = [{"id": "a", "input_ids": [1, 2]}, {"id": "\ud800", "input_ids": []}, {"id": "c"}]
    assert _plain(_lines(tmp_path, text, "id")) == rows


@pytest.mark.parametrize("text", ["1,,2", "1 2", "1,", ",", "1.5", "1.0", "a", "[1", "99999999999", "true", "1e3",
                                  "5, x, 5", "null", '"7"', "[7]"])  # fmt: skip
def test_what_is_no_list_of_ids_is_refused(tmp_path, text):
    with pytest.raises(CorpusError, match="x.jsonl, line 2: not a row of token ids"):
        _lines(tmp_path, '{"input_ids": [1]}\n{"input_ids": [' + text + "]}\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"id": "a", "input_ids": [1]}\n{"id": "b", "inp', "line 2: partial last line"),
        ('{"id": "a", "input_ids": [1]}\n{"id": "b", "input_ids": [1]}', "line 2: partial last line"),
        ('{"id": "a", "input_ids": [1]}\n{"id": \n', "line 2: not a row"),
        ('{"id": "a", "input_ids": [1]}\n\n', "line 2: not a row"),
        ('{"id": "a", "input_ids": 5}\n', "line 1: not a row"),
        ('{"id": "a", "input_ids": [1], "x": {"input_ids": [2.5]}, "input_ids": [2.5]}\n', "line 1: not a row"),
        ("[1]\n", "line 1: not a row"),
    ],
)
def test_lines_that_are_no_rows_are_named(tmp_path, text, message):
    with pytest.raises(CorpusError, match=f"x.jsonl, {message}"):
        _lines(tmp_path, text, "id")


def test_a_large_file_is_read_by_processes_beside_with_the_same_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(token_lines, "APART_BYTES", 1)
    rows = [_row("a", n, input_ids=list(range(n, n + 40_000)), x=[[n]]) for n in range(12)]  # 3 MB: two blocks
    rows[5]["id"] = "\ud800"
    text = "".join(json.dumps(row) + "\n" for row in rows)
    columns = ("id", "set", "split", "origin", "loss_spans", "finish_reason", "gone")
    found = _plain(_lines(tmp_path, text, *columns))
    assert found == [{name: value for name, value in row.items() if name != "x"} for row in rows]
    for bad, message in [('{"input_ids": [1.5]}\n', "line 13: not a row"), ('{"input', "line 13: partial last line")]:
        with pytest.raises(CorpusError, match=f"x.jsonl, {message}"):
            _lines(tmp_path, text + bad)


def test_a_process_that_is_killed_while_it_reads_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(token_lines, "APART_BYTES", 1)
    (tmp_path / "x.jsonl").write_text('{"input_ids": [1]}\n' * 400_000)
    processes, start = [], subprocess.Popen

    def kept(*args, **options):
        processes.append(start(*args, **options))
        return processes[-1]

    monkeypatch.setattr(token_lines.subprocess, "Popen", kept)
    rows = read_token_lines(tmp_path / "x.jsonl", [], ["input_ids"])
    next(rows)
    processes[1].kill()
    with pytest.raises(CorpusError, match="x.jsonl: a process that read it was ended"):
        list(rows)
    assert all(process.poll() is not None for process in processes)


def test_rows_survive_their_arrow_batch():
    rows = [_row("a", n, input_ids=list(range(n)), loss_spans=[[0, 1]] * n) for n in range(5)]
    back = [row | {"input_ids": row["input_ids"].tolist()} for row in rows_of(batch_of(rows).slice(1, 3))]
    assert back == rows[1:4]
    assert list(rows_of(batch_of([]))) == []


def test_row_ids_tell_their_conversation_and_their_text():
    key = "0123456789abcdef"
    assert row_stem(f"a-b-{key}") == (f"a-b-{key}", key)
    assert row_stem(f"a-{key}-t12") == row_stem(f"a-{key}-reference") == (f"a-{key}", key)
    assert row_stem("mine-7") == ("mine-7", None)


def test_repeats_of_another_sets_text_and_of_tokens_are_left_out():
    rows = [
        _row("a", 1),
        _row("a", 1, id="a-0000000000000001-reference", input_ids=[1, 50, 7]),  # of the same conversation
        _row("b", 1, input_ids=[1, 60, 7]),  # the same text in another set
        _row("b", 2),
        _row("c", 3, input_ids=[1, 4, 7]),  # the same tokens as b's
        _row("c", 4, id="mine-7", input_ids=[1, 70, 7]),
    ]
    single = WithoutRepeats(rows)
    assert _ids(single) == [rows[0]["id"], rows[1]["id"], rows[3]["id"], "mine-7"]
    assert single.skipped == {"same_text": 1, "same_tokens": 1}
    assert single.counts == {"input": 6, "rows": 4}


@settings(deadline=None, max_examples=40)
@given(n=st.integers(0, 200), buckets=st.integers(1, 70), seed=st.integers(0, 3), random=st.randoms())
def test_the_order_depends_on_ids_and_seed_alone(tmp_path_factory, n, buckets, seed, random):
    folder = tmp_path_factory.mktemp("shuffle")
    rows = [_row("a", i) for i in range(n)]
    order = _ids(Shuffled(rows, seed, folder))
    random.shuffle(rows)
    again = [row | {"input_ids": row["input_ids"].tolist()} for row in Shuffled(rows, seed, folder, buckets=buckets)]
    assert _ids(again) == order
    assert sorted(again, key=lambda row: row["id"]) == sorted(rows, key=lambda row: row["id"])
    assert list(folder.iterdir()) == []


def test_a_shuffle_mixes_and_another_seed_mixes_otherwise(tmp_path):
    rows = [_row("a", i) for i in range(1000)]
    places = {seed: _ids(Shuffled(rows, seed, tmp_path)) for seed in (0, 1)}
    assert places[0] != places[1]
    first_half = sum(row["id"] in places[0][:500] for row in rows[:500])
    assert 190 < first_half < 310  # 250 expected, standard error 8


@given(
    counts=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 10_000), min_size=1),
    weights=st.lists(st.floats(0.01, 100), min_size=4, max_size=4),
)
def test_quotas_are_in_proportion_and_use_up_the_scarcest_set(counts, weights):
    weights = dict(zip(counts, weights, strict=False))
    found = quotas(counts, weights)
    assert all(found[name] <= counts[name] for name in counts)
    assert any(found[name] == counts[name] for name in counts)
    scale = max(found[name] / weights[name] for name in counts)
    assert all(found[name] <= scale * weights[name] + 1e-6 < found[name] + 1 + 1e-6 for name in counts)


def test_weights_set_the_mixture_of_the_training_rows(tmp_path):
    rows = [_row("a", i) for i in range(300)] + [_row("b", i) for i in range(1000, 1100)]
    rows += [_row("b", i, "heldout") for i in range(2000, 2010)]
    shuffled = Shuffled(rows, 0, tmp_path, {"a": 1, "b": 2})
    kept = list(shuffled)
    assert Counter((row["set"], row["split"]) for row in kept) == {
        ("a", "train"): 50, ("b", "train"): 100, ("b", "heldout"): 10
    }  # fmt: skip
    assert shuffled.skipped == {"weight": 250} and shuffled.counts == {"input": 410, "rows": 160}
    more = {row["id"] for row in Shuffled(rows, 0, tmp_path, {"a": 2, "b": 2})}
    assert {row["id"] for row in kept} <= more  # a smaller share is a part of a larger one
    none = list(Shuffled(rows, 0, tmp_path, {"a": 0, "b": 1}))
    assert Counter(row["set"] for row in none) == {"b": 110}


@pytest.mark.parametrize(
    ("weights", "message"),
    [({"a": 1}, "unmatched: b"), ({"a": 1, "b": 1, "c": 1}, "unmatched: c"), ({"a": -1, "b": 1}, "0 or more"),
     ({"a": 0, "b": 0}, "not all 0"), ({"a": float("nan"), "b": 1}, "0 or more")],
)  # fmt: skip
def test_impossible_weights_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        quotas({"a": 3, "b": 4}, weights)


def test_weights_are_written_as_pairs():
    assert parse_weights(["a=1", " b = 2.5"]) == {"a": 1.0, "b": 2.5}
    assert parse_weights([]) is None
    for bad in (["a"], ["a=x"], ["a=1", "a=2"]):
        with pytest.raises(ValueError, match="SET=WEIGHT"):
            parse_weights(bad)
