"""The notebooks as a reader opens them: in JupyterLab, in a real browser, on a finished run.

The pictures stay in runs/screenshots, to be looked at. With READER_PROFILE=demo the newest runs of that profile
are opened.
"""

import json
import os
import shutil

import nbformat
import pytest
from browser import CONTRAST, NOTEBOOK, THEMES, browser_path, jupyterlab, open_notebook, outputs, picture, run_all, show
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

from eagle3lab.workbench.params import resolve_parameters
from eagle3lab.workbench.records import all_records, newest, read_record
from eagle3lab.workbench.root import from_root
from eagle3lab.workbench.stages import STAGES

pytestmark = [
    pytest.mark.notebooks,
    pytest.mark.skipif(browser_path() is None, reason="no Chromium (`make browser`), or no package playwright"),
]
CHEAP = ("doctor", "diagnostics", "scaling", "status")  # seconds on a finished smoke run
PROFILE = os.environ.get("READER_PROFILE", "smoke")
PICTURES = from_root("runs/screenshots")
PATIENCE_MS = 240_000
LEGIBLE = 3.0  # least contrast of text with what lies behind it (WCAG's for large text)


@pytest.fixture(scope="module")
def finished(request):
    """The folder of each stage's finished run."""
    if PROFILE == "smoke":
        chain = request.getfixturevalue("smoke_chain")
        return {stage: chain.folder(stage) for stage in STAGES}
    found = {stage: newest(all_records(from_root("runs")), stage, PROFILE) for stage in STAGES}
    return {stage: from_root("runs") / record["run_id"] for stage, record in found.items()}


@pytest.fixture(scope="module")
def runs_dir(finished, tmp_path_factory):
    """A copy of the finished runs, which the notebooks open here write into."""
    copy = tmp_path_factory.mktemp("reader") / "runs"
    for folder in finished.values():
        shutil.copytree(folder, copy / folder.name)
    return copy


@pytest.fixture(scope="module")
def lab(runs_dir, tmp_path_factory):
    """A JupyterLab whose notebooks hold the parameters of the profile, and a browser: (address, browser)."""
    from playwright.sync_api import sync_playwright

    books, home = tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("jupyter")
    for stage in STAGES.values():
        values = resolve_parameters(stage.name, PROFILE, {"runs_dir": str(runs_dir)}).values
        book = parameterize_notebook(load_notebook_node(str(stage.notebook_path)), values)
        nbformat.write(book, books / f"{stage.label}.ipynb")
    with jupyterlab(books, home) as address, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        yield address, browser
        browser.close()


@pytest.fixture
def page(lab, stage):
    """A new tab with the notebook of `stage`."""
    address, browser = lab
    page = browser.new_page()
    page.set_default_timeout(PATIENCE_MS)
    open_notebook(page, address, f"{STAGES[stage].label}.ipynb")
    yield page
    page.close()


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage not in CHEAP])
def test_it_opens_as_it_is_written(page, stage):
    cells = nbformat.read(STAGES[stage].notebook_path, 4).cells
    assert len(page.query_selector_all(f"{NOTEBOOK} .jp-MarkdownCell")) == sum(c.cell_type == "markdown" for c in cells)
    shown = len(page.query_selector_all(f"{NOTEBOOK} .jp-CodeCell"))
    assert shown == 1 + sum(c.cell_type == "code" for c in cells)  # and the cell with the profile's parameters
    assert page.inner_text(f"{NOTEBOOK} h1").startswith(f"{STAGES[stage].number:02d} · ")
    path = PICTURES / f"{STAGES[stage].label}-as-written.png"
    path.unlink(missing_ok=True)
    picture(page, path)
    assert path.stat().st_size > 10_000  # not an empty page


@pytest.mark.parametrize("stage", CHEAP)
def test_all_cells_run_and_show_what_they_should(page, stage, finished, runs_dir):
    run_all(page)
    bad = [o for o in outputs(page) if o["output_type"] == "error" or o.get("name") == "stderr"]
    assert bad == []
    for theme in THEMES:
        show(page, theme)
        picture(page, PICTURES / f"{STAGES[stage].label}-{theme}.png")
        contrasts = page.evaluate(CONTRAST)
        assert contrasts
        assert [one for one in contrasts if one["ratio"] < LEGIBLE] == [], theme

    [manifest] = runs_dir.glob(f"{PROFILE}-{stage}-*/manifest.json")
    figures = [key for key, entry in json.loads(manifest.read_text()).items() if entry["kind"] == "figure"]
    drawn = page.evaluate(
        f"[...document.querySelectorAll('{NOTEBOOK} .jp-OutputArea-output img')].map(i => i.naturalWidth)"
    )
    assert len(drawn) == len(figures) and all(width > 100 for width in drawn)
    assert page.query_selector(f"{NOTEBOOK} .jp-OutputArea-output table") is not None

    record = read_record(manifest.parent)
    assert (record["state"], record["driver"]) == ("ok", "kernel")
    kept = ("accept_length_simulated", "points", "cycles_differing", "verdict")  # none is a matter of time
    here, there = (json.loads((folder / "results.json").read_text()) for folder in (manifest.parent, finished[stage]))
    assert {name: here.get(name) for name in kept} == {name: there.get(name) for name in kept}
