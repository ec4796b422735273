"""A real training cut off twice, by Ctrl-C and by a killed kernel, ends with the weights of an undisturbed one; one of
two processes that is cut off leaves none of them behind, and goes on."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

from eagle3lab.workbench.root import package_parent

pytestmark = pytest.mark.notebooks

EPOCHS = 30  # long enough for two cuts in the middle: hundreds of steps, a checkpoint every 20
UPSTREAM = ("data_prep", "inference", "extraction")


class Training:
    """The command that trains in a runs folder of its own, on copies of the chain's upstream runs."""

    def __init__(self, smoke_chain, runs_dir, **changes):
        self.runs_dir = runs_dir
        self.changes = {"epochs": EPOCHS, "runs_dir": runs_dir} | changes
        for stage in UPSTREAM:
            folder = smoke_chain.folder(stage)
            shutil.copytree(folder, runs_dir / folder.name)

    def start(self, *stages):
        command = [
            sys.executable, "-m", "eagle3lab", "run", "smoke", *stages,
            *(word for name, value in self.changes.items() for word in ("-p", name, str(value))),
        ]  # fmt: skip
        return subprocess.Popen(
            command, cwd=package_parent(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    @property
    def folder(self):
        return next(self.runs_dir.glob("smoke-training-*"))

    @property
    def record(self):
        return json.loads((self.folder / "run.json").read_text())

    def checkpoint(self):
        """Step of the newest checkpoint, 0 without one."""
        found = self.runs_dir.glob("smoke-training-*/checkpoints/step-*")
        return max((int(path.name.removeprefix("step-")) for path in found if path.name[5:].isdigit()), default=0)

    def wait_for_checkpoint(self, after, process):
        deadline = time.monotonic() + 300  # far above what it takes: a hang, not a slow machine, ends the wait
        while self.checkpoint() <= after:
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
            time.sleep(0.02)

    def told_steps(self):
        """Steps of its metric rows, and how many there are."""
        steps = [json.loads(line)["step"] for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        return steps, json.loads((self.folder / "results.json").read_text())["steps"]


def gone(process):
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def executed_text(folder):
    cells = json.loads((folder / "04_training.ipynb").read_text())["cells"]
    return "".join("".join(o.get("text", "")) for c in cells for o in c.get("outputs", []))


def test_interrupted_and_killed_training_ends_with_the_same_weights(smoke_chain, tmp_path):
    undisturbed = Training(smoke_chain, tmp_path / "undisturbed")
    reference = undisturbed.start("--only", "training")
    training = Training(smoke_chain, tmp_path / "disturbed")

    process = training.start("--only", "training")
    training.wait_for_checkpoint(0, process)
    children = psutil.Process(process.pid).children(recursive=True)
    assert any("ipykernel_launcher" in child.cmdline() for child in children)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 130, output
    assert (training.record["state"], training.record["error"]["message"]) == ("interrupted", "SIGINT")
    assert all(gone(child) for child in children)
    assert "continue with: python -m eagle3lab run smoke --only training" in output and "Traceback" not in output
    first_cut = training.checkpoint()
    assert first_cut >= 20

    process = training.start("--only", "training")
    training.wait_for_checkpoint(first_cut, process)
    [kernel] = [
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if "ipykernel_launcher" in child.cmdline()
    ]
    os.kill(kernel.pid, signal.SIGKILL)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 137, output
    assert training.record["state"] == "kernel_died" and "logs/kernel.log" in training.record["error"]["message"]
    second_cut = training.checkpoint()
    assert first_cut < second_cut

    process = training.start("--from", "data_prep", "--to", "training")
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 0, output
    assert output.count("unchanged: smoke-") == 3 and "was kernel_died: continues where it stopped" in output
    assert training.record["state"] == "ok"
    assert f"continuing after step {second_cut}" in executed_text(training.folder)
    steps, total = training.told_steps()
    assert second_cut < total
    assert steps == list(range(10, total + 1, 10))  # no step told twice, none left out

    assert reference.wait(120) == 0, reference.stdout.read()
    assert "starting at step 0" in executed_text(undisturbed.folder)
    assert undisturbed.folder.name == training.folder.name
    weights = [(one.folder / "draft" / "model.safetensors").read_bytes() for one in (training, undisturbed)]
    assert weights[0] == weights[1]


def test_an_interrupted_training_of_two_processes_leaves_none_behind_and_goes_on(smoke_chain, tmp_path):
    training = Training(smoke_chain, tmp_path / "runs", processes=2, accumulate=2, sharded=True)
    process = training.start("--only", "training")
    training.wait_for_checkpoint(0, process)
    children = psutil.Process(process.pid).children(recursive=True)
    assert sum("eagle3lab.draft.train_job" in child.cmdline() for child in children) == 3  # torchrun and its two
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 130 and training.record["state"] == "interrupted", output
    assert all(gone(child) for child in children)
    cut = training.checkpoint()

    process = training.start("--only", "training")
    output = process.communicate(timeout=180)[0]
    assert process.returncode == 0, output
    steps, total = training.told_steps()
    assert cut < total and f"continuing after step {cut}" in executed_text(training.folder)
    assert steps == [*range(10, total, 10), total] and training.checkpoint() == total
