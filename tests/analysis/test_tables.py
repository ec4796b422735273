"""Readable numbers and tables."""

import pandas as pd
import pytest

from eagle3lab.analysis import tables
from eagle3lab.analysis.accept import AcceptSetting, PromptCycles, cycle_acceptance, summarise
from eagle3lab.analysis.bench import BenchRow
from eagle3lab.analysis.doctor import Check


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


def test_checks_to_mend_come_first():
    rows = [
        Check("a", "1", "1", "ok"),
        Check("b", "1", "2", "warning", "w"),
        Check("c", "1", "2", "fault", "f"),
    ]
    table = tables.check_table(rows)
    assert list(table.index) == ["c", "b", "a"]
    assert list(table.columns) == ["found", "expected", "verdict", "remedy"]


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


def test_accept_and_position_tables():
    setting = AcceptSetting("embedded", 2, 1, 3, 0.0, "humaneval")
    summary = summarise([PromptCycles("a", (2, 0)), PromptCycles("b", (1, 1))], setting)
    row = tables.accept_table([summary]).iloc[0]
    assert (row["accept_length"], row["set"], row["num_steps"], row["verifications"]) == (
        2.0,
        "humaneval",
        2,
        4,
    )
    table = tables.position_table({"served": cycle_acceptance([2, 0, 1, 1], 2)})
    assert list(table.columns) == [
        "served joint",
        "served conditional",
    ]  # marginals cannot be seen from outside
    assert list(table.index) == [1, 2]
    assert table["served conditional"].tolist() == [0.75, 0.333]
