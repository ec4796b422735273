"""A training job in several processes, as an iterator of metric rows: what `Trainer.run` is for one process.

The processes are those of torch.distributed.run; their output goes to processes.log in the job's folder. Whatever ends
the iterator (its end, an error, Ctrl-C, a closed generator) ends them too.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from eagle3lab.draft.alone import alone
from eagle3lab.draft.diverged import TrainingDiverged
from eagle3lab.draft.train import Trainer
from eagle3lab.draft.train_job import LAUNCHER, STREAM, TrainJob
from eagle3lab.workbench.files import iter_jsonl, read_json

LOG, CONFIG, LOCK = "processes.log", "job.json", ".launch.lock"
POLL = 0.1  # seconds between two looks at the stream
PATIENCE = 10.0  # seconds the processes get to end by themselves


class JobFailed(RuntimeError):
    """The processes of a job ended with an error. The message holds it, or the end of their log."""


def train(job: TrainJob, trainer: Trainer, processes: int = 1, after: int = 0) -> Iterator[dict]:
    """Metric rows of the job in this process (`trainer`, made by the job), or in several; `trainer` then takes over
    the weights they left. after: step of the last row that the caller has from an earlier start. RuntimeError, before
    anything in the folder is read or touched, when another trains there."""
    if processes == 1:
        yield from job.run(trainer)
        return
    # the training's own lock is its first process's, which is not there yet when a launch makes its files anew
    with alone(Path(job.folder), LOCK):
        try:
            # several processes write checkpoint and rows by themselves: who listened may have gone between the two
            written = iter_jsonl(Path(job.folder) / STREAM, partial="skip")
            yield from [row for row in written if after < row["step"] <= trainer.step]
            yield from launch(job, processes)
        finally:
            trainer.resume()


def launch(job: TrainJob, processes: int) -> Iterator[dict]:
    """Starts the job in `processes` processes, in a folder that is the caller's alone, and yields its metric rows as
    they come.

    Raises TrainingDiverged when the job did and JobFailed when its processes ended otherwise than they should.
    """
    folder = Path(job.folder)
    folder.mkdir(parents=True, exist_ok=True)
    for old in (folder / STREAM, folder / LOG, *folder.glob("failure-*.json")):
        old.unlink(missing_ok=True)
    job.save(folder / CONFIG)
    process = _start(job, folder, processes)
    try:
        yield from _follow(folder / STREAM, process)
    finally:
        end_all(process)
    if process.returncode:
        _raise_failure(folder, process.returncode)


def _start(job: TrainJob, folder: Path, processes: int) -> subprocess.Popen:
    """torch.distributed.run with the job in `folder`, its output going to the log there."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1",
        f"--nproc-per-node={processes}", "-m", "eagle3lab.draft.train_job", str(folder / CONFIG),
    ]  # fmt: skip
    threads = max(1, torch.get_num_threads() // processes)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), LAUNCHER: str(os.getpid())}
    if sys.platform == "linux" and job.device == "cpu":
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the processes talk on this machine only
    with open(folder / LOG, "wb") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )


def _follow(path: Path, process: subprocess.Popen) -> Iterator[dict]:
    """Whole lines of a growing file of JSON lines, until the process has ended and nothing is left."""
    position = 0
    while True:
        ended = process.poll() is not None
        if path.exists():
            with open(path, "rb") as file:
                file.seek(position)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            position += len(whole)
            yield from map(json.loads, whole.splitlines())
        if ended:
            return
        time.sleep(POLL)


def end_all(process: subprocess.Popen) -> None:
    """Ends a process and all its descendants: SIGTERM, some patience, SIGKILL. Workers are in sessions of their own."""
    if process.poll() is not None:
        return
    parent = psutil.Process(process.pid)
    family = [*parent.children(recursive=True), parent]
    process.terminate()
    _, left = psutil.wait_procs(family, timeout=PATIENCE)
    for one in left:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            pass
    process.wait()


def _raise_failure(folder: Path, code: int):
    """The first process that says why; those that only lost their partner say so later or not at all."""
    told = [read_json(path) for path in sorted(folder.glob("failure-*.json"), key=lambda path: path.stat().st_mtime)]
    for failure in told:
        if failure["kind"] == TrainingDiverged.__name__:
            raise TrainingDiverged(failure["message"])
    if told:
        raise JobFailed(f"{told[0]['kind']}: {told[0]['message']} (all output: {folder / LOG})")
    tail = "\n".join((folder / LOG).read_text(errors="replace").splitlines()[-15:])
    raise JobFailed(f"the processes ended with exit code {code}; the end of {folder / LOG}:\n{tail}")
