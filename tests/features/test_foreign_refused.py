"""Files of a foreign dump that have the right number of values and mean something else; dumps not read on."""

import errno
from contextlib import closing

import pytest
import torch
from safetensors.torch import save_file

from eagle3lab.features import store as store_module
from eagle3lab.features.foreign import ForeignError, import_specforge, import_speculators
from eagle3lab.features.layout import DiskFullError
from eagle3lab.features.store import FeatureStore
from tests.features.rows import HIDDEN, make_row
from tests.features.test_foreign import save_specforge, specforge_tensors, speculators_tensors, writer_of


def states(shape, dtype=torch.bfloat16):
    return torch.ones(*shape, dtype=dtype)


T3 = len(make_row(3)[1])
WRONG = {  # what a file holds in the place of a good one's -> a word of the reason
    "a batch of two": (lambda t: {k: torch.stack([v.squeeze(0), v.squeeze(0)]) for k, v in t.items()}, "one row"),
    "layers first": (lambda _: {"aux_hidden_state": states((3, T3, HIDDEN))}, "aux_hidden_state has shape"),
    "channels first": (lambda _: {"aux_hidden_state": states((1, 3 * HIDDEN, T3))}, "aux_hidden_state has shape"),
    "last, channels first": (lambda _: {"hidden_state": states((1, HIDDEN, T3))}, "hidden_state has shape"),
    "eight bits": (lambda t: {"aux_hidden_state": t["aux_hidden_state"].to(torch.float8_e4m3fn)}, "float8_e4m3fn"),
    "whole states": (lambda _: {"hidden_state": states((1, T3, HIDDEN), torch.int32)}, "int32"),
    "bool states": (lambda _: {"hidden_state": states((1, T3, HIDDEN), torch.bool)}, "torch.bool"),
    "complex states": (lambda _: {"hidden_state": states((1, T3, HIDDEN), torch.complex64)}, "complex64"),
    "float ids": (lambda t: {"input_ids": t["input_ids"] + 0.7}, "not whole numbers"),
    "bool ids": (lambda t: {"input_ids": t["input_ids"] > 9}, "not whole numbers"),
    "ids of more than 32 bits": (lambda t: {"input_ids": t["input_ids"] + 2**40}, "token ids"),
    "negative ids": (lambda t: {"input_ids": -1 - t["input_ids"]}, "token ids"),
    "a mask that is NaN": (lambda _: {"loss_mask": torch.full((T3,), float("nan"))}, "other than 0 and 1"),
    "a weight for a mask": (lambda _: {"loss_mask": torch.full((T3,), 0.5)}, "other than 0 and 1"),
    "a short mask": (lambda _: {"loss_mask": torch.ones(T3 - 1)}, "loss_mask has shape"),
    "sparse states": (lambda t: {"hidden_state": t["hidden_state"].float().to_sparse()}, "sparse"),
}


@pytest.mark.parametrize("change, word", WRONG.values(), ids=WRONG)
def test_what_would_be_read_as_something_else_falls(tmp_path, change, word):
    good = specforge_tensors(3)
    save_specforge(tmp_path / "dump" / "a_wrong.ckpt", {**good, **change(good)})
    save_specforge(tmp_path / "dump" / "good.ckpt", good)
    summary = import_specforge(tmp_path / "dump", writer_of(tmp_path / "store"))
    assert summary.rows == 1 and [row["id"] for row in summary.fallen] == ["a_wrong"]
    assert word in summary.fallen[0]["reason"]


@pytest.mark.parametrize("padding", [1, 3])
def test_short_padding_on_the_left_is_told_by_a_mask_alone(tmp_path, padding):
    """Without one it is what the target saw before the row; with one that has all tokens, too."""
    good, dump = specforge_tensors(3, padding=2), tmp_path / "dump"
    left = {
        "input_ids": torch.cat([torch.zeros(padding, dtype=torch.long), good["input_ids"]]),
        "loss_mask": torch.cat([torch.zeros(padding, dtype=torch.long), good["loss_mask"]]),
        "hidden_state": torch.cat([torch.ones(1, padding, HIDDEN).bfloat16(), good["hidden_state"]], 1),
        "aux_hidden_state": torch.cat([torch.ones(1, padding, 3 * HIDDEN).bfloat16(), good["aux_hidden_state"]], 1),
    }
    seen_T = torch.ones(padding + T3 + 2, dtype=torch.long)
    right_T, left_T, hole_T = seen_T.clone(), seen_T.clone(), seen_T.clone()
    right_T[-2:], left_T[:padding], hole_T[padding + T3 - 1] = 0, 0, 0
    masks = {"all": seen_T, "right": right_T[None], "left": left_T, "hole": hole_T.bool(), "short": seen_T[1:]}
    for name, mask_T in masks.items():
        save_specforge(dump / f"{name}.ckpt", {**left, "attention_mask": mask_T})
    save_specforge(dump / "none.ckpt", left)
    with closing(writer_of(tmp_path / "store")) as writer:
        summary = import_specforge(dump, writer)
    reasons = {row["id"]: row["reason"] for row in summary.fallen}
    assert sorted(reasons) == ["hole", "left", "short"] and "attention_mask has shape" in reasons["short"]
    assert all("attention_mask leaves out tokens before the last trained" in reasons[name] for name in ("hole", "left"))
    for row in FeatureStore(tmp_path / "store").rows():
        assert torch.equal(row.input_ids_T, left["input_ids"][: padding + T3])
        assert torch.equal(row.aux_TAH.flatten(1), left["aux_hidden_state"][0, : padding + T3])


def test_two_files_of_one_id_are_told_apart_from_a_row_stored_before(tmp_path):
    save_specforge(tmp_path / "dump" / "data_0.ckpt", specforge_tensors(3))
    save_specforge(tmp_path / "dump" / "data_0.ckpt.gz", specforge_tensors(4))
    summary = import_specforge(tmp_path / "dump", writer_of(tmp_path / "store"))
    assert (summary.rows, summary.skipped) == (1, 0)
    assert "data_0.ckpt has the same id" in summary.fallen[0]["reason"] and summary.fallen[0]["file"].endswith(".gz")


def test_a_full_disk_ends_an_import_and_is_no_fault_of_a_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store_module, "write_blocks", full)
    save_specforge(tmp_path / "dump" / "data_0.ckpt", specforge_tensors(3))
    with pytest.raises(DiskFullError, match="1 rows"):
        import_specforge(tmp_path / "dump", writer_of(tmp_path / "store", shard_tokens=1))


def test_speculators_files_that_would_be_read_as_something_else_fall(tmp_path):
    dump, good, eight = tmp_path / "dump", speculators_tensors(3), speculators_tensors(3, fp8=True)
    dump.mkdir()
    wrong = {
        "whole states": ({**good, "hidden_states": good["hidden_states"].to(torch.int32)}, "int32"),
        "float ids": ({**good, "token_ids": good["token_ids"] + 0.5}, "not whole numbers"),
        "two scales": (
            {**eight, "hidden_states_scales": eight["hidden_states_scales"][:2].clone()},
            "one float a token",
        ),
        "no spans": (good, "loss_spans_of gave None"),
        "a number for spans": (good, "loss_spans_of gave 7"),
    }
    for i, (tensors, _) in enumerate(wrong.values()):
        save_file(tensors, dump / f"hs_{i}.safetensors")
    save_file(good, dump / "hs_9.safetensors")
    spans = dict.fromkeys(range(10), make_row(3)[2]) | {3: None, 4: 7}
    summary = import_speculators(dump, writer_of(tmp_path / "store"), torch.ones(HIDDEN), 1e-5, lambda i, _: spans[i])
    assert summary.rows == 1
    for fallen, (_, word) in zip(summary.fallen, wrong.values(), strict=True):
        assert word in fallen["reason"]


@pytest.mark.parametrize("norm_H", [torch.ones(1), torch.ones(HIDDEN + 1), torch.full((HIDDEN,), float("nan"))])
def test_a_norm_of_another_target_is_refused_before_anything_is_read(tmp_path, norm_H):
    with pytest.raises(ForeignError, match="not the final norm"):
        import_speculators(tmp_path, writer_of(tmp_path / "store"), norm_H, 1e-5, lambda *_: [])
