"""Reading embedding, head and norm of a target against the loaded model."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from eagle3lab.draft.target_weights import TargetWeightsError, read_target_layer, read_target_weights
from tests.tiny import FAMILIES, save_tiny_target


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shards", [False, True])
def test_equal_to_the_loaded_model(tmp_path, family, shards):
    folder = save_tiny_target(tmp_path, family)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if shards:
        folder = tmp_path / "sharded"
        model.save_pretrained(folder, max_shard_size="20KB")
        assert (folder / "model.safetensors.index.json").is_file()
    weights = read_target_weights(folder)
    assert torch.equal(weights.embed_VH, model.get_input_embeddings().weight)
    assert torch.equal(weights.head_VH, model.get_output_embeddings().weight)
    assert torch.equal(weights.norm_H, model.model.norm.weight)


def test_a_folder_without_weights_is_named(tmp_path):
    with pytest.raises(TargetWeightsError, match="neither model.safetensors nor its index"):
        read_target_weights(tmp_path)


def as_multimodal(folder, out, rename=lambda name: f"language_model.{name}"):
    """The weights of a target as they lie beside a vision tower."""
    tensors = {rename(name): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors |= {"vision_tower.model.norm.weight": torch.ones(3), "vision_tower.embed_tokens.weight": torch.ones(2, 3)}
    tensors["vision_tower.layers.7.self_attn.q_proj.weight"] = torch.ones(3, 3)
    out.mkdir()
    save_file(tensors, out / "model.safetensors")
    return out


@pytest.mark.parametrize("family", FAMILIES)
def test_of_a_target_that_sees_the_language_part_is_read(tmp_path, family):
    plain = save_tiny_target(tmp_path / "plain", family)
    inside = as_multimodal(plain, tmp_path / "inside")
    # a newer layout: model.language_model.layers ..., and the head beside it
    beside = as_multimodal(plain, tmp_path / "beside", lambda name: name.replace("model.", "model.language_model."))
    wanted = read_target_weights(plain)
    for folder in (inside, beside):
        found = read_target_weights(folder)
        for name in ("embed_VH", "head_VH", "norm_H"):
            assert torch.equal(getattr(found, name), getattr(wanted, name)), (folder.name, name)
    if family == "llama":
        layer = read_target_layer(plain, 7)
        found = read_target_layer(inside, 7)
        assert layer.keys() == found.keys() and all(torch.equal(layer[name], found[name]) for name in layer)
