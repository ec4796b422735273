"""Rows to a finished store with the embedded engine: an estimate first, a full disk refused, no row twice."""

from types import SimpleNamespace

import pytest
import torch

from eagle3lab.engines import extract as extract_module
from eagle3lab.engines.choice import EngineChoice
from eagle3lab.engines.embedded import EmbeddedEngine
from eagle3lab.engines.extract import CaptureRow, StoreSpec, extract
from eagle3lab.engines.live import open_features
from eagle3lab.engines.sglang.capture import CaptureReport
from eagle3lab.features import estimate as estimate_module
from eagle3lab.features.estimate import SAMPLE_ROWS
from eagle3lab.features.layout import DiskFullError, quarantine_folder
from eagle3lab.features.live import write_plan
from eagle3lab.features.store import FeatureStore, FeatureWriter
from tests.tiny import HIDDEN, VOCAB, save_tiny_target

LAYERS, ROWS = [2, 4, 6], 3 * SAMPLE_ROWS


@pytest.fixture(scope="module")
def choice(tmp_path_factory):
    return EngineChoice("embedded", save_tiny_target(tmp_path_factory.mktemp("target")), "float32", frozenset())


def rows(count=ROWS):
    generator = torch.Generator().manual_seed(4)
    found = []
    for i in range(count):
        n = 6 + i % 9
        found.append(CaptureRow(f"r{i}", torch.randint(0, VOCAB, (n,), generator=generator).tolist(), [[3, n]]))
    return found


def spec(folder, codec="bf16"):
    return StoreSpec(str(folder), {"corpus": "abc"}, LAYERS, HIDDEN, 200, codec)


@pytest.fixture
def captured(monkeypatch):
    """Ids of the rows that went through the engine, in turn."""
    seen, own = [], EmbeddedEngine.capture

    def capture(self, rows, batch_tokens=4096):
        rows = list(rows)
        seen.extend(row_id for row_id, _ in rows)
        return own(self, rows, batch_tokens)

    monkeypatch.setattr(EmbeddedEngine, "capture", capture)
    return seen


@pytest.mark.parametrize("codec", ["bf16", "fp8+top5"])
def test_the_estimate_costs_no_row_twice_and_changes_no_state(choice, tmp_path, captured, codec):
    told, progress = [], []
    info = extract(choice, spec(tmp_path / "told", codec), rows(), 64, progress.append, on_estimate=told.append)
    assert sorted(captured) == sorted(row.id for row in rows())
    [estimate] = told
    assert estimate.rows == ROWS - SAMPLE_ROWS and estimate.tokens_per_second > 0
    assert progress == sorted(progress) and progress[-1] == info["tokens"] == sum(len(row.input_ids) for row in rows())
    extract(choice, spec(tmp_path / "untold", codec), rows(), 64)
    stores = [FeatureStore(tmp_path / name) for name in ("told", "untold")]
    assert set(stores[0].ids) == set(stores[1].ids)
    for row_id in stores[0].ids:
        a, b = (store.row(row_id).aux_TAH.float() for store in stores)
        torch.testing.assert_close(a, b, rtol=2**-3, atol=1e-3)  # another batch: a step of the codec at most


class Clock:
    """Stands in for `time`: it goes on when it is told to."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        for module in (extract_module, estimate_module):
            monkeypatch.setattr(module, "time", self)

    def perf_counter(self):
        return self.now


def mixed():
    """Rows of 4 to 60 tokens; those of the sample, the first of every six, are short."""
    found = []
    for i in range(96):
        n = 4 + i % 3 if i % 6 == 0 else 10 + i * 11 % 50
        found.append(CaptureRow(f"r{i}", [1 + i % 7] * n, [[1, n]]))
    return found, sum(len(row.input_ids) for i, row in enumerate(found) if i % 6)


def test_what_the_rest_takes_stands_beside_what_was_foretold(choice, tmp_path, monkeypatch):
    """A machine of 40 tokens a second, that is 15 s late at the start."""
    clock, own = Clock(monkeypatch), EmbeddedEngine.capture

    def capture(self, rows, batch_tokens):
        clock.now += 15 * (clock.now == 0)
        for features in own(self, rows, batch_tokens):
            clock.now += len(features.input_ids_T) / 40
            yield features

    monkeypatch.setattr(EmbeddedEngine, "capture", capture)
    rows, rest = mixed()
    assert rest > 4 * 5 * 80  # by rows, the sample would say a quarter of this
    found = extract(choice, spec(tmp_path), rows, 64, on_estimate=lambda _: None)["rest"]
    assert (found["rows"], found["tokens"]) == (80, rest)
    assert found["estimated_s"] == pytest.approx(rest / 40, abs=0.02)
    assert found["seconds"] == pytest.approx(rest / 40, abs=0.02)
    assert "rest" not in extract(choice, spec(tmp_path), rows, 64, on_estimate=lambda _: None)  # nothing is missing


def test_a_disk_that_is_too_small_is_refused_before_the_bulk(choice, tmp_path, captured, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(DiskFullError, match="0.00 GB are free; use another disk"):
        extract(choice, spec(tmp_path / "store"), rows(), 64, on_estimate=lambda _: None)
    assert len(captured) == SAMPLE_ROWS
    monkeypatch.undo()
    info = extract(choice, spec(tmp_path / "store"), rows(), 64)  # there is room now: it goes on
    assert info["rows"] == ROWS and len(FeatureStore(tmp_path / "store")) == ROWS


def test_few_missing_rows_are_not_worth_an_estimate(choice, tmp_path):
    told = []
    extract(choice, spec(tmp_path), rows(2 * SAMPLE_ROWS), 64, on_estimate=told.append)
    assert told == []


def test_a_damaged_shard_is_captured_again_and_nothing_else(choice, tmp_path, captured):
    extract(choice, spec(tmp_path), rows(), 64)
    store = FeatureStore(tmp_path)
    lost = [row_id for row_id in store.ids if store.index(row_id)["shard"] == "shard-00-00001.safetensors"]
    kept = {row_id: store.row(row_id).aux_TAH for row_id in store.ids if row_id not in lost}
    (tmp_path / "shard-00-00001.safetensors").write_bytes(b"half a shard")
    with pytest.raises(ValueError, match=f"shard-00-00001.safetensors .*captures only the {len(lost)} rows"):
        FeatureStore(tmp_path)
    captured.clear()
    extract(choice, spec(tmp_path), rows(), 64)
    assert sorted(captured) == sorted(lost) and (quarantine_folder(tmp_path) / "shard-00-00001.safetensors").exists()
    again = FeatureStore(tmp_path)
    assert set(again.ids) == {row.id for row in rows()}
    assert all(torch.equal(again.row(row_id).aux_TAH, aux) for row_id, aux in kept.items())


def test_running_again_finds_damage_that_only_reading_finds(choice, tmp_path, captured):
    """The same size, other bytes: in two shards, one in the tokens and one in the last byte of the teacher."""
    extract(choice, spec(tmp_path), rows(), 64)
    before, names = FeatureStore(tmp_path), ("shard-00-00000.safetensors", "shard-00-00002.safetensors")
    lost = {row_id for row_id in before.ids if before.index(row_id)["shard"] in names}
    whole = {row_id: before.row(row_id).aux_TAH for row_id in before.ids}
    for name, place in zip(names, (-1, -2000), strict=True):
        data = bytearray((tmp_path / name).read_bytes())
        data[place] ^= 4
        (tmp_path / name).write_bytes(data)
    captured.clear()
    with pytest.warns(UserWarning, match="00000.safetensors .*checksum.*00002.safetensors .*captures only the"):
        extract(choice, spec(tmp_path), rows(), 64)
    assert set(captured) == lost and len(captured) == len(lost)
    again = FeatureStore(tmp_path)
    for row_id, aux in whole.items():
        torch.testing.assert_close(again.row(row_id).aux_TAH, aux, rtol=2**-7, atol=1e-3)
    captured.clear()
    extract(choice, spec(tmp_path), rows(), 64)  # nothing is wrong any more
    assert captured == []


def test_features_open_as_they_were_kept(choice, tmp_path):
    some = rows(6)
    extract(choice, spec(tmp_path / "store"), some, 10**6)
    write_plan(tmp_path / "plan", map(vars, some), {"corpus": "abc"}, LAYERS, HIDDEN, "bf16", "float32")
    store, live = open_features(tmp_path / "store", choice.target), open_features(tmp_path / "plan", choice.target)
    assert set(open_features(tmp_path / "store", choice.target, processes=2).ids) == set(store.ids)
    with pytest.raises(
        ValueError, match="processes=2, but .*plan keeps no states .* set processes to 1, or run notebook"
    ):
        open_features(tmp_path / "plan", "a target that is not loaded", processes=2)
    assert isinstance(store, FeatureStore) and set(live.ids) == set(store.ids) and live.aux_layers == LAYERS
    for row_id in live.ids:
        a, b = store.row(row_id), live.row(row_id)
        assert torch.equal(a.input_ids_T, b.input_ids_T) and torch.equal(a.last_slots, b.last_slots)
        torch.testing.assert_close(a.aux_TAH, b.aux_TAH, rtol=2**-7, atol=1e-3)  # bfloat16 of nearly the same float32


class StandIn:
    """A server that is always there, and the capture through it: rows go to a part of the store, session by session."""

    url, log = "http://127.0.0.1:1", None

    def __init__(self):
        self.sessions = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def capture(self, url, scratch, rows, store, on_row=None):
        writer = FeatureWriter(
            store.folder, store.fingerprint, store.aux_layers, store.hidden_size, codec=store.codec, part="w0"
        )
        report, taken = CaptureReport(), [row for row in rows if row.id not in writer.done_ids]
        self.sessions.append([row.id for row in taken])
        for row in taken:
            n = len(row.input_ids)
            states = torch.randn(n, 3, HIDDEN), torch.randn(n, HIDDEN)
            writer.add(row.id, row.input_ids, row.loss_spans, *states, row.split, row.set)
            report.tokens += n
            self.clock.now += n / 40
            if on_row is not None:
                on_row(report)
        writer.close()
        return report


@pytest.fixture
def served(choice, monkeypatch):
    server = StandIn()
    server.clock = Clock(monkeypatch)
    monkeypatch.setattr(extract_module, "SGLangServer", lambda *_: server)
    monkeypatch.setattr(extract_module, "capture_to_store", server.capture)
    return EngineChoice("sglang", choice.target, "float32", frozenset(), device="cpu"), server


def test_a_server_is_looked_at_by_a_sample_too(served, tmp_path):
    choice, server = served
    told, progress = [], []
    info = extract(choice, spec(tmp_path), rows(), 64, progress.append, tmp_path / "scratch", told.append)
    assert [len(session) for session in server.sessions] == [1, SAMPLE_ROWS - 1, ROWS - SAMPLE_ROWS]
    assert sorted(sum(server.sessions, [])) == sorted(row.id for row in rows())
    assert told[0].rows == ROWS - SAMPLE_ROWS and info["rows"] == ROWS
    lengths = {row.id: len(row.input_ids) for row in rows()}
    rest = sum(lengths[row_id] for row_id in server.sessions[-1])
    seconds = pytest.approx(rest / 40, abs=0.02)
    assert info["rest"] == {"rows": ROWS - SAMPLE_ROWS, "tokens": rest, "estimated_s": seconds, "seconds": seconds}
    assert progress == sorted(progress) and progress[-1] == info["tokens"]


def test_a_disk_too_small_for_a_servers_rows_is_refused(served, tmp_path, monkeypatch):
    choice, server = served
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(DiskFullError, match="GB are free"):
        extract(choice, spec(tmp_path), rows(), 64, scratch=tmp_path / "scratch", on_estimate=lambda _: None)
    assert sum(map(len, server.sessions)) == SAMPLE_ROWS


def test_servers_that_run_already_are_not_for_capture(tmp_path):
    choice = EngineChoice("sglang", tmp_path, "float32", frozenset(), ["http://127.0.0.1:1"])
    with pytest.raises(ValueError, match="capture needs a server that was started for it"):
        extract(choice, spec(tmp_path), rows(1), 64)
