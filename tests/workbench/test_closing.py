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
