"""Rows of a store, written as speculators' dumps and read back; the package itself judges them in tests/interop."""

from collections import Counter

import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from eagle3lab.features.foreign import ForeignError, export_speculators, import_speculators
from eagle3lab.features.store import FeatureStore, FeatureWriter
from tests.features.rows import AUX_LAYERS, FINGERPRINT, HIDDEN, make_row

EPS = 1e-5
# the largest part of a state that a round trip may change: float32; bfloat16 three times (stored, divided, normed);
# fp8, where a large channel rounded by up to a sixteenth carries the whole state's length
ROUNDING = {"float32": 2e-5, "bf16": 3 * 2**-8, "fp8": 1 / 16}


def norm_of(seed=0, **channels):
    norm = LlamaRMSNorm(HIDDEN, eps=EPS)
    with torch.no_grad():
        norm.weight.copy_(torch.empty(HIDDEN).uniform_(-2, 2, generator=torch.Generator().manual_seed(seed)))
        norm.weight[3] = channels.get("third", norm.weight[3])
    return norm


def write_store(folder, codec, norm, numbers=range(6), loud=1.0, **changes):
    """A store whose last states came out of `norm`; channel 3 before it is `loud` times as large as the others."""
    writer = FeatureWriter(folder, FINGERPRINT, AUX_LAYERS, HIDDEN, codec=codec, **changes)
    for number in numbers:
        row_id, ids, spans, aux, last, *more = make_row(number)
        last[:, 3] *= loud
        writer.add(row_id, ids, spans, aux, norm(30 * last).detach(), *more)
    writer.close()
    return FeatureStore(folder)


def read_table(folder):
    with open(folder / "data-00000-of-00001.arrow", "rb") as file:
        return pa.ipc.open_stream(file).read_all().to_pylist()


@pytest.mark.parametrize("codec", ["float32", "bf16", "fp8"])
def test_what_is_exported_reads_back_with_the_same_teacher(tmp_path, codec):
    norm = norm_of()
    store = write_store(tmp_path / "store", codec, norm)
    assert export_speculators(store.rows(), tmp_path / "dump", norm.weight, EPS) == 6
    spans = [make_row(number)[2] for number in range(6)]
    writer = FeatureWriter(tmp_path / "again", FINGERPRINT, AUX_LAYERS, HIDDEN, codec="float32")
    summary = import_speculators(
        tmp_path / "dump" / "hidden_states", writer, norm.weight.detach(), EPS, lambda i, _: spans[i]
    )
    writer.close()
    assert (summary.rows, summary.fallen) == (6, [])
    compared = 0
    for ours, again in zip(store.rows(), FeatureStore(tmp_path / "again").rows(), strict=True):
        assert torch.equal(again.input_ids_T, ours.input_ids_T) and torch.equal(again.last_slots, ours.last_slots)
        assert torch.equal(again.aux_TAH, ours.aux_TAH.float())
        for state, expected in zip(again.last_MH, ours.last_MH.float(), strict=True):
            assert (state - expected).norm() <= ROUNDING[codec] * expected.norm()
            compared += 1
    assert compared > 20


def test_the_mask_asks_for_no_state_that_the_store_does_not_have(tmp_path):
    norm = norm_of()
    store = write_store(tmp_path / "store", "float32", norm)
    export_speculators(store.rows(), tmp_path / "dump", norm.weight, EPS)
    table, counted = read_table(tmp_path / "dump"), Counter()
    for i, (line, row) in enumerate(zip(table, store.rows(), strict=True)):
        _, ids, ((start, end),), *_ = make_row(i)
        T = len(ids)
        assert (line["id"], line["seq_len"], line["input_ids"]) == (row.id, T, ids.tolist())
        states = load_file(tmp_path / "dump" / "hidden_states" / f"hs_{i}.safetensors")["hidden_states"]
        assert states.shape == (T, len(AUX_LAYERS) + 1, HIDDEN)
        for t in range(T):
            # speculators asks for the state of slot t, which foretells token t + 1
            assert line["loss_mask"][t] == (start <= t and t + 1 < end)
            assert bool(states[t, -1].any()) == (start <= t + 1 < end)
        counted.update(ids[start:end].tolist())
    assert torch.load(tmp_path / "dump" / "token_freq.pt", weights_only=True) == counted


def test_tiny_weights_of_the_norm_are_no_harm_where_the_store_kept_what_they_left(tmp_path):
    norm = norm_of(third=1e-12)
    store = write_store(tmp_path / "store", "bf16", norm, loud=9)
    export_speculators(store.rows(), tmp_path / "dump", norm.weight, EPS)
    for i, row in enumerate(store.rows()):
        states = load_file(tmp_path / "dump" / "hidden_states" / f"hs_{i}.safetensors")["hidden_states"]
        for state, expected in zip(norm(states[row.last_slots, -1].float()), row.last_MH.float(), strict=True):
            assert (state - expected).norm() <= ROUNDING["bf16"] * expected.norm()
    lost = write_store(tmp_path / "lost", "fp8", norm, loud=9)
    with pytest.raises(ForeignError, match=r"'row-\d': .* root mean square of 0\.\d+, not 1.*rounding took channels"):
        export_speculators(lost.rows(), tmp_path / "other", norm.weight, EPS)


def refused(tmp_path, store, norm_H, match):
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ForeignError, match=match):
        export_speculators(store.rows(), tmp_path / "dump", norm_H, EPS)
    assert sorted(tmp_path.iterdir()) == before  # nothing is left of it


def test_exports_that_cannot_be_are_refused(tmp_path):
    norm = norm_of()
    store, weight_H = write_store(tmp_path / "store", "bf16", norm), norm.weight.detach()
    top = write_store(tmp_path / "top", "fp8+top4", norm, head_VH=torch.randn(50, HIDDEN))
    refused(tmp_path, top, weight_H, "'row-0' has a top-k teacher; speculators needs the last hidden state: extract")
    zero_H = weight_H.clone()
    zero_H[[2, 5]] = 0
    refused(tmp_path, store, zero_H, "2 weights of the final norm are zero or not finite")
    refused(tmp_path, store, torch.full((HIDDEN,), torch.nan), f"{HIDDEN} weights of the final norm are zero or not")
    refused(tmp_path, store, norm_of(seed=1).weight, "'row-0': .* not 1: it was stored after another norm")
    refused(tmp_path, store, torch.ones(2 * HIDDEN), "'row-0' has states of 16, the final norm is of 32")
    refused(tmp_path, write_store(tmp_path / "none", "bf16", norm, numbers=[]), weight_H, "no rows to write")
    (tmp_path / "dump").mkdir()
    refused(tmp_path, store, weight_H, "dump exists: name a new folder")
