"""Estimates against the case's arithmetic and against the network itself."""

import pytest
import torch

from eagle3lab.analysis import estimate
from eagle3lab.draft.model import DraftConfig, Eagle3Draft
from eagle3lab.features.store import FeatureWriter


def test_the_case_needs_ten_terabytes():
    """H 7168, three aux layers and the last state everywhere: 56 KiB a token, 88K rows of 2K tokens."""
    assert estimate.estimate_store_bytes(1, 7168) == (21504 + 7168) * 2 + 4 == 56 * 1024 + 4
    assert estimate.estimate_store_bytes(88_000 * 2_000, 7168) == pytest.approx(10e12, rel=0.02)


def test_teachers_only_where_they_teach():
    # H=576: 3456 bytes of aux states, 1152 of the last one at a quarter of the slots, 4 of the id
    assert estimate.estimate_store_bytes(1000, 576, teacher_share=0.25) == (3456 + 288 + 4) * 1000
    assert estimate.estimate_store_bytes(1000, 576, teacher_share=0.0) == 3460 * 1000
    with pytest.raises(ValueError, match="teacher_share=25"):
        estimate.estimate_store_bytes(1, 576, teacher_share=25)


def test_a_smaller_codec_takes_less():
    # three bytes of exponents, ids of 163,840 tokens in four bytes each, their log probabilities in two
    assert estimate.estimate_store_bytes(1, 7168, codec="fp8+top128", vocab_size=163_840) == 4 + 21504 + 3 + 128 * 6 + 2


def test_store_bytes_are_those_of_a_real_store(tmp_path):
    writer = FeatureWriter(tmp_path, {"target": "x"}, [2, 4, 6], 64)
    for row in range(8):  # 200 tokens each, 50 of them generated
        writer.add(f"r{row}", range(200), [[150, 200]], torch.ones(200, 3, 64), torch.ones(200, 64))
    writer.close()
    written = sum(file.stat().st_size for file in tmp_path.glob("*.safetensors"))
    assert written == pytest.approx(estimate.estimate_store_bytes(1600, 64, teacher_share=0.25), rel=0.01)


def test_hours():
    assert estimate.estimate_hours(3_600_000, 1000) == 1.0
    assert estimate.estimate_hours(1_000_000, 650, passes=3) == pytest.approx(1.282, abs=0.001)
    with pytest.raises(ValueError, match="tokens_per_second=0"):
        estimate.estimate_hours(10, 0)


@pytest.mark.parametrize("target_hidden_size", [32, 48])
def test_draft_parameters_are_those_of_the_network(target_hidden_size):
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 80,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "draft_vocab_size": 50,
        "target_hidden_size": target_hidden_size,
    }
    config = DraftConfig(vocab_size=100, aux_layers=(2, 4, 6), target_num_layers=9, **sizes)
    draft = Eagle3Draft(config, torch.zeros(100, 32), torch.arange(50))
    assert estimate.draft_parameters(**sizes) == sum(p.numel() for p in draft.parameters())


def test_memory():
    # SmolLM2: 30 layers, 3 key/value heads of 64, float32: 46,080 bytes a token
    assert estimate.kv_cache_bytes(1, 30, 3, 64, 4) == 46_080
    assert estimate.training_bytes(1_000_000) == 16_000_000
