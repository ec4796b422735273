"""JupyterLab as a reader has it: a server on a folder of notebooks, a tab of a real browser, what stands in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
WIDE, LONGEST = 1300, 16_000  # pixels; a longer notebook is cut in its picture
SETTINGS = {
    # every cell stands in the page, also those out of sight; nothing is asked and nothing fetched
    "@jupyterlab/notebook-extension/tracker.jupyterlab-settings": {"windowingMode": "none", "scrollPastEnd": False},
    "@jupyterlab/apputils-extension/notification.jupyterlab-settings": {"checkForUpdates": False, "fetchNews": "false"},
}
LAB, NOTEBOOK = "window.jupyterapp", ".jp-NotebookPanel .jp-Notebook"
OUTPUTS = f"() => {LAB}.shell.currentWidget.content.widgets.flatMap(cell => cell.model.outputs?.toJSON() ?? [])"
# Contrast of each piece of text in the outputs with what lies behind it, as WCAG defines it; the worst first.
CONTRAST = """
() => {
  const rgba = c => { const n = c.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const linear = v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = c => { const [r, g, b] = c.map(v => linear(v / 255)); return .2126 * r + .7152 * g + .0722 * b; };
  const over = (top, below) => top.slice(0, 3).map((v, i) => v * top[3] + below[i] * (1 - top[3]));
  const behind = e => { const layers = [];
    for (; e; e = e.parentElement) layers.push(rgba(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]); };
  const found = [];
  for (const area of document.querySelectorAll('.jp-NotebookPanel .jp-OutputArea-output')) {
    const walker = document.createTreeWalker(area, NodeFilter.SHOW_TEXT);
    for (let node; (node = walker.nextNode());) {
      const e = node.parentElement;
      if (!node.textContent.trim() || e.closest('style, script') || !e.getClientRects().length) continue;
      const back = behind(e), front = over(rgba(getComputedStyle(e).color), back);
      const [a, b] = [light(front), light(back)].sort((x, y) => y - x);
      found.push({ratio: (a + .05) / (b + .05), text: node.textContent.trim().slice(0, 60)});
    }
  }
  return found.sort((x, y) => x.ratio - y.ratio);
}
"""


def browser_path() -> str | None:
    """The program of an installed Chromium; None without one, and without the package that drives it."""
    return next((path for name in BROWSERS if (path := shutil.which(name)) and find_spec("playwright")), None)


@contextmanager
def jupyterlab(folder: Path, home: Path) -> Iterator[str]:
    """A JupyterLab on `folder` with settings of its own under `home`; yields its address, ends it and its kernels."""
    for name, setting in SETTINGS.items():
        path = home / "settings" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(setting), encoding="utf-8")
    own = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_RUNTIME_DIR": "runtime", "JUPYTERLAB_SETTINGS_DIR": "settings",
           "JUPYTERLAB_WORKSPACES_DIR": "workspaces", "IPYTHONDIR": "ipython"}  # fmt: skip
    environment = {**os.environ, **{name: str(home / place) for name, place in own.items()}}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0",
               "--expose-app-in-browser", "--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True",
               f"--notebook-dir={folder}"]  # fmt: skip
    with open(home / "jupyterlab.log", "wb") as log:
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield _address(server, home)
    finally:
        server.terminate()  # it ends its kernels
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _address(server: subprocess.Popen, home: Path) -> str:
    """What the server wrote about itself once it listens."""
    told = home / "runtime" / f"jpserver-{server.pid}.json"
    for _ in range(1200):
        if told.exists():
            return json.loads(told.read_text(encoding="utf-8"))["url"].rstrip("/")
        if server.poll() is not None:
            break
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not start:\n{(home / 'jupyterlab.log').read_text(encoding='utf-8')}")


def open_notebook(page: Page, address: str, name: str) -> None:
    """Open a notebook in a workspace of its own and wait until its kernel is idle."""
    page.goto(f"{address}/lab/workspaces/{Path(name).stem}/tree/{name}?reset")
    page.wait_for_selector(f"{NOTEBOOK} .jp-Cell")
    panel = f"{LAB}.shell.currentWidget"
    page.wait_for_function(f"{panel}?.sessionContext?.session?.kernel?.status === 'idle'")


def run_all(page: Page) -> None:
    """What the menu's Run All Cells does; returns when every code cell has run, or one failed."""
    page.evaluate(f"() => void {LAB}.commands.execute('notebook:run-all-cells')")
    prompts = f"[...document.querySelectorAll('{NOTEBOOK} .jp-CodeCell .jp-InputPrompt')]"
    failed = f"({OUTPUTS})().some(o => o.output_type === 'error')"
    page.wait_for_function(f"() => {prompts}.every(e => /^\\[\\d+\\]:$/.test(e.textContent)) || {failed}")


def outputs(page: Page) -> list[dict]:
    """All outputs of the notebook, as they would be saved."""
    return page.evaluate(OUTPUTS)


def show(page: Page, theme: str) -> None:
    """Switch to a theme of THEMES and wait until it stands."""
    page.evaluate(f"name => {LAB}.commands.execute('apputils:change-theme', {{theme: name}})", THEMES[theme])
    page.wait_for_function(f"document.body.dataset.jpThemeLight === '{'true' if theme == 'light' else 'false'}'")


def picture(page: Page, path: Path) -> None:
    """A picture of the whole notebook, as long as it is, without side bars."""
    page.evaluate(f"{LAB}.shell.collapseLeft()")
    page.set_viewport_size({"width": WIDE, "height": 900})
    outer = "document.querySelector('.jp-NotebookPanel .jp-WindowedPanel-outer')"
    height = page.evaluate(f"{outer}.scrollHeight")
    page.set_viewport_size({"width": WIDE, "height": min(height + 120, LONGEST)})
    page.wait_for_function(f"{outer}.clientHeight + 2 >= Math.min({height}, {LONGEST} - 120)")
    page.evaluate(f"{outer}.scrollTop = 0")
    path.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=path)
