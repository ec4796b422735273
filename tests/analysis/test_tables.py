"""Readable numbers and tables."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from eagle3lab.analysis import tables
from eagle3lab.analysis.accept import AcceptSetting, PromptCycles, summarise
from eagle3lab.analysis.attribution import Walked, attribute, verifications
from eagle3lab.analysis.bench_row import BenchRow
from eagle3lab.analysis.doctor import Check
from eagle3lab.analysis.verdict import Checked


@pytest.fixture
def waterfall():
    """Four verifications of a chain of 3 along eleven tokens, of which x6 has no draft id: 2, 0, 1 and 1 accepted."""
    known_V = np.arange(12) != 11
    answer = Walked("a", "chat", 2, np.array([0, 1, 2, 3, 4, 5, 11, 7, 8, 9, 10]), (2, 0, 1, 1))
    return attribute(verifications([answer], 3, known_V))


@pytest.mark.parametrize(
    ("n", "text"), [(512, "512 B"), (57344, "56.0 KiB"), (3 * 2**30, "3.0 GiB"), (9.18 * 2**40, "9.2 TiB")]
)
def test_bytes(n, text):
    assert tables.human_bytes(n) == text


@pytest.mark.parametrize(("hours", "text"), [(0.01, "36 s"), (0.5, "30 min"), (55.2, "55.2 h")])
def test_hours(hours, text):
    assert tables.human_hours(hours) == text


def test_rounded_leaves_the_original_alone():
    table = pd.DataFrame({"a": [1.23456], "b": [7], "c": ["x"]})
    assert tables.rounded(table).loc[0, "a"] == 1.23
    assert tables.rounded(table, {"a": 4}).loc[0, "a"] == 1.2346
    assert table.loc[0, "a"] == 1.23456


def test_a_legible_table_shows_text_whole_and_harmless():
    long = "remedy " * 30
    table = pd.DataFrame({"check": ["<script>x</script>"], "remedy": [long], "n": [1.23456]})
    for one in (table, table.set_index("check")):
        page = tables.legible(one).to_html()
        assert "<script>" not in page and "&lt;script&gt;x&lt;/script&gt;" in page
        assert long in page and "1.235" in page and ">check</th>" in page
        assert "row_heading" not in page  # no numbers of rows


def test_a_legible_table_keeps_a_named_index_of_numbers_and_numbers_on_the_right():
    table = pd.DataFrame({"draft position": [1, 2, 3], "share": [0.0, 0.5, 12.3456]}).set_index("draft position")
    page = tables.legible(table).to_html()
    assert re.findall(r">([^<>]+)</t[hd]>", page) == ["draft position", "share", "1", "0", "2", "0.5", "3", "12.346"]
    assert re.search(r"\.col1 \{\s*text-align: right;", page)


def test_checks_to_mend_come_first():
    rows = [
        Check("a", "1", "1", "ok"),
        Check("b", "1", "2", "warning", "w"),
        Check("c", "1", "2", "fault", "f"),
    ]
    table = tables.check_table(rows)
    assert list(table.index) == ["c", "b", "a"]
    assert list(table.columns) == ["found", "expected", "verdict", "remedy"]
    named = tables.check_table([*rows, Check("d", "", "", "fault", "f", "python -m eagle3lab run PROFILE")])
    assert named.loc["d", "command"] == "python -m eagle3lab run PROFILE" and named.loc["c", "command"] == ""


def test_bench_table():
    rows = [
        BenchRow("baseline", 0, 0, 0, 1, 90.0, 89.0, 91.5, None, 11.1, None, 1.0, 1.0, 1.0, 8, 3, 900, 0),
        BenchRow("chain 4", 4, 1, 5, 1, 82.3, 80.0, 84.0, 2.1, 25.5, 2.2965, 0.914, 0.9, 0.93, 8, 3, 900, 0),
    ]
    table = tables.bench_table(rows)
    assert table.loc["baseline", "accept_length"] == "-"
    assert table.loc["chain 4", "break_even"] == "2.30"
    assert table.loc["chain 4", "speedup"] == "0.91x"
    assert table.loc["chain 4", "range"] == "80.0 to 84.0"
    assert table.loc["chain 4", ["differing", "first token, ms"]].tolist() == ["0", "-"]
    warm = replace(rows[1], temperature=0.7, differing=None, concurrency=4, first_s=(0.1, 0.25, 1.0), errors=2)
    table = tables.bench_table([*rows, warm])
    assert list(table.index[1:]) == [("one stream", "chain 4"), ("4 streams, temperature 0.7", "chain 4")]
    row = table.iloc[2]
    assert (row["differing"], row["errors"]) == ("-", 2)
    assert row["first token, ms"] == "100 / 250 / 1000"


def test_a_condition_whose_speeds_carry_no_break_even_shows_none():
    def measured(setting, tau, at_least, streams, low=1.0):
        speeds = (90.0, 89.0, 91.5)
        return BenchRow(setting, 4, 1, 5, streams, *speeds, tau, 11.1, at_least, 1.0, low, 1.0, 8, 3, 900, 0)

    busy = [measured("baseline", None, None, 1), measured("chain 4", 2.1, 1.4, 1, low=0.7)]
    quiet = [measured("baseline", None, None, 8), measured("chain 4", 2.1, 2.3, 8, low=0.9)]
    below_one = [measured("baseline", None, None, 4), measured("chain 4", 1.1, 0.86, 4)]
    table = tables.bench_table([*busy, *quiet, *below_one])
    assert table["break_even"].tolist() == ["-", "not measurable", "-", "2.30", "-", "not measurable"]


def test_accept_table():
    setting = AcceptSetting("embedded", 2, 1, 3, 0.0, "humaneval")
    summary = summarise([PromptCycles("a", (2, 0)), PromptCycles("b", (1, 1))], setting)
    row = tables.accept_table([summary]).iloc[0]
    assert (row["accept_length"], row["set"], row["num_steps"], row["verifications"]) == (
        2.0,
        "humaneval",
        2,
        4,
    )


def test_the_waterfall_as_a_table_adds_up(waterfall):
    table = tables.loss_table(waterfall)
    tokens = table["tokens a verification"]
    assert list(table.index) == [
        "most possible", "draft vocabulary", "position 1", "position 2", "position 3", "end of answer", "accept length",
    ]  # fmt: skip
    assert tokens.tolist() == [4.0, -0.75, 0.0, -0.5, -0.25, -0.5, 2.0]
    assert tokens[:-1].sum() == tokens["accept length"]
    assert table.loc["position 2", "drafts lost"] == "2" and table.loc["most possible", "drafts lost"] == ""


def test_conditionals_as_a_table(waterfall):
    table = tables.conditional_table(waterfall)
    assert table.loc[1].tolist() == [4, 3, 1, "75.0%", "100.0%"]
    assert table.loc[3].tolist() == [1, 0, 0, "0.0%", "0.0%"]


def test_plain_rows_keep_their_fields():
    table = tables.plain_table([Checked("lossless", "8 of 8", True)], "check")
    assert table.loc["lossless"].to_dict() == {"found": "8 of 8", "ok": True}
    assert len(tables.plain_table([], "check")) == 0
