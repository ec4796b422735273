"""Random tiny targets of 8 layers for tests: real transformers architectures, seeded, saved as Hugging Face
folders."""

from pathlib import Path

import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB, LAYERS, HIDDEN, CONTEXT, END = 64, 8, 32, 128, 1
FAMILIES = ("llama", "qwen3", "deepseek_v3")

_COMMON = {
    "vocab_size": VOCAB,
    "num_hidden_layers": LAYERS,
    "hidden_size": HIDDEN,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": END,
    # large: with the usual 0.02 a random model repeats one token, and nothing could go visibly wrong
    "initializer_range": 0.3,
}


def _llama():
    return LlamaForCausalLM(LlamaConfig(**_COMMON, num_key_value_heads=2, tie_word_embeddings=True))


def _qwen3():
    return Qwen3ForCausalLM(Qwen3Config(**_COMMON, num_key_value_heads=2, head_dim=16))


def _deepseek_v3():
    # one dense layer, then experts: 4 in 2 groups, 2 used; key size 16+8, value size 16
    return DeepseekV3ForCausalLM(
        DeepseekV3Config(
            **_COMMON,
            num_key_value_heads=4,
            first_k_dense_replace=1,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=2,
            topk_group=1,
            moe_intermediate_size=32,
            n_shared_experts=1,
            q_lora_rank=24,
            kv_lora_rank=24,
            qk_nope_head_dim=16,
            qk_rope_head_dim=8,
            v_head_dim=16,
            num_nextn_predict_layers=0,
        )
    )


_BUILDERS = {"llama": _llama, "qwen3": _qwen3, "deepseek_v3": _deepseek_v3}


def save_tiny_target(folder: Path, family: str = "llama", seed: int = 0) -> Path:
    """Builds a random float32 target of a family (see FAMILIES) and saves it in `folder`, which is
    returned."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = _BUILDERS[family]()
    model.generation_config.eos_token_id = END
    model.save_pretrained(folder)
    return Path(folder)
