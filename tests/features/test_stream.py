"""Reading ahead, and memory that does not grow with the store."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from eagle3lab.features.store import FeatureStore, FeatureWriter
from eagle3lab.features.stream import read_ahead
from tests.features.rows import FINGERPRINT, make_row, write_rows

ROOT = Path(__file__).parents[2]


def test_results_come_in_order_from_another_thread():
    threads = set()

    def read(item):
        threads.add(threading.current_thread().name)
        return item * 10

    assert list(read_ahead(range(50), read, depth=4)) == [n * 10 for n in range(50)]
    assert len(threads) == 1 and threading.current_thread().name not in threads
    assert list(read_ahead([], read, depth=4)) == []


@pytest.mark.parametrize("depth", [1, 3])
def test_no_more_is_read_ahead_than_asked_for(depth):
    read, results = [], []
    for result in read_ahead(range(20), lambda item: read.append(item) or item, depth):
        results.append(result)
        assert len(read) <= len(results) + depth
    assert results == list(range(20))


def test_an_error_is_raised_where_its_result_is_due():
    results = []
    with pytest.raises(ZeroDivisionError):
        for result in read_ahead([2, 1, 0, 1], lambda item: 2 // item, depth=4):
            results.append(result)
    assert results == [1, 2]


def test_leaving_early_ends_the_thread():
    before, read = threading.active_count(), []
    for _ in read_ahead(range(10**6), read.append, depth=2):
        break
    assert threading.active_count() == before and len(read) <= 4
    with pytest.raises(ValueError, match="depth=0"):
        next(read_ahead([1], str, depth=0))


def test_rows_are_the_same_whichever_thread_reads_them(tmp_path):
    write_rows(tmp_path, 40, 50)
    store = FeatureStore(tmp_path)
    alone = [row.aux_TAH.tolist() for row in store.rows(order=1)]
    results = [None] * 4
    threads = [
        threading.Thread(target=lambda k=k: results.__setitem__(k, [r.aux_TAH.tolist() for r in store.rows(order=1)]))
        for k in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(result == alone for result in results)


def peak_megabytes(folder) -> float:
    """Peak memory of a process of its own that reads every row of a store twice, in a shuffled order."""
    script = (
        "import resource, sys; from eagle3lab.features.store import FeatureStore;"
        "from eagle3lab.features.stream import read_ahead; import torch; torch.set_num_threads(1);"
        "store = FeatureStore(sys.argv[1]); ids = [i for _ in range(2) for i in sorted(store.ids, key=hash)];"
        "total = sum(float(row.aux_TAH[0, 0, 0]) for row in read_ahead(ids, store.row, 4));"
        "print(len(ids), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[1])


@pytest.mark.slow
def test_memory_does_not_grow_with_the_store(tmp_path):
    """80 MB of features take no more memory to read than 8 MB, in shards of which several are open at a time."""
    hidden, peaks = 1024, {}
    for name, count in (("small", 60), ("large", 600)):
        writer = FeatureWriter(tmp_path / name, FINGERPRINT, [2, 4, 5], hidden, shard_tokens=1000)
        for number in range(count):
            writer.add(*make_row(number, hidden))
        size = writer.close()["bytes"]
        peaks[name] = peak_megabytes(tmp_path / name)
    assert size > 70e6
    assert peaks["large"] - peaks["small"] < 15  # the index takes its part: some hundred bytes a row
