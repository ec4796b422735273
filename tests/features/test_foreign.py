"""Dumps of other frameworks, written here as those frameworks write them, into the store and out again."""

import gzip
import pickle

import pytest
import torch
from safetensors.torch import save_file
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from eagle3lab.features.foreign import (
    ForeignError,
    export_specforge,
    import_specforge,
    import_speculators,
    mask_to_spans,
)
from eagle3lab.features.foreign_read import rms_norm
from eagle3lab.features.store import FeatureStore, FeatureWriter
from tests.features.rows import AUX_LAYERS, FINGERPRINT, HIDDEN, make_row

PAD = 0


def writer_of(folder, codec="bf16", **changes):
    return FeatureWriter(folder, FINGERPRINT, changes.pop("aux_layers", AUX_LAYERS), HIDDEN, codec=codec, **changes)


def specforge_tensors(number, padding=0):
    """A row as SpecForge's prepare_hidden_states leaves it: batch dimension on the states, padding without a mask."""
    _, ids, ((start, end),), aux, last, *_ = make_row(number)
    T = len(ids)
    mask = torch.zeros(T + padding, dtype=torch.long)
    mask[start:end] = 1
    return {
        "input_ids": torch.cat([ids, torch.full((padding,), PAD)]),
        "loss_mask": mask,
        "hidden_state": torch.cat([last, torch.randn(padding, HIDDEN)]).bfloat16()[None],
        "aux_hidden_state": torch.cat([aux.flatten(1), torch.randn(padding, 3 * HIDDEN)]).bfloat16()[None],
    }


def save_specforge(path, tensors):
    path.parent.mkdir(parents=True, exist_ok=True)
    with (gzip.open if path.suffix == ".gz" else open)(path, "wb") as file:
        torch.save(tensors, file)


def test_specforge_rows_are_read_and_their_padding_cut(tmp_path):
    dump = tmp_path / "dump"
    save_specforge(dump / "rows_0-2" / "data_0.ckpt", specforge_tensors(3))
    save_specforge(dump / "rows_0-2" / "data_1.ckpt.gz", specforge_tensors(4, padding=7))
    writer = writer_of(tmp_path / "store")
    summary = import_specforge(dump, writer)
    writer.close()
    assert (summary.rows, summary.cut_tokens, summary.fallen) == (2, 7, [])
    store = FeatureStore(tmp_path / "store")
    assert store.ids == ["rows_0-2/data_0", "rows_0-2/data_1"]
    for row, number in zip(store.rows(), (3, 4), strict=True):
        _, ids, ((start, end),), aux, last, *_ = make_row(number)
        assert torch.equal(row.input_ids_T, ids) and row.loss_mask_T.nonzero().flatten().tolist() == list(
            range(start, end)
        )
        assert torch.equal(row.aux_TAH, aux.bfloat16())
        assert torch.equal(row.last_MH, last.bfloat16()[row.last_slots])


def test_an_import_goes_on_where_it_was_cut_off(tmp_path):
    for number in range(4):
        save_specforge(tmp_path / "dump" / f"data_{number}.ckpt", specforge_tensors(number))
    first = writer_of(tmp_path / "store")
    (tmp_path / "dump" / "data_3.ckpt").rename(tmp_path / "later")
    import_specforge(tmp_path / "dump", first)
    first.close()
    (tmp_path / "later").rename(tmp_path / "dump" / "data_3.ckpt")
    again = writer_of(tmp_path / "store")
    summary = import_specforge(tmp_path / "dump", again)
    assert (summary.rows, summary.skipped) == (1, 3)


class Evil:
    def __reduce__(self):
        return (print, ("run",))


def test_bad_files_fall_with_their_reason_and_the_rest_is_kept(tmp_path):
    dump = tmp_path / "dump"
    save_specforge(dump / "good.ckpt", specforge_tensors(3))
    save_specforge(dump / "untrained.ckpt", {**specforge_tensors(3), "loss_mask": torch.zeros(len(make_row(3)[1]))})
    save_specforge(dump / "keys.ckpt", {"input_ids": torch.arange(3)})
    save_specforge(dump / "wide.ckpt", {**specforge_tensors(3), "hidden_state": torch.zeros(1, 5, 2 * HIDDEN)})
    nan = specforge_tensors(3)
    nan["aux_hidden_state"][0, 0, HIDDEN] = float("nan")
    save_specforge(dump / "nan.ckpt", nan)
    left = specforge_tensors(3)
    left["input_ids"] = torch.cat([torch.full((5,), PAD), left["input_ids"]])
    left["loss_mask"] = torch.cat([torch.zeros(5, dtype=torch.long), left["loss_mask"]])
    left["hidden_state"] = torch.cat([torch.zeros(1, 5, HIDDEN), left["hidden_state"]], 1)
    left["aux_hidden_state"] = torch.cat([torch.zeros(1, 5, 3 * HIDDEN), left["aux_hidden_state"]], 1)
    save_specforge(dump / "left.ckpt", left)
    (dump / "evil.ckpt").write_bytes(pickle.dumps(Evil(), protocol=2))
    (dump / "cut.ckpt").write_bytes((dump / "good.ckpt").read_bytes()[:700])
    (dump / "cut.ckpt.gz").write_bytes(gzip.compress((dump / "good.ckpt").read_bytes())[:300])
    summary = import_specforge(dump, writer_of(tmp_path / "store"))
    assert summary.rows == 1
    reasons = {row["id"] + row["file"][-3:]: row["reason"] for row in summary.fallen}
    assert "the loss mask is all zero" in reasons["untrainedkpt"]
    assert "no tensor loss_mask, hidden_state, aux_hidden_state" in reasons["keyskpt"]
    assert "hidden_state has shape (1, 5, 32)" in reasons["widekpt"] and "hidden size 16" in reasons["widekpt"]
    assert "'nan': aux layer hs[4] is NaN" in reasons["nankpt"]
    assert "padded on the left" in reasons["leftkpt"]
    for name in ("evilkpt", "cutkpt", "cut.gz"):
        assert "not a file of tensors" in reasons[name]
    assert len(summary.fallen) == 8 and sum(summary.reasons().values()) == 8


def test_one_row_is_read_with_and_without_the_dimension_of_a_batch(tmp_path):
    good, T = specforge_tensors(3), len(make_row(3)[1])
    save_specforge(tmp_path / "dump" / "batched.ckpt", {k: v.reshape(1, T, -1).squeeze(-1) for k, v in good.items()})
    save_specforge(tmp_path / "dump" / "flat.ckpt", {k: v.squeeze(0) for k, v in good.items()})
    writer = writer_of(tmp_path / "store")
    assert import_specforge(tmp_path / "dump", writer).rows == 2
    writer.close()
    for row in FeatureStore(tmp_path / "store").rows():
        assert torch.equal(row.aux_TAH, make_row(3)[3].bfloat16())


def test_a_dump_of_another_layer_count_is_refused_as_a_whole(tmp_path):
    save_specforge(tmp_path / "dump" / "data_0.ckpt", specforge_tensors(3))
    with pytest.raises(ForeignError, match="none of 1 files can be used.*4 aux layers"):
        import_specforge(tmp_path / "dump", writer_of(tmp_path / "store", aux_layers=[1, 2, 3, 4]))
    with pytest.raises(ForeignError, match="holds no files"):
        import_specforge(tmp_path / "nothing", writer_of(tmp_path / "other"))


@pytest.mark.parametrize("compress", [False, True])
def test_what_is_exported_for_specforge_reads_back(tmp_path, compress):
    writer = writer_of(tmp_path / "store")
    for number in range(6):
        writer.add(*make_row(number))
    writer.close()
    store = FeatureStore(tmp_path / "store")
    assert export_specforge(store.rows(), tmp_path / "dump", compress) == 6
    for row in store.rows():
        path = tmp_path / "dump" / f"{row.id}.ckpt{'.gz' if compress else ''}"
        with (gzip.open if compress else open)(path, "rb") as file:
            tensors = torch.load(file, weights_only=True)
        T = len(row.input_ids_T)
        assert {key: tuple(tensor.shape) for key, tensor in tensors.items()} == {
            "input_ids": (T,),
            "loss_mask": (T,),
            "hidden_state": (1, T, HIDDEN),
            "aux_hidden_state": (1, T, 3 * HIDDEN),
        }
        _, ids, ((start, end),), aux, last, *_ = make_row(int(row.id[4:]))
        assert torch.equal(tensors["aux_hidden_state"][0], aux.flatten(1).bfloat16())
        for t in range(T):
            trained = bool(tensors["loss_mask"][t])
            # x_t was generated, and the state of slot t + 1, which SpecForge takes as its teacher, was stored
            assert trained == (start <= t and t + 2 < end)
            if trained:
                assert torch.equal(tensors["hidden_state"][0, t + 1], last[t + 1].bfloat16())


def test_exports_that_cannot_be_are_refused(tmp_path):
    head = torch.randn(50, HIDDEN)
    writer = writer_of(tmp_path / "top", "fp8+top4", head_VH=head)
    writer.add(*make_row(3))
    writer.close()
    with pytest.raises(ForeignError, match="'row-3' has a top-k teacher"):
        export_specforge(FeatureStore(tmp_path / "top").rows(), tmp_path / "dump")
    writer = writer_of(tmp_path / "store")
    writer.add("../../out", *make_row(3)[1:])
    writer.close()
    with pytest.raises(ForeignError, match="leads out of"):
        export_specforge(FeatureStore(tmp_path / "store").rows(), tmp_path / "dump")


def speculators_tensors(number, fp8=False):
    """A row as speculators' connectors write it; the states before the final norm, of which `last` is the last."""
    _, ids, _, aux, last, *_ = make_row(number)
    states = torch.cat([aux, last[:, None]], 1)
    if not fp8:
        return {"token_ids": ids, "hidden_states": states.bfloat16()}
    scales = states.abs().amax((1, 2), keepdim=True) / 448
    return {
        "token_ids": ids,
        "hidden_states": (states / scales).to(torch.float8_e4m3fn),
        "hidden_states_scales": scales,
    }


@pytest.mark.parametrize("fp8", [False, True])
def test_speculators_rows_are_read_and_the_final_norm_applied(tmp_path, fp8):
    (tmp_path / "dump").mkdir()
    for number in (2, 10):
        save_file(speculators_tensors(number, fp8), tmp_path / "dump" / f"hs_{number}.safetensors")
    norm = LlamaRMSNorm(HIDDEN, eps=1e-5)
    torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    writer = writer_of(tmp_path / "store", "float32")
    spans = {number: make_row(number)[2] for number in (2, 10)}
    summary = import_speculators(tmp_path / "dump", writer, norm.weight.detach(), 1e-5, lambda i, ids: spans[i])
    writer.close()
    assert (summary.rows, summary.fallen) == (2, [])
    store = FeatureStore(tmp_path / "store")
    assert store.ids == ["hs_2", "hs_10"]
    for row, number in zip(store.rows(), (2, 10), strict=True):
        _, ids, _, aux, last, *_ = make_row(number)
        assert torch.equal(row.input_ids_T, ids)
        if fp8:
            bound = torch.cat([aux, last[:, None]], 1).abs().amax((1, 2))[:, None, None] / 448 * 2**-9
            assert bool(((row.aux_TAH - aux).abs() <= (aux.abs() / 16).maximum(bound)).all())
        else:
            assert torch.equal(row.aux_TAH, aux.bfloat16().float())
            expected = norm(last.bfloat16().float()).detach()[row.last_slots]
            torch.testing.assert_close(row.last_MH, expected, rtol=1e-6, atol=1e-6)


def test_bad_speculators_files_fall(tmp_path):
    dump = tmp_path / "dump"
    dump.mkdir()
    good = speculators_tensors(3)
    save_file(good, dump / "hs_0.safetensors")
    save_file({**good, "hidden_states": good["hidden_states"][:, :3].contiguous()}, dump / "hs_1.safetensors")
    save_file({"hidden_states": good["hidden_states"]}, dump / "hs_2.safetensors")
    save_file({**good, "hidden_states": good["hidden_states"].to(torch.float8_e4m3fn)}, dump / "hs_3.safetensors")
    (dump / "hs_4.safetensors").write_bytes(b"cut")
    save_file(good, dump / "hs_5.safetensors")
    (dump / "hs_x.safetensors").write_bytes(b"not one of the dump")
    spans = {i: make_row(3)[2] for i in range(5)} | {5: [[0, 999]]}
    summary = import_speculators(dump, writer_of(tmp_path / "store"), torch.ones(HIDDEN), 1e-5, lambda i, _: spans[i])
    assert summary.rows == 1
    reasons = {row["id"]: row["reason"] for row in summary.fallen}
    assert "expected (" in reasons["hs_1"] and "no tensor token_ids" in reasons["hs_2"]
    assert "without scales" in reasons["hs_3"] and "not a safetensors file" in reasons["hs_4"]
    assert "loss span [0, 999)" in reasons["hs_5"] and len(reasons) == 5


def test_rms_norm_by_hand():
    # mean square of (3, 4) is 12.5
    got = rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), 0.0)
    torch.testing.assert_close(got, torch.tensor([[3 / 12.5**0.5, 8 / 12.5**0.5]]))


@pytest.mark.parametrize(
    "mask, spans", [([], []), ([0, 0], []), ([1], [[0, 1]]), ([0, 1, 1, 0, 1], [[1, 3], [4, 5]]), ([1, 1], [[0, 2]])]
)
def test_masks_as_spans(mask, spans):
    assert list(mask_to_spans(torch.tensor(mask, dtype=torch.bool))) == spans
