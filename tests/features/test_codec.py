"""Codecs: round trips within the stated bounds, sizes as stated, and what the files look like to safetensors itself."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from eagle3lab.features.checks import NonFiniteStateError
from eagle3lab.features.codec import Codec, decode_states, decode_top, encode_states, encode_top, power_of_two
from eagle3lab.features.store import FeatureStore, FeatureWriter
from tests.features.rows import AUX_LAYERS, FINGERPRINT, HIDDEN, make_row

# huge, tiny, subnormal and usual values of bfloat16
VALUES = st.one_of(
    st.floats(-100, 100, width=32),
    st.floats(-(2.0**127), 2.0**127, width=32),
    st.floats(-(2.0**-100), 2.0**-100, width=32),
    st.sampled_from([0.0, -0.0, 1e-40, 2.0**-126, -(2.0**-127), 448.0, 449.0, 464.0, 480.0, 3.3e38]),
)
VECTORS = st.lists(VALUES, min_size=6, max_size=6).map(lambda values: torch.tensor(values).bfloat16())


@given(st.lists(VECTORS, min_size=1, max_size=5))
@settings(deadline=None)
def test_fp8_is_within_its_stated_bound(vectors):
    states = torch.stack(vectors)
    stored = encode_states("fp8", "aux", states)
    assert {name: tensor.dtype for name, tensor in stored.items()} == {
        "aux": torch.float8_e4m3fn,
        "aux_exponent": torch.int8,
    }
    back = decode_states("fp8", "aux", stored)
    assert back.dtype == torch.bfloat16 and back.shape == states.shape
    for x_H, y_H in zip(states.double().tolist(), back.double().tolist(), strict=True):
        step = max(max(map(abs, x_H)) / 448 * 2**-8, 2.0**-126)
        for x, y in zip(x_H, y_H, strict=True):
            assert math.isfinite(y) and abs(y - x) <= max(abs(x) / 16, step / 2)


@given(st.lists(VECTORS, min_size=1, max_size=3))
@settings(deadline=None)
def test_what_was_decoded_is_encoded_to_the_same(vectors):
    """Storing twice costs no more than storing once."""
    once = decode_states("fp8", "aux", encode_states("fp8", "aux", torch.stack(vectors)))
    twice = decode_states("fp8", "aux", encode_states("fp8", "aux", once))
    assert torch.equal(once, twice)


def test_fp8_of_zeros_is_zeros():
    assert torch.equal(
        decode_states("fp8", "aux", encode_states("fp8", "aux", torch.zeros(2, 3, 8))), torch.zeros(2, 3, 8).bfloat16()
    )


def test_fp8_keeps_small_values_beside_an_outlier():
    """Massive activations: one value a thousand times the others must not cost them their digits."""
    states = torch.full((1, 64), 0.3).bfloat16()
    states[0, 5] = 1000.0
    back = decode_states("fp8", "aux", encode_states("fp8", "aux", states))
    assert bool(((back - states).abs() <= states / 16).all())


def test_every_power_of_two_is_exact():
    exponents = torch.arange(-126, 128, dtype=torch.int32)
    assert power_of_two(exponents).double().tolist() == [2.0**e for e in exponents.tolist()]


@pytest.mark.parametrize("kind, dtype", [("float32", torch.float32), ("bf16", torch.bfloat16)])
def test_unpacked_codecs_are_exact(kind, dtype):
    states = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(decode_states(kind, "aux", encode_states(kind, "aux", states)), states.to(dtype))


@given(st.integers(0, 10**6), st.integers(2, 40), st.sampled_from([0.01, 1.0, 30.0, 1000.0]), st.data())
@settings(deadline=None, max_examples=50)
def test_a_top_k_teacher_is_the_start_of_the_distribution(seed, V, scale, data):
    top = data.draw(st.integers(1, V - 1))
    generator = torch.Generator().manual_seed(seed)
    last, head = torch.randn(3, 4, generator=generator) * scale, torch.randn(V, 4, generator=generator)
    got = decode_top(encode_top(last, head, top))
    logits = last.double() @ head.double().T
    log_p = (logits - logits.logsumexp(-1, keepdim=True)).clamp(min=-1e4)
    slack = 1e-5 * float(logits.abs().max())  # float32 logits
    for slot in range(3):
        true = log_p[slot]
        ids = got.ids_ME[slot]
        assert len(set(ids.tolist())) == top
        best = true.sort(descending=True).values[:top]
        assert torch.allclose(true[ids], best, rtol=0, atol=slack)  # the likeliest, ties either way
        bound = true[ids].abs() / 2048 + 2**-25 + slack
        assert bool(((got.log_p_ME[slot].double() - true[ids]).abs() <= bound).all())
        rest = true[[v for v in range(V) if v not in set(ids.tolist())]].exp().sum()
        assert got.tail_M[slot].exp().double() == pytest.approx(float(rest), rel=2e-2, abs=1e-6)


def test_ids_take_two_bytes_up_to_65536_of_them():
    last = torch.ones(1, 1)
    small, large = torch.arange(65536.0)[:, None] / 1e4, torch.arange(65537.0)[:, None] / 1e4
    assert encode_top(last, small, 2)["top_ids"].dtype == torch.uint16
    assert encode_top(last, large, 2)["top_ids"].dtype == torch.int32
    assert decode_top(encode_top(last, small, 2)).ids_ME.tolist() == [[65535, 65534]]
    assert decode_top(encode_top(last, large, 2)).ids_ME.tolist() == [[65536, 65535]]


def test_sizes_by_hand():
    # H 576, A 3, V 49,152: ids 4, fp8 3 * 577, 16 * (2 + 2) + 2
    assert Codec.of("fp8+top16").bytes_per_token(576, 3, 1.0, 49_152) == 4 + 1731 + 66
    assert Codec.of("bf16").bytes_per_token(576, 3, 0.25, 49_152) == 4 + 3456 + 288
    assert Codec.of("float32").bytes_per_token(16, 3, 1.0, 100) == 4 + 256
    assert Codec.of("fp8+bf16").bytes_per_token(16, 3, 0.5, 100) == 4 + 51 + 16
    assert Codec.of("fp8+top8").bytes_per_token(16, 3, 1.0, 100_000) == 4 + 51 + 50


@pytest.mark.parametrize("hidden, vocab, top", [(576, 49_152, 16), (4096, 128_256, 64), (7168, 163_840, 128)])
def test_eight_bits_and_a_top_k_teacher_take_at_most_three_h_and_five_percent(hidden, vocab, top):
    """Every slot a teacher, the worst case; the field's dumps take 8 H."""
    assert Codec.of(f"fp8+top{top}").bytes_per_token(hidden, 3, 1.0, vocab) <= 3 * hidden * 1.05


@pytest.mark.parametrize("name", ["float32", "bf16", "fp8", "fp8+bf16", "fp8+top16", "bf16+top3", "float32+fp8"])
def test_names_read_back(name):
    assert Codec.of(name).name == name


@pytest.mark.parametrize("name", ["", "fp16", "fp8+", "top16", "fp8+top0", "fp8+top", "fp8+top-1", "bf16+fp8+bf16"])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match="codec="):
        Codec.of(name)


def head_of(vocab=50):
    return torch.randn(vocab, HIDDEN, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("codec", ["float32", "bf16", "fp8", "fp8+bf16", "fp8+top5"])
def test_a_store_of_every_codec_reads_back_and_is_as_large_as_stated(tmp_path, codec):
    kind, head = Codec.of(codec), head_of()
    writer = FeatureWriter(tmp_path, FINGERPRINT, AUX_LAYERS, HIDDEN, 200, codec, head_VH=head if kind.top else None)
    for number in range(30):
        writer.add(*make_row(number))
    info = writer.close()
    for number, row in enumerate(FeatureStore(tmp_path).rows()):
        _, ids, _, aux, last, *_ = make_row(number)
        assert torch.equal(row.input_ids_T, ids)
        assert torch.equal(row.aux_TAH, decode_states(kind.aux, "aux", encode_states(kind.aux, "aux", aux)))
        last = last[row.last_slots]
        if kind.top:
            expected = decode_top(encode_top(last.bfloat16(), head, 5))
            assert row.last_MH is None and all(map(torch.equal, row.top, expected))
        else:
            assert row.top is None
            assert torch.equal(row.last_MH, decode_states(kind.teacher, "x", encode_states(kind.teacher, "x", last)))
    share = info["teacher_slots"] / info["tokens"]
    payload = info["tokens"] * kind.bytes_per_token(HIDDEN, 3, share, 50)
    assert 0 <= info["bytes"] - payload < 700 * len(info["shards"])


def test_safetensors_reads_the_shards_as_they_are(tmp_path):
    writer = FeatureWriter(tmp_path, FINGERPRINT, AUX_LAYERS, HIDDEN, codec="fp8+top5", head_VH=head_of())
    rows = [make_row(number) for number in range(4)]
    for row in rows:
        writer.add(*row)
    writer.close()
    store = FeatureStore(tmp_path)
    with safe_open(tmp_path / "shard-00-00000.safetensors", framework="pt") as file:
        assert set(file.keys()) == {"input_ids", "aux", "aux_exponent", "top_ids", "top_log_p", "tail_log_p"}
        assert file.get_tensor("input_ids").tolist() == [i for row in rows for i in row[1].tolist()]
        aux = file.get_tensor("aux").float() * 2.0 ** file.get_tensor("aux_exponent").double()[..., None]
        assert torch.equal(aux, torch.cat([row.aux_TAH for row in store.rows()]).double())
        ids = file.get_tensor("top_ids")
        assert ids.dtype == torch.uint16
        assert np.array_equal(ids.numpy(), torch.cat([row.top.ids_ME for row in store.rows()]).numpy())


@pytest.mark.parametrize("codec", ["float32", "bf16", "fp8", "fp8+top5"])
def test_every_codec_refuses_nan(tmp_path, codec):
    writer = FeatureWriter(tmp_path, FINGERPRINT, AUX_LAYERS, HIDDEN, codec=codec, head_VH=head_of())
    for place, layer in ((3, r"hs\[4\]"), (4, "last hidden state")):
        row = list(make_row(3))
        row[place][(1, 1, 0) if place == 3 else (0, 0)] = float("nan")
        with pytest.raises(NonFiniteStateError, match=f"'row-3'.*{layer}"):
            writer.add(*row)


def test_float32_keeps_what_bfloat16_cannot_hold(tmp_path):
    writer = FeatureWriter(tmp_path, FINGERPRINT, AUX_LAYERS, HIDDEN, codec="float32")
    row = list(make_row(3))
    row[3][0, 0, 0] = torch.finfo(torch.float32).max
    writer.add(*row)
    writer.close()
    assert torch.equal(FeatureStore(tmp_path).row("row-3").aux_TAH, row[3])


def test_a_top_k_teacher_needs_the_head_and_fewer_entries_than_ids(tmp_path):
    with pytest.raises(ValueError, match=r"codec='fp8\+top5' needs head_VH"):
        FeatureWriter(tmp_path, FINGERPRINT, AUX_LAYERS, HIDDEN, codec="fp8+top5")
    with pytest.raises(ValueError, match="top50 is more than the 49 ids"):
        FeatureWriter(tmp_path, FINGERPRINT, AUX_LAYERS, HIDDEN, codec="fp8+top50", head_VH=head_of())
