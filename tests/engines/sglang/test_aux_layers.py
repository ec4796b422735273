"""Layer ids as SGLang's model files read them: the expected lists are worked out from those files by hand."""

import pytest

from eagle3lab.draft.aux_layers import are_default, layers_sglang_reads, sglang_layer_ids

DEEPSEEK = ["DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration", "Glm4MoeLiteForCausalLM"]
LLAMA_LIKE = ["", "LlamaForCausalLM", "Qwen3ForCausalLM", "Glm4MoeForCausalLM", "MiniMaxM2ForCausalLM"]


@pytest.mark.parametrize("architecture", [*LLAMA_LIKE, "GptOssForCausalLM"])
def test_llama_like_models_and_gpt_oss_count_from_the_layer_before(architecture):
    assert sglang_layer_ids([2, 12, 20], architecture) == [1, 11, 19]
    assert layers_sglang_reads([1, 11, 19], 24, architecture) == [2, 12, 20]


@pytest.mark.parametrize("architecture", DEEPSEEK)
def test_deepseek_models_take_ids_as_they_are(architecture):
    assert sglang_layer_ids([3, 30, 58], architecture) == [3, 30, 58]
    assert layers_sglang_reads([3, 30, 58], 61, architecture) == [3, 30, 58]


@pytest.mark.parametrize("architecture", DEEPSEEK)
def test_deepseek_models_shift_ids_that_begin_with_one(architecture):
    assert layers_sglang_reads([1, 29, 57], 61, architecture) == [2, 30, 58]


@pytest.mark.parametrize("architecture", DEEPSEEK)
def test_deepseek_models_cannot_be_asked_for_hs_1_first(architecture):
    with pytest.raises(ValueError, match=r"begins with 1 means hs\[2\]"):
        sglang_layer_ids([1, 30, 58], architecture)


def test_gpt_oss_takes_ids_as_they_are_when_the_state_after_the_last_layer_is_among_them():
    assert layers_sglang_reads([2, 12, 24], 24, "GptOssForCausalLM") == [2, 12, 24]
    assert layers_sglang_reads([2, 12, 24], 25, "GptOssForCausalLM") == [3, 13, 25]


def test_without_ids_all_families_but_one_read_the_default():
    for architecture in [*LLAMA_LIKE, *DEEPSEEK, "GptOssForCausalLM"]:
        assert layers_sglang_reads(None, 61, architecture) == [2, 30, 58]
    assert layers_sglang_reads(None, 61, "MiniMaxM3SparseForConditionalGeneration") == [3, 31, 59]


def test_ids_are_left_out_only_where_the_default_is_what_is_meant():
    assert are_default([2, 30, 58], 61, "LlamaForCausalLM")
    assert not are_default([2, 30, 57], 61, "LlamaForCausalLM")
    assert not are_default([2, 30, 58], 61, "MiniMaxM3SparseForConditionalGeneration")


def test_layers_out_of_order_are_refused_because_the_server_sorts_its_states():
    assert layers_sglang_reads([19, 1, 11], 24) == [2, 12, 20]
    with pytest.raises(ValueError, match="must increase"):
        sglang_layer_ids([20, 2, 12])


@pytest.mark.parametrize("architecture", [*LLAMA_LIKE, *DEEPSEEK, "GptOssForCausalLM"])
def test_what_is_written_is_what_is_read(architecture):
    for layers in ([2, 3, 4], [0, 5, 9], [3, 4, 11], [2, 7, 10]):
        assert layers_sglang_reads(sglang_layer_ids(layers, architecture), 12, architecture) == layers
