"""dev/recipes.ipynb and the results that it reads: the lines are sound, and the table says what they say."""

import base64
import json
import statistics

import nbformat
import papermill
import pytest

from eagle3lab.workbench.root import package_parent

NOTEBOOK, RESULTS = package_parent() / "dev" / "recipes.ipynb", package_parent() / "dev" / "recipes.jsonl"
LINES = [json.loads(line) for line in RESULTS.read_text().splitlines()]


def test_every_accept_length_is_that_of_its_histogram():
    for line in LINES:
        for steps, histogram in line["histogram"].items():
            assert len(histogram) == int(steps) + 1
            accepted = sum(k * verifications for k, verifications in enumerate(histogram))
            assert line["accept_length"][steps] == pytest.approx(1 + accepted / sum(histogram))


def test_all_arms_were_trained_on_the_same_amount_of_text():
    seeds = {line["seed"] for line in LINES if line["arm"] == "ours"}
    assert seeds == {0, 1, 2}
    assert len({(line["seed"], line["slots"]) for line in LINES}) == len({line["seed"] for line in LINES})
    assert len({(line["arm"], line["seed"]) for line in LINES}) == len(LINES)


@pytest.mark.notebooks
def test_the_notebook_shows_them(tmp_path):
    out = tmp_path / "recipes.ipynb"
    papermill.execute_notebook(NOTEBOOK, out, cwd=NOTEBOOK.parent, progress_bar=False, log_output=False)
    outputs = [output for cell in nbformat.read(out, 4).cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type in ("error", "stream")]
    html = "".join(output.get("data", {}).get("text/html", "") for output in outputs)
    for arm in {line["arm"] for line in LINES}:
        mean = statistics.mean(line["accept_length"]["5"] for line in LINES if line["arm"] == arm)
        assert arm in html and f"{mean:.3f}" in html
    pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 1 and len(base64.b64decode(pictures[0])) > 10_000


def test_it_is_kept_without_outputs():
    cells = nbformat.read(NOTEBOOK, 4).cells
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]
