"""The benchmark and the scaling curve that the smoke profile leaves behind, and a study of its finished runs."""

import json
import math
import shutil

import pytest

from eagle3lab.workbench.runner import run_chain
from tests.chain.test_smoke_chain import printed

pytestmark = pytest.mark.notebooks


def test_every_cell_of_the_grid_was_measured_and_sampled_answers_are_distributed_alike(smoke_chain):
    results = smoke_chain.read("serving", "results.json")
    rows = [one["row"] for one in results["grid"]]
    assert {one["reason"] for one in results["grid"]} == {""}
    settings = [(row["temperature"], row["num_steps"], row["differing"]) for row in rows]
    assert settings == [(0.0, 1, 0), (0.0, 3, 0), (0.7, 1, None), (0.7, 3, None)]
    for one in results["grid"]:
        row, histogram = one["row"], one["histogram"]
        committed = sum(count * (drafts + 1) for drafts, count in enumerate(histogram))
        assert row["accept_length"] == pytest.approx(committed / sum(histogram))
        assert 0 < row["first_s"][0] < row["request_s"][0] and row["errors"] == 0
    sampled = results["sampled"]
    assert sampled["answers"] == 100 and sampled["groups"] > 1 and sampled["p"] > 0.001


def test_the_benchmark_asks_second_turns_and_says_what_its_numbers_are_of(smoke_chain):
    results = smoke_chain.read("serving", "results.json")
    benched = smoke_chain.read("serving", "benchmark.json")
    firsts = [line["id"] for line in smoke_chain.lines("serving", "turns.jsonl")[1:]]
    asked = {run["id"] for run in benched["runs"]}
    seconds = {name for name in asked if name.endswith("-turn2")}
    assert len(firsts) == 2 and set(firsts) <= asked and {f"{firsts[0]}-turn2"} <= seconds
    assert seconds <= {f"{name}-turn2" for name in firsts} and len(asked) == 4 + len(seconds)
    too_long = [name for name in firsts if f"{name}-turn2" not in seconds]
    said = f"{len(seconds)} second turns" + (f", {len(too_long)} too long for the context" if too_long else "")
    assert said in printed(smoke_chain.folder("serving") / "06_serving.ipynb")
    drafter = smoke_chain.results["training"].run_id
    assert f"target glassllm/en, drafter {drafter}" in results["setting"]
    assert "prompts of sharegpt, mt_bench;" in results["setting"]
    assert (results["failed"], [row["errors"] for row in results["rows"]]) == ({}, [0, 0, 0])
    assert results["rows"] == benched["rows"][:3]
    lines = smoke_chain.lines("serving", "bench.jsonl")
    assert [(line["round"], len(line["runs"])) for line in lines[1:]] == [(0, 3)] * len(asked)


def test_the_curve_has_a_point_for_every_training(smoke_chain):
    points = smoke_chain.read("scaling", "results.json")["points"]
    assert [(one["amount"], one["rows"], one["seed"]) for one in points] == [(60, 60, 0), (15, 15, 0), (30, 30, 0)]
    assert points[0]["source"] == smoke_chain.results["training"].run_id
    assert {one["source"] for one in points[1:]} == {smoke_chain.results["scaling"].run_id}
    for one in points:
        assert set(one["by_set"]) == {"sharegpt", "mt_bench"} and 1.0 <= one["accept_length"] <= 4.0


def test_a_wanted_accept_length_is_answered_with_a_range_or_with_why_there_is_none(smoke_chain):
    results = smoke_chain.read("scaling", "results.json")
    shown = printed(smoke_chain.folder("scaling") / "07_scaling.ipynb")
    assert [one["target"] for one in results["wanted"]] == [1.1, 1.9]
    for one in results["wanted"]:
        assert (one["amount"] is None) == bool(one["reason"])
        assert one["amount"] is None or one["low"] <= one["amount"] <= (one["high"] or math.inf)
        assert f"wanted, training rows: accept length {one['target']:.2f}" in shown
    assert smoke_chain.read("scaling", "curve.json")["wanted"] == results["wanted"]


def test_a_finished_study_and_a_finished_training_are_points_of_another_study(smoke_chain, tmp_path):
    runs_dir = shutil.copytree(smoke_chain.runs_dir, tmp_path / "runs")
    training, scaling = (smoke_chain.results[stage].run_id for stage in ("training", "scaling"))
    overrides = {"runs_dir": str(runs_dir), "collect_runs": [training, scaling], "amounts": [], "num_steps": 2}
    (result,) = run_chain("smoke", stages=["scaling"], overrides=overrides)
    record = json.loads((result.folder / "run.json").read_text())
    assert record["state"] == "ok" and result.run_id != scaling, record["error"]
    first = smoke_chain.read("scaling", "results.json")["points"]
    found = json.loads((result.folder / "results.json").read_text())
    told = ("amount", "rows", "slots", "seed", "source")
    assert [[one[name] for name in told] for one in found["points"]] == [[one[name] for name in told] for one in first]
    assert not list(result.folder.glob("trainings/*"))  # nothing was trained
    lengths = [one["accept_length"] for one in found["points"]]
    assert max(lengths) == lengths[0] > 1.3 and max(lengths) <= 3.0  # all rows are better than some of them
    assert "simulated, chain of 2, 3 drafters" in found["setting"]  # a parameter wins over the best of 06
    assert found["break_even"] is None and "served no chain of 2 (add it" in found["needed"]
