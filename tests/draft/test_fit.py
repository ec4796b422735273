"""What does not fit together is refused before anything is trained, by name."""

import dataclasses

import pytest
import torch

from eagle3lab.draft.vocab import VocabError, VocabMap
from eagle3lab.features.layout import FeatureStoreError
from eagle3lab.features.store import FeatureStore, FeatureWriter
from tests.draft.jobs import RECIPE
from tests.tiny import HIDDEN, VOCAB


def store_of(folder, layers=(2, 4, 5), hidden=HIDDEN, tokens=VOCAB, head=None, fingerprint=None, split="train"):
    """Twelve rows of ten tokens below `tokens`."""
    codec = "bf16" if head is None else "fp8+top4"
    writer = FeatureWriter(folder, fingerprint or {}, list(layers), hidden, codec=codec, head_VH=head)
    generator = torch.Generator().manual_seed(5)
    for i in range(12):
        ids = torch.randint(0, tokens, (10,), generator=generator).tolist()
        aux, last = torch.randn(10, len(layers), hidden), torch.randn(10, hidden)
        writer.add(f"r{i}", ids, [[3, 10]], aux, last, split)
    writer.close()
    return folder


@pytest.fixture
def alone(job, tmp_path):
    """The job without held-out rows, in a folder of its own."""
    return dataclasses.replace(job, heldout_rows=0, evaluate_every=None, folder=tmp_path / "state")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"layers": (2, 40, 90)}, r"aux_layers=\[2, 40, 90\] are hs indices and must lie in 0..7"),
        ({"layers": (2, 5, 8)}, r"must lie in 0..7"),
        ({"hidden": 16}, f"hidden_size is 16 there, .* has {HIDDEN}"),
        ({"head": torch.zeros(VOCAB + 40, HIDDEN)}, f"vocab_size is {VOCAB + 40} there, .* has {VOCAB}"),
        ({"head": torch.zeros(VOCAB - 20, HIDDEN)}, f"vocab_size is {VOCAB - 20} there, .* has {VOCAB}"),
    ],
    ids=["layers above the target's", "a layer above", "hidden size", "a larger vocabulary", "a smaller vocabulary"],
)
def test_features_that_the_target_cannot_have_made(alone, tmp_path, change, message):
    features = store_of(tmp_path / "features", **change)
    with pytest.raises(FeatureStoreError, match=f"{features}: .*{message}") as refused:
        dataclasses.replace(alone, features=features).trainer()
    assert str(alone.target) in str(refused.value) and not (tmp_path / "state").exists()


def test_a_top_k_store_of_this_target_is_taken(alone, tmp_path):
    head = torch.randn(VOCAB, HIDDEN)
    one = dataclasses.replace(alone, features=store_of(tmp_path / "features", head=head))
    assert list(one.run(one.trainer()))


def test_a_token_that_the_target_does_not_have_names_its_row(alone, tmp_path):
    writer = FeatureWriter(tmp_path / "features", {}, [2, 4, 5], HIDDEN)
    for i in range(12):
        ids = [5] * 9 + [VOCAB + 3 if i == 7 else 5]
        writer.add(f"r{i}", ids, [[3, 10]], torch.randn(10, 3, HIDDEN), torch.randn(10, HIDDEN))
    writer.close()
    one = dataclasses.replace(alone, features=tmp_path / "features")
    with pytest.raises(ValueError, match=f"row 'r7' has token id {VOCAB + 3}, the target's run from 0 to {VOCAB - 1}"):
        list(one.run(one.trainer()))


def test_a_map_that_names_nothing_to_train(alone, tmp_path):
    """No corpus stands in it, so that only the rows can tell. The prompts' tokens do not count."""
    features = store_of(tmp_path / "features", tokens=30)
    VocabMap(torch.tensor([60, 61]), VOCAB).save(tmp_path / "other.safetensors")
    one = dataclasses.replace(alone, features=features, vocab_map=tmp_path / "other.safetensors")
    with pytest.raises(VocabError, match="other.safetensors names none of the tokens that 12 of 12 rows"):
        one.trainer()
    # slots whose token has no draft id are trained too when they are not dropped
    all_slots = dataclasses.replace(RECIPE, epochs=1, drop_oov=False)
    kept = dataclasses.replace(one, recipe=all_slots, folder=tmp_path / "kept")
    assert list(kept.run(kept.trainer()))[-1]["loss"] > 0
    # one token of one row is enough
    ids = FeatureStore(features).row("r11").input_ids_T
    answers = torch.cat([FeatureStore(features).row(f"r{i}").input_ids_T[5:] for i in range(11)])
    own = [int(token) for token in ids[5:] if token not in answers]
    assert own
    VocabMap(torch.tensor(sorted({own[0], 61})), VOCAB).save(tmp_path / "some.safetensors")
    dataclasses.replace(one, vocab_map=tmp_path / "some.safetensors").trainer()


def test_rows_that_are_not_there_are_counted_and_named(job):
    with pytest.raises(
        ValueError, match=r"row_ids: 4 of 6 are no training rows of .*features \('x0', 'x1', 'x2', ...\)"
    ):
        dataclasses.replace(job, row_ids=["r0", "x0", "x1", "r1", "x2", "x3"]).rows()
    with pytest.raises(ValueError, match=r"row_ids: 1 of 2 are no training rows of .*features \('r31'\)"):
        dataclasses.replace(job, row_ids=["r0", "r31"]).trainer()  # a held-out one
    short = dataclasses.replace(RECIPE, max_length=9, long_rows="drop")
    dropped = dataclasses.replace(job, recipe=short, row_ids=["r0", "r3"])  # r3 has eleven tokens
    assert dropped.rows().row_ids == ["r0"]
    with pytest.raises(ValueError, match="row_ids: none of the 1 rows of .*features has a slot to train"):
        dataclasses.replace(dropped, row_ids=["r3"]).rows()


def test_heldout_rows_that_the_features_do_not_have(job, tmp_path):
    one = dataclasses.replace(job, features=store_of(tmp_path / "features"), folder=tmp_path / "state")
    with pytest.raises(ValueError, match="heldout_rows=3, but .*features has no row of split 'heldout'"):
        one.trainer()


@pytest.mark.parametrize(
    "change",
    [
        {"keep": 0},
        {"keep": -1},
        {"log_every": 0},
        {"checkpoint_every": 0},
        {"evaluate_every": 0},
        {"num_steps": 0},
        {"heldout_rows": -1},
        {"device": "gpu"},
        {"device": "cuda:1"},
    ],
    ids=str,
)
def test_a_rhythm_or_device_that_cannot_be_meant(job, change):
    with pytest.raises(ValueError, match=next(iter(change))):
        dataclasses.replace(job, **change)


def test_a_gpu_that_is_not_there_is_said(job, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match="device='cuda', but torch sees no GPU on this machine: set device='cpu'"):
        dataclasses.replace(job, device="cuda").trainer()
