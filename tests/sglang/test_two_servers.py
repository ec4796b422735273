"""Two servers capture into one feature store at the same time, and one of them may die."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from eagle3lab.engines.servers.errors import ServerGone
from eagle3lab.engines.sglang.capture import CaptureRow, capture_to_store, durable_ids
from eagle3lab.engines.sglang.capture_files import StoreSpec
from eagle3lab.engines.sglang.server import SGLangServer
from eagle3lab.features.store import FeatureStore, finish_store
from eagle3lab.features.verify import set_damaged_aside
from tests.sglang.capture_cases import CASES, CHUNK, Reference, error, rows, server_spec, target_folder
from tests.tiny import HIDDEN

pytestmark = pytest.mark.sglang

CASE = CASES[0]
LENGTHS = [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 12, 100, 7, 2 * CHUNK + 1]
WAIT_S = 120  # for the other server's first row


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return target_folder(CASE, tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def reference(target):
    return Reference(target)


@pytest.fixture(scope="module")
def servers(target, tmp_path_factory):
    """Two servers with capture folders of their own, started side by side."""
    folders = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    both = [SGLangServer(server_spec(CASE, target, at / "capture"), log=at / "server.log") for at in folders]
    try:
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(SGLangServer.start, both))
        yield both
    finally:
        for server in both:
            server.stop()


def capture_at_once(servers, halves, store, on_row):
    """Each half through a server and a thread of its own; no second row before both servers had their first. The
    reports, or what was raised. on_row: called with the number of the server and its report."""
    both_at_work = Barrier(2)

    def through(number):
        def told(report):
            if report.rows == 1:
                both_at_work.wait(WAIT_S)
            on_row(number, report)

        server = servers[number]
        try:
            return capture_to_store(server.url, server.spec.capture_folder, halves[number], store, 4, on_row=told)
        except ServerGone as gone:
            return gone
        except BaseException:
            both_at_work.abort()  # the other one must not wait
            raise

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(through, (0, 1)))


def corpus(reference, folder, times):
    """Rows, their halves (every second row), and a store of small shards."""
    sent = [CaptureRow(row_id, ids, [[0, len(ids)]]) for row_id, ids in rows(reference.vocab_size, LENGTHS * times)]
    spec = StoreSpec(str(folder), {"target": CASE.name}, CASE.layers, HIDDEN, 100, "float32")
    return sent, (sent[::2], sent[1::2]), spec


def check(folder, sent, reference):
    """Every row once, no byte of it wrong, and its states transformers'."""
    info = finish_store(folder, [row.id for row in sent])
    assert (info["rows"], info["duplicates"]) == (len(sent), 0)
    assert info["tokens"] == sum(len(row.input_ids) for row in sent)
    assert set_damaged_aside(folder) == []
    store = FeatureStore(folder)
    assert sorted(store.ids) == sorted(row.id for row in sent)
    for wanted in sent:
        row, states = store.row(wanted.id), reference.states(wanted.input_ids)
        assert row.input_ids_T.tolist() == wanted.input_ids
        for a, layer in enumerate(CASE.layers):
            assert error(row.aux_TAH[:, a], states[layer]) < 1e-4, f"{wanted.id}: hs[{layer}]"
        assert error(row.last_MH, states[-1][row.last_slots]) < 1e-4, wanted.id


def test_two_servers_fill_one_store_at_once(servers, reference, tmp_path):
    sent, halves, spec = corpus(reference, tmp_path / "store", times=2)
    reports = capture_at_once(servers, halves, spec, lambda *_: None)
    assert [(report.rows, report.skipped, report.errors) for report in reports] == [(9, 0, {})] * 2
    by_part = {}
    store = finish_store(spec.folder, [row.id for row in sent])
    for shard in store["shards"]:
        by_part[shard["part"]] = by_part.get(shard["part"], 0) + shard["rows"]
    assert sorted(by_part.values()) == [9, 9]  # a part a server
    check(spec.folder, sent, reference)


def test_what_a_killed_server_had_not_stored_the_other_one_captures(servers, reference, tmp_path):
    sent, halves, spec = corpus(reference, tmp_path / "store", times=6)

    def kill(number, report):
        if number == 1 and report.rows == len(halves[1]) // 2:
            os.killpg(servers[1].pid, signal.SIGKILL)

    report, gone = capture_at_once(servers, halves, spec, kill)
    assert isinstance(gone, ServerGone) and (report.rows, report.errors) == (len(halves[0]), {})
    kept, first = durable_ids(spec.folder), {row.id for row in halves[0]}
    assert first < kept < {row.id for row in sent}  # some of what the dead one stored, not all
    report = capture_to_store(servers[0].url, servers[0].spec.capture_folder, sent, spec, 4)
    assert (report.rows, report.skipped, report.errors) == (len(sent) - len(kept), len(kept), {})
    check(spec.folder, sent, reference)
