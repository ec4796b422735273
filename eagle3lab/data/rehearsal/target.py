"""A tiny target of Kimi-K2.5's kind: latent attention, experts, 163,840 ids, a tokenizer that is code in the folder.

Its weights are drawn, not trained: each next token depends on the one before and on a little context, so that a small
drafter has something to learn, and to miss. Only ids that the tokenizer can write come out of it.
"""

import base64
import json
import shutil
from pathlib import Path

from eagle3lab.data.rehearsal import tokenizer as code
from eagle3lab.workbench.files import atomic_folder, write_json_atomic

LAYERS, HIDDEN, CONTEXT, VOCAB = 8, 64, 2048, 163840
STRETCHED = 4  # RoPE is stretched (YaRN) from a quarter of the context, as published
_ANSWERED = (10, *range(32, 127), *range(256, 256 + len(code.PIECES)), code.END_THINK)
_DEPTH = 0.3  # weight of what the layers add to the embedding; 0: the next token depends on the last one alone
_END = 1.3  # how readily an answer ends: the length of the end token's row, the others have 1


def write_tokenizer(folder: Path) -> Path:
    """A folder with everything but weights: the tokenizer is code in it, and the model's end is not the tokenizer's."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(code.__file__, folder / "tokenization_stand_in.py")
    pieces = [bytes([b]) for b in range(256)] + code.PIECES
    ranks = "".join(f"{base64.b64encode(piece).decode()} {rank}\n" for rank, piece in enumerate(pieces))
    (folder / "tiktoken.model").write_text(ranks)
    config = {"tokenizer_class": "KimiStandIn", "chat_template": code.TEMPLATE}
    config["auto_map"] = {"AutoTokenizer": ["tokenization_stand_in.KimiStandIn", None]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "kimi_k25", "eos_token_id": code.END}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": code.END}))
    return folder


def build_target(folder: str | Path, seed: int = 0) -> Path:
    """Writes the target, whole or not at all, and returns its folder. The same seed gives the same weights."""
    import torch
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = DeepseekV3Config(
        vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=LAYERS, intermediate_size=128, moe_intermediate_size=32,
        num_attention_heads=4, num_key_value_heads=4, q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=16,
        qk_rope_head_dim=16, v_head_dim=16, first_k_dense_replace=1, n_routed_experts=4, num_experts_per_tok=2,
        n_group=2, topk_group=1, n_shared_experts=1, num_nextn_predict_layers=0, max_position_embeddings=CONTEXT,
        bos_token_id=163584, eos_token_id=code.END, pad_token_id=163839, initializer_range=0.15, dtype="float32",
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = DeepseekV3ForCausalLM(config).eval()
        _shape_answers(model, torch.Generator().manual_seed(seed))
    with atomic_folder(Path(folder)) as part:
        write_tokenizer(part)
        model.save_pretrained(part)
        _as_published(part)
    return Path(folder)


def _shape_answers(model, generator) -> None:
    """Draws embedding and head so that the answers are what the tokenizer can write, and differ."""
    import torch

    with torch.no_grad():
        model.model.embed_tokens.weight.normal_(0, 1, generator=generator)
        head_VH = torch.zeros(VOCAB, HIDDEN)
        ids = torch.tensor([*_ANSWERED, code.END])
        head_VH[ids] = torch.randn(len(ids), HIDDEN, generator=generator)
        head_VH[code.END] *= _END
        model.lm_head.weight.copy_(head_VH)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(_DEPTH)
            for name, weight in layer.mlp.named_parameters():
                if "down_proj" in name:
                    weight.mul_(_DEPTH)


def _as_published(folder: Path) -> None:
    """What config.json of published DeepseekV3 targets says and SGLang reads, and transformers writes otherwise."""
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "rope_theta": 50000.0,
        "rope_scaling": {
            "type": "yarn", "factor": float(STRETCHED), "original_max_position_embeddings": CONTEXT // STRETCHED,
            "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
        },
    }  # fmt: skip
    config.pop("rope_parameters", None)
    write_json_atomic(folder / "config.json", config)
