"""dev/recipes.ipynb and the results that it reads: the lines are sound, and the tables say what they say."""

import base64
import json
import statistics

import nbformat
import papermill
import pytest

from benchmarks.recipes import ARMS
from eagle3lab.workbench.root import package_parent

DEV = package_parent() / "dev"
NOTEBOOK = DEV / "recipes.ipynb"
ARMS_OF = {  # file: arms that it must have, and their seeds
    "recipes.jsonl": ({"no norms", "specforge 1e-3"}, {0, 1, 2}),
    "recipes_norms.jsonl": ({"ours", "specforge 1e-3"}, {0, 1, 2}),
    "recipes_candidates.jsonl": ({"ours", "no norms", "specforge 1e-3"}, {0}),
    "recipes_foreign.jsonl": ({"ours", "foreign text"}, {0}),
}
STUDIES = {name: [json.loads(line) for line in (DEV / name).read_text().splitlines()] for name in ARMS_OF}
every_study = pytest.mark.parametrize("name", STUDIES)


@every_study
def test_every_accept_length_is_that_of_its_histogram(name):
    for line in STUDIES[name]:
        for steps, histogram in line["histogram"].items():
            assert len(histogram) == int(steps) + 1
            accepted = sum(k * verifications for k, verifications in enumerate(histogram))
            assert line["accept_length"][steps] == pytest.approx(1 + accepted / sum(histogram))


@every_study
def test_all_arms_were_trained_on_the_same_amount_of_text(name):
    lines = STUDIES[name]
    arms, seeds = ARMS_OF[name]
    for arm in arms:
        assert {line["seed"] for line in lines if line["arm"] == arm} >= seeds
    for seed in seeds:  # other texts are not of quite the same length
        slots = [line["slots"] for line in lines if line["seed"] == seed]
        assert max(slots) <= (1.01 if name == "recipes_foreign.jsonl" else 1.0) * min(slots)
    assert len({(line["arm"], line["seed"]) for line in lines}) == len(lines)
    assert {line["arm"] for line in lines} <= set(ARMS)


@pytest.mark.notebooks
def test_the_notebook_shows_them(tmp_path):
    out = tmp_path / "recipes.ipynb"
    papermill.execute_notebook(NOTEBOOK, out, cwd=NOTEBOOK.parent, progress_bar=False, log_output=False)
    outputs = [output for cell in nbformat.read(out, 4).cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type in ("error", "stream")]
    html = "".join(output.get("data", {}).get("text/html", "") for output in outputs)
    for lines in STUDIES.values():
        for arm in {line["arm"] for line in lines}:
            mean = statistics.mean(line["accept_length"]["5"] for line in lines if line["arm"] == arm)
            assert arm in html and f"{mean:.3f}" in html
    pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == len(STUDIES) and all(len(base64.b64decode(picture)) > 10_000 for picture in pictures)


def test_it_is_kept_without_outputs():
    cells = nbformat.read(NOTEBOOK, 4).cells
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]
