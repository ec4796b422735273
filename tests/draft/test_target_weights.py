"""Reading embedding, head and norm of a target against the loaded model."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from eagle3lab.draft.target_weights import TargetWeightsError, read_target_weights
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
