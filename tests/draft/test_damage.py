"""Damaged checkpoints: whatever was lost or changed in one, nothing goes on from it without a word."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3lab.draft.state import BEST, StateError, checkpoints, load_best
from eagle3lab.draft.train import Trainer
from tests.draft.samples import make_draft, make_row
from tests.draft.test_train import RECIPE, weights_of


def trainer(folder, head, draft=None):
    rows = {f"r{i}": make_row(i, 6 + i % 9, [(2, 6 + i % 9)]) for i in range(12)}
    lengths = {key: row.input_ids_T.shape[0] for key, row in rows.items()}
    return Trainer(draft or make_draft(), lengths, rows.__getitem__, head, RECIPE, folder, heldout=["r1", "r3"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished training with its best weights."""
    head = torch.randn(40, 16, generator=torch.Generator().manual_seed(9))
    folder = tmp_path_factory.mktemp("trained") / "state"
    list(trainer(folder, head).run(checkpoint_every=2, evaluate_every=4))
    return folder


@pytest.fixture
def folder(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "state")


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


def refuse(folder, head, message):
    """The training does not go on, and the drafter is as it was."""
    draft = make_draft()
    with pytest.raises(StateError, match=message):
        trainer(folder, head, draft)
    assert all(torch.equal(p, weights_of(make_draft())[name]) for name, p in draft.named_parameters())


def newest_and_before(folder):
    *_, before, newest = checkpoints(folder)
    return newest, before


@pytest.mark.parametrize("name", ["state.safetensors", "state.json", "crc32.json"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.9, 0.999])
def test_a_changed_byte_anywhere_is_found(folder, head, name, share):
    newest, before = newest_and_before(folder)
    flip(newest / name, int(share * (newest / name).stat().st_size))
    refuse(folder, head, f"{newest}/state.* (is damaged|cannot be).*remove {newest} to go on from {before.name}")
    shutil.rmtree(newest)
    assert trainer(folder, head).step == int(before.name.removeprefix("step-"))
    shutil.rmtree(before)
    assert trainer(folder, head).step == 0


@pytest.mark.parametrize("name", ["state.safetensors", "state.json"])
@pytest.mark.parametrize("recorded", [True, False])
def test_a_missing_or_cut_file_is_found(folder, head, name, recorded):
    newest, _ = newest_and_before(folder)
    if not recorded:
        (newest / "crc32.json").unlink()
    data = (newest / name).read_bytes()
    for end in (0, 50, len(data) - 2):
        (newest / name).write_bytes(data[:end])
        refuse(folder, head, f"{newest}/{name} .*remove {newest} to go on")
    (newest / name).unlink()
    refuse(folder, head, f"{newest}/{name} cannot be .*remove {newest} to go on")


def test_a_checkpoint_from_before_the_checksums_goes_on(folder, head):
    newest, _ = newest_and_before(folder)
    expected = trainer(folder, head)
    (newest / "crc32.json").unlink()
    found = trainer(folder, head)
    assert found.step == expected.step == expected.total_steps
    assert all(torch.equal(a, b) for a, b in zip(expected.draft.parameters(), found.draft.parameters(), strict=True))


def put(key, value):
    return lambda tensors: tensors.__setitem__(key, value)


def drop(part):
    return lambda tensors: [tensors.pop(key) for key in list(tensors) if part in key]


CHANGES = {
    "NaN weight": (lambda t: t["weight/fc.weight"][3, 4].fill_(float("nan")), "weight/fc.weight holds NaN or Inf"),
    "Inf moment": (lambda t: t["optimizer/norm.weight/exp_avg"][2].fill_(float("inf")), "exp_avg holds NaN or Inf"),
    "a weight that would be spread": (
        put("weight/fc.weight", torch.zeros(1, 1)),
        r"fc.weight is torch.float32 \(1, 1\)",
    ),
    "a moment that would be spread": (
        put("optimizer/norm.weight/exp_avg_sq", torch.ones(1)),
        r"exp_avg_sq is .* \(1,\)",
    ),
    "another dtype": (put("weight/norm.weight", torch.ones(16).bfloat16()), "norm.weight is torch.bfloat16"),
    "no moments": (drop("optimizer/"), "lacks .*optimizer/fc.weight/momentum_buffer"),
    "one moment less": (drop("optimizer/norm.weight/step"), r"lacks \['optimizer/norm.weight/step'\]"),
    "one weight less": (drop("weight/norm.weight"), "lacks .*'weight/norm.weight'"),
    "one weight more": (put("weight/fc_norm.0.weight", torch.ones(16)), r"has besides \['weight/fc_norm.0.weight'\]"),
}


@pytest.mark.parametrize("change, message", CHANGES.values(), ids=CHANGES)
def test_other_tensors_are_refused_where_no_checksum_tells(folder, head, change, message):
    newest, before = newest_and_before(folder)
    tensors = load_file(newest / "state.safetensors")
    change(tensors)
    save_file(tensors, newest / "state.safetensors")
    (newest / "crc32.json").unlink()
    refuse(folder, head, f"{newest}/state.safetensors .*{message}.*; remove {newest} to go on from {before.name}")


@pytest.mark.parametrize("text", [b"[]", b"\xff\xfe", b"{}", b'{"step": "2", "identity": {}, "progress": {}}'])
def test_other_facts_are_refused_where_no_checksum_tells(folder, head, text):
    newest, before = newest_and_before(folder)
    (newest / "state.json").write_bytes(text)
    (newest / "crc32.json").unlink()
    refuse(folder, head, f"{newest}/state.json .*; remove {newest} to go on from {before.name}")


def refuse_best(folder, message, draft=None):
    draft = draft or make_draft()
    before = weights_of(draft)
    with pytest.raises(StateError, match=f"{checkpoints(folder, BEST)[-1]}/.*{message}.*export_best=False"):
        load_best(folder, draft)
    assert all(torch.equal(p, before[name]) for name, p in draft.named_parameters())


def test_damaged_best_weights_are_refused(folder):
    [best] = checkpoints(folder, BEST)
    for name in ("weights.safetensors", "best.json"):
        whole = (best / name).read_bytes()
        flip(best / name, len(whole) // 2)
        refuse_best(folder, f"{name} is damaged: its checksum")
        (best / name).write_bytes(whole[: len(whole) // 2])
        refuse_best(folder, name)
        (best / name).unlink()
        refuse_best(folder, name)
        (best / name).write_bytes(whole)
    assert load_best(folder, make_draft()) == json.loads((best / "best.json").read_text())


@pytest.mark.parametrize("recorded", [True, False])
def test_the_best_weights_of_another_drafter_are_refused(folder, head, tmp_path, recorded):
    """Also where it has a weight more than this one, which would be dropped."""
    of_norms = tmp_path / "norms"
    list(trainer(of_norms, head, make_draft(fc_norm=True)).run(evaluate_every=4))
    if not recorded:
        for path in (folder, of_norms):
            (checkpoints(path, BEST)[-1] / "crc32.json").unlink()
    refuse_best(
        folder,
        r"does not fit .*layernorm.weight is torch.float32 \(16,\), not torch.float32 \(12,\)",
        make_draft(hidden_size=12),
    )
    refuse_best(folder, r"lacks \['fc_norm.0.weight'", make_draft(fc_norm=True))
    refuse_best(of_norms, r"has besides \['fc_norm.0.weight'")
    load_best(folder, make_draft())
