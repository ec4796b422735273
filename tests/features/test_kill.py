"""A writer killed with SIGKILL at random points leaves a store that resumes to the same content."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eagle3lab.features.layout import FeatureStoreError
from eagle3lab.features.store import FeatureStore, FeatureWriter, finish_store
from tests.features.rows import AUX_LAYERS, FINGERPRINT, HIDDEN, SOLE_FILES, write_rows

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


def start(folder, count, shard_tokens, *part_and_step):
    arguments = [str(value) for value in (folder, count, shard_tokens, *part_and_step)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.features.rows", *arguments],
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
        index = cut / "index-00.jsonl"
        done_before = len(index.read_bytes().splitlines()) - 8 if index.exists() else 0  # rows of a shard: at most 8
    assert kills >= 2
    final = start(cut, count, shard_tokens)
    assert len(final.communicate()[0].split()) < count and final.returncode == 0
    assert content(cut) == content(tmp_path / "whole")
    listed = {entry["name"] for entry in FeatureStore(cut).info["shards"]}
    assert {path.name for path in cut.iterdir()} == {*SOLE_FILES, *listed}


@pytest.mark.slow
def test_two_writers_at_once_and_one_of_them_killed(tmp_path):
    """Each writes every second row into its own part; the second is killed and begun again while the first goes on."""
    count, shard_tokens, folder = 200, 15, tmp_path / "parts"
    write_rows(tmp_path / "whole", count, shard_tokens)
    first, second = (start(folder, count, shard_tokens, part, 2) for part in ("0", "1"))
    for _ in range(20):
        second.stdout.readline()
    second.send_signal(signal.SIGKILL)
    second.stdout.close()
    assert second.wait() == -signal.SIGKILL
    again = start(folder, count, shard_tokens, "1", 2)
    assert first.communicate()[0].split()[-1] == b"198" and first.returncode == 0
    with pytest.raises(FeatureStoreError, match="no finished feature store"):
        FeatureStore(folder)
    added = again.communicate()[0].split()
    assert again.returncode == 0 and len(added) < 100
    info = finish_store(folder)
    assert (info["rows"], info["duplicates"]) == (count, 0)
    assert content(folder) == content(tmp_path / "whole")


def test_a_part_has_one_writer_process(tmp_path):
    child = start(tmp_path, 10**9, 10**9, "1", 2)
    child.stdout.readline()
    try:
        with pytest.raises(FeatureStoreError, match="another process writes part '1'"):
            FeatureWriter(tmp_path, FINGERPRINT, AUX_LAYERS, HIDDEN, part="1")
        FeatureWriter(tmp_path, FINGERPRINT, AUX_LAYERS, HIDDEN, part="2").close()
    finally:
        child.kill()
        child.stdout.close()
        child.wait()
    FeatureWriter(tmp_path, FINGERPRINT, AUX_LAYERS, HIDDEN, part="1").close()  # the lock ended with its process
