"""What a finished chain prints."""

import json

from eagle3lab.workbench.closing import closing_text


def test_headlines_figures_and_reports_in_the_order_of_the_stages(tmp_path):
    for name, headline, manifest in (
        ("one", ["accept length 1.53 (chain 3)"], {"curve": "figure", "draft": "checkpoint"}),
        ("two", ["20.1 tok/s", "break-even 1.31"], {"status": "report"}),
    ):
        folder = tmp_path / name
        folder.mkdir()
        entries = {key: {"path": f"{key}.x", "kind": kind} for key, kind in manifest.items()}
        (folder / "results.json").write_text(json.dumps({"headline": headline, "other": 1}))
        (folder / "manifest.json").write_text(json.dumps(entries))
    text = closing_text([("diagnostics", tmp_path / "one"), ("status", tmp_path / "two")])
    lines = [line.strip() for line in text.splitlines() if line]
    assert lines[:4] == [
        "Results",
        "05_diagnostics  accept length 1.53 (chain 3)",
        "08_status       20.1 tok/s",
        "08_status       break-even 1.31",
    ]
    assert lines[4] == "Figures" and lines[5].endswith("one/curve.x") and lines[6] == "Reports"
    assert lines[7].endswith("two/status.x") and "draft.x" not in text
    assert "Notebooks" not in text


def test_executed_notebooks_and_how_to_read_them(tmp_path):
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        for file in ("results.json", "manifest.json"):
            (tmp_path / name / file).write_text("{}")
    notebook = tmp_path / "one/05_diagnostics.ipynb"
    other = tmp_path / "two/06_serving.ipynb"
    for path in (notebook, other, other.with_suffix(".html")):  # somebody made a page of one
        path.write_text("x")
    runs = [("diagnostics", tmp_path / "one"), ("serving", tmp_path / "two"), ("scaling", tmp_path / "three")]
    head, *lines = closing_text(runs).strip().splitlines()
    assert head.startswith("Notebooks as they ran") and "jupyter nbconvert --to html PATH" in head
    assert [line.strip() for line in lines] == [str(notebook), str(other)]
