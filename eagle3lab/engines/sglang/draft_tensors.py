"""The tensors that SGLang's Llama-type EAGLE-3 drafter has, and what it does with a folder's names.

SGLang drops unknown tensors and leaves missing ones at random values, both without a word; only a wrong shape stops it.
Names and shapes: `LlamaForCausalLMEagle3` in SGLang's models/llama_eagle3.py, 0.5.15 to 0.5.23.
"""

from __future__ import annotations

from eagle3lab.engines.servers.model_files import DraftFiles, TargetFacts

LLAMA_DRAFT = "LlamaForCausalLMEagle3"
MLA_DRAFT = "Eagle3DeepseekV2ForCausalLM"
_RENAMED = (("midlayer", "layers.0"), ("aux_norm_low", "fc_norm.0"), ("aux_norm_mid", "fc_norm.1"),
            ("aux_norm_high", "fc_norm.2"))  # fmt: skip
# read elsewhere or rightly left out
_NO_WEIGHT = ("d2t", "t2d", "rotary_emb.inv_freq")


def served_name(name: str) -> str:
    """A stored tensor's name as the server reads it, without the leading `model.`."""
    for stored, served in _RENAMED:
        name = name.replace(stored, served)
    return name.removeprefix("model.")


def expected_tensors(draft: DraftFiles) -> dict[str, tuple[int, ...]]:
    """Served name -> shape of every tensor the server needs. KeyError for a size that config.json lacks."""
    c, H = draft.config, draft.hidden_size
    heads = c["num_attention_heads"]
    kv_heads = c.get("num_key_value_heads") or heads
    head_dim = c.get("head_dim") or H // heads
    inner = c["intermediate_size"]
    bias = c.get("attention_bias") or c.get("bias")
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (H, draft.target_hidden_size * draft.num_aux),
        "norm.weight": (H,),
    }
    if c.get("draft_vocab_size") and not c.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (c["draft_vocab_size"], H)
    for i in range(c["num_hidden_layers"]):
        width = 2 * H if i == 0 else H
        layer = {
            "self_attn.q_proj.weight": (heads * head_dim, width),
            "self_attn.k_proj.weight": (kv_heads * head_dim, width),
            "self_attn.v_proj.weight": (kv_heads * head_dim, width),
            "self_attn.o_proj.weight": (H, heads * head_dim),
            "mlp.gate_proj.weight": (inner, H),
            "mlp.up_proj.weight": (inner, H),
            "mlp.down_proj.weight": (H, inner),
            "hidden_norm.weight": (H,),
            "post_attention_layernorm.weight": (H,),
        }
        layer |= {"input_layernorm.weight": (H,)} if i == 0 else {}
        layer |= {"self_attn.o_proj.bias": (H,)} if bias else {}
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    if c.get("bias"):
        shapes["fc.bias"] = (H,)
    if draft.eagle_config.get("norm_before_fc", c.get("norm_before_fc")):
        shapes["input_norm.weight"] = (draft.target_hidden_size * draft.num_aux,)
    if c.get("fc_norm") or c.get("use_aux_norm"):
        shapes |= {f"fc_norm.{i}.weight": (draft.target_hidden_size,) for i in range(draft.num_aux)}
    return shapes


def compare_tensors(draft: DraftFiles, target: TargetFacts) -> tuple[list[str], list[str], list[str]]:
    """(missing, ignored, wrongly shaped) tensors, each with its numbers. KeyError as in `expected_tensors`."""
    expected = expected_tensors(draft)
    if draft.hidden_size != target.hidden_size:  # the target's embedding does not fit: the drafter's own is used
        expected["embed_tokens.weight"] = (draft.config.get("vocab_size", target.vocab_size), draft.hidden_size)
    found = {served_name(n): (n, shape) for n, shape in draft.shapes.items() if not n.endswith(_NO_WEIGHT)}
    found.pop("embed_tokens.weight" if draft.hidden_size == target.hidden_size else "", None)
    missing = [name for name in expected if name not in found]
    ignored = [stored for name, (stored, _) in found.items() if name not in expected]
    wrong = [
        f"{stored} {list(shape)} instead of {list(expected[name])}"
        for name, (stored, shape) in found.items()
        if name in expected and shape != expected[name]
    ]
    return missing, ignored, wrong
