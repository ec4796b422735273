"""Rows that are captured when they are read look as if they came from a store, and train to the same weights."""

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.rows import training_rows
from eagle3lab.draft.train import Trainer
from eagle3lab.draft.train_job import TrainJob
from eagle3lab.draft.vocab import VocabMap
from eagle3lab.engines.embedded import EmbeddedEngine
from eagle3lab.features.layout import FeatureStoreError
from eagle3lab.features.live import LiveFeatures, write_plan
from eagle3lab.features.store import FeatureStore, FeatureWriter
from tests.draft.samples import A, H, V, make_draft
from tests.features.rows import FINGERPRINT
from tests.tiny import HIDDEN, VOCAB, save_tiny_target


def corpus():
    rows = []
    for number in range(12):
        generator = torch.Generator().manual_seed(number)
        T = 8 + number % 5
        ids = torch.randint(0, V, (T,), generator=generator).tolist()
        split = "heldout" if number == 7 else "train"
        rows.append({"id": f"r{number}", "input_ids": ids, "loss_spans": [[3, T]], "split": split, "set": "a"})
    return rows


def capture(pairs):
    """States that depend on the tokens alone."""
    for row_id, ids in pairs:
        generator = torch.Generator().manual_seed(sum(ids))
        aux, last = torch.randn(len(ids), A, H, generator=generator), torch.randn(len(ids), H, generator=generator)
        yield SimpleNamespace(id=row_id, aux_TAH=aux, last_TH=last)


def sources(folder, codec):
    head = torch.randn(V, H, generator=torch.Generator().manual_seed(9)) if "top" in codec else None
    writer = FeatureWriter(folder, FINGERPRINT, [2, 4, 5], H, codec=codec, head_VH=head)
    rows = corpus()
    by_id = {row["id"]: row for row in rows}
    for states in capture((row["id"], row["input_ids"]) for row in rows):
        row = by_id[states.id]
        spans_and_states = (row["loss_spans"], states.aux_TAH, states.last_TH)
        writer.add(row["id"], row["input_ids"], *spans_and_states, row["split"], row["set"])
    writer.close()
    return FeatureStore(folder), LiveFeatures(rows, capture, [2, 4, 5], H, codec, head)


@pytest.mark.parametrize("codec", ["float32", "bf16", "fp8", "fp8+top5"])
def test_live_rows_equal_stored_rows(tmp_path, codec):
    store, live = sources(tmp_path, codec)
    assert (live.ids, len(live), live.aux_layers, live.hidden_size) == (store.ids, 12, store.aux_layers, H)
    for row_id in store.ids:
        assert live.index(row_id).items() <= store.index(row_id).items()
    for stored, captured in zip(store.rows(order=3), live.rows(order=3), strict=True):
        for (name, one), other in zip(vars(stored).items(), vars(captured).values(), strict=True):
            if name == "top":
                assert one is other is None or all(map(torch.equal, one, other))
            elif isinstance(one, torch.Tensor):
                assert one.dtype == other.dtype and torch.equal(one, other), name
            else:
                assert one == other, name


@pytest.mark.parametrize("codec", ["float32", "bf16", "fp8+top5"])
def test_training_without_a_store_gives_the_same_weights(tmp_path, codec):
    recipe = Recipe(epochs=2, batch_tokens=40, compute_dtype="float32", lr=1e-2, head_lr=1e-2)
    weights = []
    for name, source in zip(("store", "live"), sources(tmp_path / "features", codec), strict=True):
        lengths = training_rows(source, "train", recipe).lengths
        draft = make_draft()
        head = torch.randn(V, H, generator=torch.Generator().manual_seed(9))
        trainer = Trainer(draft, lengths, source.row, head, recipe, tmp_path / name)
        assert list(trainer.run())
        weights.append([parameter.detach() for parameter in draft.parameters()])
    assert all(map(torch.equal, *weights))
    assert not all(map(torch.equal, weights[0], make_draft().parameters()))


@pytest.mark.parametrize("codec", ["float32", "fp8", "fp8+top5"])
def test_training_on_a_real_target_without_a_store_gives_the_same_weights(tmp_path, codec):
    """A store of rows captured one at a time: in batches their states differ by the target's rounding."""
    target, layers = save_tiny_target(tmp_path / "target"), [2, 4, 5]
    rows = [row | {"input_ids": [token % VOCAB for token in row["input_ids"]]} for row in corpus()]
    by_id = {row["id"]: row for row in rows}
    engine = EmbeddedEngine(target, "float32", layers)
    head = engine.lm_head_VH if "top" in codec else None
    writer = FeatureWriter(tmp_path / "store", {}, layers, HIDDEN, codec=codec, head_VH=head)
    for states in engine.capture(((row["id"], row["input_ids"]) for row in rows), batch_tokens=1):
        row = by_id[states.id]
        spans_and_states = (row["loss_spans"], states.aux_TAH, states.last_TH)
        writer.add(row["id"], row["input_ids"], *spans_and_states, row["split"], row["set"])
    writer.close()
    live = LiveFeatures(rows, lambda pairs: engine.capture(pairs, 512), layers, HIDDEN, codec, head)
    VocabMap(torch.arange(VOCAB), VOCAB).save(tmp_path / "vocab.safetensors")
    recipe = Recipe(epochs=2, batch_tokens=40, compute_dtype="float32", lr=1e-2, head_lr=1e-2)
    weights = {}
    for name, source in (("start", live), ("stored", FeatureStore(tmp_path / "store")), ("live", live)):
        job = TrainJob(target, tmp_path / "store", tmp_path / "vocab.safetensors", tmp_path / name, recipe)
        trainer = job.trainer(source=source)
        assert name == "start" or list(job.run(trainer))
        weights[name] = [parameter.detach() for parameter in trainer.draft.parameters()]
    assert all(map(torch.equal, weights["stored"], weights["live"]))
    assert not any(map(torch.equal, weights["stored"], weights["start"]))


@pytest.mark.parametrize("codec", ["bf16", "fp8+top5"])
def test_a_plan_in_a_stores_place_gives_the_same_rows(tmp_path, codec):
    head = torch.randn(V, H, generator=torch.Generator().manual_seed(9))
    info = write_plan(tmp_path / "features", corpus(), FINGERPRINT, [2, 4, 5], H, codec, "float32")
    live = LiveFeatures.open(tmp_path / "features", capture, head)
    direct = LiveFeatures(corpus(), capture, [2, 4, 5], H, codec, head if "top" in codec else None)
    assert live.ids == direct.ids and live.fingerprint == FINGERPRINT and live.codec == direct.codec
    for one, other in zip(live.rows(), direct.rows(), strict=True):
        assert (one.id, one.split, one.set) == (other.id, other.split, other.set)
        assert torch.equal(one.aux_TAH, other.aux_TAH) and torch.equal(one.loss_mask_T, other.loss_mask_T)
    lengths = [len(row["input_ids"]) for row in corpus()]
    # teachers stand before the tokens 3 .. T-1
    assert (info["rows"], info["tokens"], info["teacher_slots"]) == (12, sum(lengths), sum(n - 3 for n in lengths))
    assert info["bytes"] == (tmp_path / "features" / "rows.jsonl").stat().st_size
    with pytest.raises(FeatureStoreError, match='holds no states.*extract with features "store"'):
        FeatureStore(tmp_path / "features")


def test_a_bad_plan_leaves_nothing(tmp_path):
    rows = corpus()
    rows[4]["loss_spans"] = [[3, 99]]
    with pytest.raises(ValueError, match="row 'r4': loss span"):
        write_plan(tmp_path / "features", rows, FINGERPRINT, [2, 4, 5], H, "bf16", "float32")
    with pytest.raises(ValueError, match="codec='bf17'"):
        write_plan(tmp_path / "features", corpus(), FINGERPRINT, [2, 4, 5], H, "bf17", "float32")
    assert list(tmp_path.iterdir()) == []


def test_one_thread_at_a_time_captures(tmp_path):
    """A target's forward pass is tapped: two at once would take each other's states."""
    inside, most = [], []

    def slow(pairs):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.001)
        result = list(capture(pairs))
        inside.pop()
        return result

    live = LiveFeatures(corpus(), slow, [2, 4, 5], H)
    with ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(live.row, live.ids * 3))
    assert max(most) == 1 and [row.id for row in rows] == live.ids * 3


def test_bad_corpora_are_refused():
    rows = corpus()
    with pytest.raises(ValueError, match="'r3' stands twice"):
        LiveFeatures([*rows, rows[3]], capture, [2, 4, 5], H)
    live = LiveFeatures(rows, capture, [2, 4, 5], H)
    with pytest.raises(KeyError, match="no row 'x'"):
        live.row("x")
    with pytest.raises(ValueError, match="needs head_VH"):
        LiveFeatures(rows, capture, [2, 4, 5], H, "fp8+top4")
    with pytest.raises(ValueError, match="'r0' has .* aux states"):
        LiveFeatures(rows, capture, [2, 4], H).row("r0")
