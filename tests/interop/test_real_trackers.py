"""TensorBoard and trackio themselves, from their index, read back what training logs through our seam.

Logging and reading are processes of their own, with the packages in a folder of theirs; no network is needed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.specforge import install

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
LOGGING = """
import sys
from eagle3lab.draft.trackers import open_tracker, tracked

rows = [
    {"step": 10, "loss": 2.5, "acceptance": [0.5, 0.25], "note": "text", "resumed": True},
    {"step": 20, "loss": 2, "acceptance": [0.75, 0.5]},
]
for row in tracked(iter(rows), open_tracker(sys.argv[1], sys.argv[2], "run-1", {"lr": 0.001, "layers": [2, 4]})):
    if row["step"] == int(sys.argv[3]):
        raise RuntimeError("the training failed")
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """A folder with the pinned packages of trackers.txt."""
    folder = tmp_path_factory.mktemp("packages")
    install(folder, HERE / "trackers.txt")
    return folder


def python(packages, folder, *words):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(packages)]),
        "TRACKIO_DIR": str(folder),
        "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
    }
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, cwd=folder)


def read(packages, folder, name):
    done = python(packages, folder, str(HERE / "tracker_reader.py"), name, str(folder))
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["tensorboard", "trackio"])
@pytest.mark.parametrize("fails_at", [0, 20], ids=["whole", "failed"])
def test_its_own_reader_finds_every_number_under_its_step(packages, tmp_path, name, fails_at):
    done = python(packages, tmp_path, "-c", LOGGING, name, str(tmp_path), str(fails_at))
    assert done.returncode == bool(fails_at), done.stderr[-4000:]
    assert ("the training failed" in done.stderr) == bool(fails_at)
    found = read(packages, tmp_path, name)
    assert found["curves"] == {
        "loss": [[10, 2.5], [20, 2.0]],
        "acceptance/1": [[10, 0.5], [20, 0.75]],
        "acceptance/2": [[10, 0.25], [20, 0.5]],
    }
    if name == "tensorboard":
        assert found["config"] == "    lr: 0.001\n    layers: [2, 4]"  # shown as a block of code
    else:
        assert found["config"]["lr"] == 0.001 and found["config"]["layers"] == [2, 4]
