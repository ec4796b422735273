"""What an untrained drafter takes over from a real target, and what it does not."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from eagle3lab.draft.checkpoint import engine_config
from eagle3lab.draft.model import Eagle3Draft
from eagle3lab.draft.start import WarmStartError, new_draft, own_embedding, read_sizes, warm_start
from eagle3lab.draft.target_weights import TargetWeights, TargetWeightsError, read_target_weights
from eagle3lab.draft.vocab import VocabError, VocabMap
from tests.draft.samples import H, V, make_draft
from tests.tiny import FAMILIES, HIDDEN, VOCAB, save_tiny_target

AUX = (1, 3, 5)
VOCAB_MAP = VocabMap(torch.arange(0, VOCAB, 2), VOCAB)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = save_tiny_target(tmp_path_factory.mktemp("llama"), "llama")
    return folder, read_target_weights(folder), AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def start(llama, parts=("lm_head", "norm"), **sizes):
    return new_draft(llama[0], AUX, VOCAB_MAP, llama[1], 3, parts, **sizes)


def test_head_and_norm_are_the_targets(llama):
    draft = start(llama)
    assert torch.equal(draft.lm_head.weight, llama[2].lm_head.weight[::2])
    assert torch.equal(draft.norm.weight, llama[2].model.norm.weight)
    assert torch.equal(draft.embed_VH, llama[2].model.embed_tokens.weight)


def test_nothing_but_the_named_parts_differs_from_a_random_start(llama):
    random = start(llama, ())
    assert torch.equal(random.fc.weight, start(llama).fc.weight)
    assert not torch.equal(random.lm_head.weight, start(llama).lm_head.weight)
    control = Eagle3Draft(random.config, llama[1].embed_VH, VOCAB_MAP.target_ids_W)
    control.reset(torch.Generator().manual_seed(3))
    for name, parameter in control.named_parameters():
        assert torch.equal(parameter, random.get_parameter(name)), name


def test_fc_passes_the_last_aux_state_through(llama):
    aux_TAH = torch.randn(5, 3, HIDDEN)
    plain = start(llama, ("fc",), fc_norm=False)
    torch.testing.assert_close(plain.fuse(aux_TAH), aux_TAH[:, 2], rtol=0, atol=0)
    last_TH = aux_TAH[:, 2]
    normed_TH = last_TH / (last_TH.square().mean(-1, keepdim=True) + plain.config.rms_norm_eps).sqrt()
    torch.testing.assert_close(start(llama, ("fc",)).fuse(aux_TAH), normed_TH)


def test_the_block_starts_as_the_targets_last_layer(llama):
    draft, random, last = start(llama, ("layer",)).midlayer, start(llama, ()).midlayer, llama[2].model.layers[-1]
    for name in ("q_proj", "k_proj", "v_proj"):
        weight = getattr(draft.self_attn, name).weight
        assert torch.equal(weight[:, HIDDEN:], getattr(last.self_attn, name).weight), name
        assert torch.equal(weight[:, :HIDDEN], getattr(random.self_attn, name).weight[:, :HIDDEN]), name
    assert torch.equal(draft.self_attn.o_proj.weight, last.self_attn.o_proj.weight)
    for name in ("gate_proj", "up_proj", "down_proj"):
        assert torch.equal(getattr(draft.mlp, name).weight, getattr(last.mlp, name).weight), name
    assert torch.equal(draft.hidden_norm.weight, last.input_layernorm.weight)
    assert torch.equal(draft.post_attention_layernorm.weight, last.post_attention_layernorm.weight)
    assert torch.equal(draft.input_layernorm.weight, torch.ones(HIDDEN))


def test_the_drafter_knows_the_architecture_of_its_target(tmp_path, llama):
    """It decides how SGLang is told the aux layers."""
    assert start(llama).config.target_architecture == "LlamaForCausalLM"
    folder = save_tiny_target(tmp_path, "deepseek_v3")
    draft = new_draft(folder, (2, 3, 6), VOCAB_MAP, read_target_weights(folder), 3)
    assert draft.config.target_architecture == "DeepseekV3ForCausalLM"
    assert engine_config(draft.config)["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 3, 6]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_sizes_are_those_that_transformers_reads(tmp_path, family):
    folder = save_tiny_target(tmp_path, family)
    wanted = AutoConfig.from_pretrained(folder).to_dict() | {"_name_or_path": ""}
    assert read_sizes(folder).to_dict() == wanted


def test_a_target_that_sees_is_as_large_as_its_language_part(tmp_path):
    """Kimi-K2.5 by its published config.json: a kind of its own, whose code is not run, around a text_config."""
    text = {
        "model_type": "kimi_k2", "hidden_size": HIDDEN, "intermediate_size": 64, "num_attention_heads": 4,
        "num_hidden_layers": 8, "vocab_size": VOCAB, "rms_norm_eps": 1e-5, "max_position_embeddings": 128,
        "kv_lora_rank": 24, "rope_theta": 50000.0, "rope_scaling": {"type": "yarn", "factor": 4.0},
        "architectures": ["DeepseekV3ForCausalLM"], "auto_map": {"AutoConfig": "configuration_deepseek.Absent"},
    }  # fmt: skip
    whole = {
        "model_type": "kimi_k25", "architectures": ["KimiK25ForConditionalGeneration"], "text_config": text,
        "vision_config": {"hidden_size": 7}, "auto_map": {"AutoConfig": "configuration_kimi_k25.Absent"},
    }  # fmt: skip
    save_tiny_target(tmp_path, "deepseek_v3")
    (tmp_path / "config.json").write_text(json.dumps(whole))
    config = new_draft(tmp_path, (2, 4, 5), VOCAB_MAP, read_target_weights(tmp_path), 3).config
    assert (config.hidden_size, config.target_num_layers, config.vocab_size) == (HIDDEN, 8, VOCAB)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (4, 4, HIDDEN // 4)
    assert (config.rope_theta, config.rms_norm_eps) == (50000.0, 1e-5)
    assert config.target_architecture == "KimiK25ForConditionalGeneration"
    del whole["text_config"]["intermediate_size"]
    (tmp_path / "config.json").write_text(json.dumps(whole))
    with pytest.raises(ValueError, match="does not say intermediate_size of the language model"):
        read_sizes(tmp_path)


def test_what_does_not_fit_is_refused(llama, tmp_path):
    with pytest.raises(WarmStartError, match="drafter is 24 wide, the target 32"):
        start(llama, ("fc",), hidden_size=24)
    with pytest.raises(WarmStartError, match="q_proj is \\(32, 32\\) in the target and \\(16, 32\\) here"):
        start(llama, ("layer",), num_attention_heads=2)
    with pytest.raises(ValueError, match="a drafter has no 'hidden', 'vocab_size' to choose; hidden_size, "):
        start(llama, hidden=24, vocab_size=3)
    with pytest.raises(ValueError, match="warm_start=\\['head'\\]"):
        start(llama, ("norm", "head"))
    latent = save_tiny_target(tmp_path, "deepseek_v3")
    with pytest.raises(TargetWeightsError, match="layer 7 has no self_attn"):
        new_draft(latent, AUX, VOCAB_MAP, read_target_weights(latent), 0, ("layer",))


def test_the_vocabulary_map_of_another_target_is_refused(llama):
    with pytest.raises(VocabError, match="for 50 ids, .* has 64.*another target"):
        new_draft(llama[0], AUX, VocabMap(torch.arange(50), 50), llama[1], 0)


def test_a_drafter_of_another_width_keeps_its_random_head():
    draft = make_draft(hidden_size=12)
    before = {name: p.clone() for name, p in draft.named_parameters()}
    warm_start(draft, TargetWeights(torch.randn(V, H), torch.randn(V, H), torch.ones(H)), ("lm_head", "norm"))
    assert all(torch.equal(before[name], p) for name, p in draft.named_parameters())


@pytest.mark.parametrize("size", [8, 31])
def test_own_embedding_is_the_best_of_its_rank(size):
    """Against the singular value decomposition: all that any projection on `size` directions can keep."""
    embed_VG = torch.randn(64, 32) @ torch.randn(32, 32)
    kept = own_embedding(embed_VG, size)
    singular = torch.linalg.svdvals(embed_VG)
    torch.testing.assert_close(torch.linalg.svdvals(kept), singular[:size], rtol=1e-3, atol=1e-3)
    # inner products between ids are those of the best approximation of that rank
    u, s, v = torch.linalg.svd(embed_VG, full_matrices=False)
    best = u[:, :size] * s[:size] @ v[:size]
    torch.testing.assert_close(kept @ kept.T, best @ best.T, rtol=1e-2, atol=1e-1)


def test_own_embedding_of_a_wider_drafter_is_the_targets_with_zeros(llama):
    draft = start(llama, hidden_size=40, head_dim=10)
    assert draft.config.owns_embedding and draft.embed_VH.shape == (VOCAB, 40)
    assert torch.equal(draft.embed_VH[:, :HIDDEN], llama[1].embed_VH) and not draft.embed_VH[:, HIDDEN:].any()


def test_sizes_left_at_none_are_the_targets(llama):
    assert start(llama, hidden_size=None, fc_norm=None).config == start(llama).config
    assert start(llama, fc_norm=True, num_key_value_heads=4).config.num_key_value_heads == 4


@pytest.mark.parametrize(
    "change, message",
    [
        ({"num_key_value_heads": 3}, "num_attention_heads=4 is not a multiple"),
        ({"head_dim": 7}, "head_dim=7 must be even"),
        ({"intermediate_size": 0}, "intermediate_size=0"),
        ({"draft_vocab_size": V + 1}, "draft_vocab_size=41"),
        ({"hidden_size": 3 * H}, "SGLang would take them for features and skip fc"),
        ({"aux_layers": (2,)}, "SGLang would take them for features and skip fc"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        make_draft(**change)
