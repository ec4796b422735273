"""Model folders written by hand, as other projects write them: a target's config, and an EAGLE-3 drafter's folder.

Sizes: target with 8 layers (default aux layers hs[2, 4, 5]), H hidden, V vocabulary, W draft vocabulary.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

LAYERS, H, V, W, INNER, HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 8, 32, 64, 20, 48, 4, 2, 8, 128

TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": H,
    "vocab_size": V,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": CONTEXT,
}
DRAFT = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": H,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": 1,
    "max_position_embeddings": CONTEXT,
    "vocab_size": V,
    "draft_vocab_size": W,
    "tie_word_embeddings": False,
}
SHAPES = {
    "fc.weight": (H, 3 * H),
    "norm.weight": (H,),
    "lm_head.weight": (W, H),
    "midlayer.hidden_norm.weight": (H,),
    "midlayer.input_layernorm.weight": (H,),
    "midlayer.post_attention_layernorm.weight": (H,),
    "midlayer.self_attn.q_proj.weight": (HEADS * HEAD_DIM, 2 * H),
    "midlayer.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, 2 * H),
    "midlayer.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, 2 * H),
    "midlayer.self_attn.o_proj.weight": (H, HEADS * HEAD_DIM),
    "midlayer.mlp.gate_proj.weight": (INNER, H),
    "midlayer.mlp.up_proj.weight": (INNER, H),
    "midlayer.mlp.down_proj.weight": (H, INNER),
}
# the draft vocabulary: the first twelve ids and every fourth of the rest
IDS_W = np.array([*range(12), *range(14, 46, 4)], dtype=np.int64)


def good_tensors() -> dict[str, np.ndarray]:
    tensors = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    t2d = np.zeros(V, dtype=bool)
    t2d[IDS_W] = True
    return tensors | {"d2t": IDS_W - np.arange(W), "t2d": t2d}


def write_target(folder: Path, **changes) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(TARGET | changes))
    return folder


def write_draft(folder: Path, tensors=None, training=None, drop=(), **changes) -> Path:
    """A drafter's folder; `changes` go into its config, `drop` names config keys to leave out."""
    folder.mkdir(parents=True)
    config = {key: value for key, value in (DRAFT | changes).items() if key not in drop}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(good_tensors() if tensors is None else tensors, folder / "model.safetensors")
    if training is not None:
        (folder / "training.json").write_text(json.dumps(training))
    return folder


def with_ids(*ids: int) -> dict:
    """Config entry: explicit layer ids as SGLang reads them."""
    return {"eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": list(ids)}}
