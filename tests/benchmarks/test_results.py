"""The table of `make bench`: what the single benchmarks wrote, in one order, and what failed."""

import pytest

from benchmarks.__main__ import BENCHMARKS, run, table
from benchmarks.results import Result, load, save

TRAINING = Result("training", "3 TTT steps", "2,227 tokens/s", "5,400 tokens/s, bare products", 2227 / 5400)
STORE = Result("feature store", "codec fp8", "2,300 bytes a token", "4,608 bytes", 0.499, "less")


def test_the_table_holds_all_results_in_order_below_the_hardware(tmp_path):
    save(tmp_path / "extraction.json", [STORE])
    save(tmp_path / "training.json", [TRAINING])
    save(None, [STORE])
    assert load(tmp_path / "training.json") == [TRAINING]
    hardware, empty, head, rule, *rows = table(tmp_path, ["client failed with exit code 2"]).splitlines()
    assert "cores" in hardware and "torch" in hardware and empty == ""
    assert head.count("|") == rule.count("|") == 7
    assert rows[:2] == [
        "| training | 3 TTT steps | 2,227 tokens/s | 5,400 tokens/s, bare products | 0.41 | more |",
        "| feature store | codec fp8 | 2,300 bytes a token | 4,608 bytes | 0.50 | less |",
    ]
    assert rows[-1] == "client failed with exit code 2"


def test_a_benchmark_that_fails_leaves_no_old_result(tmp_path):
    save(tmp_path / "nonsense.json", [STORE])
    assert run("nonsense", tmp_path) == "nonsense failed with exit code 1"
    assert not (tmp_path / "nonsense.json").exists()


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_of_the_table_writes_its_results(name):
    import importlib

    module = importlib.import_module(f"benchmarks.{name}")
    assert module.save is save and callable(module.main)


def test_a_direction_is_more_or_less():
    with pytest.raises(ValueError, match="better='bigger'"):
        Result("a", "b", "c", "d", 1.0, "bigger")
