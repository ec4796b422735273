"""A writer killed with SIGKILL at random points leaves a store that resumes to the same content."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from eagle3lab.features.store import FeatureStore
from tests.features.rows import write_rows

ROOT = Path(__file__).parents[2]


def content(folder):
    return {
        row.id: (
            row.split,
            row.set,
            row.input_ids_T.tolist(),
            row.loss_mask_T.tolist(),
            row.aux_TAH.tolist(),
            row.last_slots.tolist(),
            row.last_MH.tolist(),
        )
        for row in FeatureStore(folder).rows()
    }


def start(folder, count, shard_tokens):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.features.rows", str(folder), str(count), str(shard_tokens)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_kill_9_loses_nothing_that_was_stored(tmp_path):
    count, shard_tokens, chance = (
        240,
        15,
        random.Random(0),
    )  # tiny shards: most of the time goes into writing them
    write_rows(tmp_path / "whole", count, shard_tokens)
    cut, done_before, kills = tmp_path / "cut", 0, 0
    for _ in range(4):
        child = start(cut, count, shard_tokens)
        first = int(child.stdout.readline() or -1)  # wait for torch to load and the first row to be added
        assert first == -1 or first >= done_before - 1  # earlier rows were not written again
        time.sleep(chance.uniform(0.0, 0.15))
        child.send_signal(signal.SIGKILL)
        child.stdout.close()
        kills += child.wait() == -signal.SIGKILL
        index = cut / "index.jsonl"
        done_before = (
            len(index.read_bytes().splitlines()) - 8 if index.exists() else 0
        )  # rows of a shard: at most 8
    assert kills >= 2
    final = start(cut, count, shard_tokens)
    assert len(final.communicate()[0].split()) < count and final.returncode == 0
    assert content(cut) == content(tmp_path / "whole")
    listed = {entry["name"] for entry in FeatureStore(cut).info["shards"]}
    assert {path.name for path in cut.iterdir()} == {"store.json", "index.jsonl", *listed}
