"""A drafter written as other projects write it gives the same logits when read; what cannot be done is refused."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from eagle3lab.draft.checkpoint import CheckpointError, export_draft, load_draft
from eagle3lab.draft.foreign import import_draft, open_draft
from eagle3lab.draft.rope import rotate
from tests.draft.samples import H, L, V, make_draft, make_row

TARGET = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": L, "hidden_size": H, "vocab_size": V}


@pytest.fixture
def target(tmp_path):
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TARGET))
    return folder


@pytest.fixture
def draft():
    return make_draft(aux_layers=(1, 3, 6))


@pytest.fixture
def folder(tmp_path, draft):
    """Our own export, without what only we write."""
    made = export_draft(draft, tmp_path / "draft", {}, dtype=torch.float32)
    (made / "training.json").unlink()
    return made


def edit(folder, tensors=None, drop=(), **changes):
    config = json.loads((folder / "config.json").read_text()) | changes
    config = {key: value for key, value in config.items() if key not in drop}
    (folder / "config.json").write_text(json.dumps(config))
    if tensors is not None:
        path = folder / "model.safetensors"
        save_file(tensors(load_file(path)), path)
    return folder


def logits(draft):
    row = make_row(3, 9, [(2, 9)])
    cache = draft.new_cache(9)
    y_TH = draft.forward_cached(draft.fuse(row.aux_TAH), row.input_ids_T, torch.arange(9), cache)
    return draft.logits(y_TH)


def test_a_folder_as_specforge_writes_it(folder, target, draft):
    read = import_draft(folder, target, draft.embed_VH)
    assert read.config.aux_layers == (1, 3, 6)  # 0, 2, 5 in its eagle_config
    assert torch.equal(read.target_ids_W, draft.target_ids_W)
    assert torch.equal(logits(read), logits(draft))


def test_a_folder_as_modelopt_writes_it(folder, target, draft):
    def renamed(tensors):
        own = {f"model.{n.replace('midlayer', 'layers.0')}": t for n, t in tensors.items() if "d2" not in n}
        own["lm_head.weight"] = own.pop("model.lm_head.weight")
        return own | {"d2t": tensors["d2t"], "model.embed_tokens.weight": torch.randn(V, H)}  # the target's is taken

    edit(folder, lambda t: renamed({n: x for n, x in t.items() if n != "t2d"}))
    read = import_draft(folder, target, draft.embed_VH)
    assert torch.equal(logits(read), logits(draft))


def test_a_folder_as_speculators_writes_it(folder, target, draft):
    config = json.loads((folder / "config.json").read_text())
    inner = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
             "num_hidden_layers", "rms_norm_eps")  # fmt: skip
    layer = {key: config[key] for key in inner if key != "rms_norm_eps"}  # what is the default there is left out
    edit(
        folder, lambda t: {n.replace("midlayer", "layers.0"): x for n, x in t.items()},
        drop=(*inner, "eagle_config", "rope_theta"), architectures=["Eagle3Speculator"],
        transformer_layer_config=layer, eagle_aux_hidden_state_layer_ids=[1, 3, 6],
    )  # fmt: skip
    read = import_draft(folder, target, draft.embed_VH)
    assert read.config.aux_layers == (1, 3, 6)  # hs indices, as they are
    assert torch.equal(logits(read), logits(draft))


def test_layers_that_are_not_named_are_the_default_and_can_be_said(folder, target, draft):
    edit(folder, drop=("eagle_aux_hidden_state_layer_ids",), eagle_config={"use_aux_hidden_state": True})
    assert import_draft(folder, target, draft.embed_VH).config.aux_layers == (2, 4, 5)
    assert import_draft(folder, target, draft.embed_VH, [1, 3, 6]).config.aux_layers == (1, 3, 6)


def test_eagle_3_1_is_read(tmp_path, target):
    draft = make_draft(fc_norm=True, norm_output=True)
    folder = export_draft(draft, tmp_path / "new", {}, dtype=torch.float32)
    read = import_draft(folder, target, draft.embed_VH)
    assert read.config.fc_norm and read.config.norm_output
    assert torch.equal(logits(read), logits(draft))


LLAMA31 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


def test_llama_3s_rope_is_that_of_transformers(folder, target, draft):
    edit(folder, rope_scaling=LLAMA31, rope_theta=500000.0)
    c = import_draft(folder, target, draft.embed_VH).config
    c = replace(c, head_dim=128)  # as Llama has it: waves on both sides of the bounds
    theirs = LlamaRotaryEmbedding(
        LlamaConfig(
            head_dim=128, hidden_size=c.num_attention_heads * 128, num_attention_heads=c.num_attention_heads,
            rope_parameters=LLAMA31 | {"rope_theta": 500000.0}, max_position_embeddings=131072,
        )
    )  # fmt: skip
    positions_T = torch.tensor([0, 1, 77, 4096, 9000])
    x_TND = torch.randn(5, 2, 128, generator=torch.Generator().manual_seed(1))
    cos, sin = theirs(x_TND, positions_T[None])
    expected, _ = apply_rotary_pos_emb(x_TND.transpose(0, 1)[None], x_TND.transpose(0, 1)[None], cos, sin)
    torch.testing.assert_close(
        rotate(x_TND, positions_T, c), expected[0].transpose(0, 1), rtol=0, atol=1e-2
    )  # angles of 9,000 in float32
    plain = replace(c, rope_llama3=None)
    assert not torch.allclose(rotate(x_TND, positions_T, plain), expected[0].transpose(0, 1), atol=0.1)


def test_scaled_rope_survives_an_export(folder, target, draft, tmp_path):
    edit(folder, rope_scaling=LLAMA31)
    read = import_draft(folder, target, draft.embed_VH)
    again = export_draft(read, tmp_path / "again", {}, dtype=torch.float32)
    config = json.loads((again / "config.json").read_text())
    assert config["rope_scaling"] == LLAMA31
    assert load_draft(again, draft.embed_VH).config == read.config
    assert torch.equal(logits(import_draft(again, target, draft.embed_VH)), logits(read))
    assert not torch.equal(logits(read), logits(draft))


def by_torch(draft, row):
    """Logits of a row's slots as speculators' network has them by default, from torch's own layers, in float64.

    The aux states of a slot side by side through one norm; the residual is the feature after its norm, not before.
    """
    w, T = {name: tensor.double() for name, tensor in draft.state_dict().items()}, len(row.input_ids_T)

    def norm(x_TX, name):
        return nn.functional.rms_norm(x_TX, x_TX.shape[-1:], w[name], 1e-6)

    def heads(name, x_TX, n):
        return (x_TX @ w[f"midlayer.self_attn.{name}_proj.weight"].T).unflatten(-1, (n, 8)).transpose(0, 1)

    def turned(x_NTD):
        angle_TD = torch.arange(T)[:, None].double() * 10000.0 ** (-torch.arange(4).double() / 4)
        turn_TD = torch.polar(torch.ones_like(angle_TD), angle_TD)
        x_NTD = torch.complex(x_NTD[..., :4], x_NTD[..., 4:]) * turn_TD
        return torch.cat([x_NTD.real, x_NTD.imag], -1)

    f_TH = norm(row.aux_TAH.double().flatten(1), "input_norm.weight") @ w["fc.weight"].T
    f_TH = norm(f_TH, "midlayer.hidden_norm.weight")
    embedded_TH = norm(draft.embed_VH.double()[row.input_ids_T], "midlayer.input_layernorm.weight")
    u_TU = torch.cat([embedded_TH, f_TH], -1)
    q, k, v = turned(heads("q", u_TU, 4)), turned(heads("k", u_TU, 2)), heads("v", u_TU, 2)
    out = nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=True)[0]
    r_TH = f_TH + out.transpose(0, 1).flatten(1) @ w["midlayer.self_attn.o_proj.weight"].T
    h_TH = norm(r_TH, "midlayer.post_attention_layernorm.weight")
    gate, up, down = (w[f"midlayer.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    y_TH = r_TH + (nn.functional.silu(h_TH @ gate.T) * (h_TH @ up.T)) @ down.T
    return norm(y_TH, "norm.weight") @ w["lm_head.weight"].T


@pytest.mark.parametrize("inside", [False, True])
def test_the_norms_that_speculators_turns_on_by_default_are_read(tmp_path, target, inside):
    draft = make_draft(norm_before_residual=True, norm_before_fc=True, norm_output=True)
    folder = export_draft(draft, tmp_path / "new", {}, dtype=torch.float32, engine="vllm==0.32.0")
    if inside:
        edit(folder, drop=("norm_before_fc",), eagle_config={"use_aux_hidden_state": True, "norm_before_fc": True})
    read = import_draft(folder, target, draft.embed_VH)
    assert read.config.norm_before_residual and read.config.norm_before_fc and read.config.norm_output
    assert torch.equal(logits(read), logits(draft))
    torch.testing.assert_close(logits(read).double(), by_torch(draft, make_row(3, 9, [(2, 9)])), rtol=1e-4, atol=1e-4)


def test_without_its_switches_the_same_tensors_are_another_drafter(folder, target, draft):
    plain = logits(import_draft(folder, target, draft.embed_VH))
    other = import_draft(edit(folder, norm_before_residual=True), target, draft.embed_VH)
    assert other.config.norm_before_residual and not torch.allclose(logits(other), plain, atol=0.1)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_folder_as_the_authors_of_eagle_write_it(folder, target, draft, parts):
    edit(folder, drop=("eagle_config", "eagle_aux_hidden_state_layer_ids"), architectures=["LlamaForCausalLM"])
    tensors = [*load_file(folder / "model.safetensors").items()]
    (folder / "model.safetensors").unlink()
    for part in range(parts):
        torch.save(dict(tensors[part::parts]), folder / f"pytorch_model{f'-{part}' * (parts > 1)}.bin")
    read = import_draft(folder, target, draft.embed_VH)
    assert read.config.aux_layers == (2, 4, 5)
    assert torch.equal(logits(read), logits(draft))


def test_a_full_vocabulary_needs_no_map(tmp_path, target):
    draft = make_draft(draft_vocab_size=V)
    folder = export_draft(draft, tmp_path / "full", {}, dtype=torch.float32)
    assert torch.equal(import_draft(folder, target, draft.embed_VH).target_ids_W, torch.arange(V))


def without(name):
    return lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, "not a Llama-type"),
        ({"num_hidden_layers": 2}, "it has 2 layers"),
        ({"norm_before_fc": True}, r"missing \['input_norm.weight'\]"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, r"RoPE is scaled \(yarn\)"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "there is no 'factor'"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"drop": ("intermediate_size",)}, "there is no 'intermediate_size'"),
        ({"tensors": without("midlayer.hidden_norm.weight")}, r"missing \['midlayer.hidden_norm.weight'\]"),
        ({"tensors": without("d2t")}, "no d2t, and lm_head has 17 rows of 40 ids"),
        ({"tensors": lambda t: t | {"extra.weight": t["norm.weight"].clone()}}, r"unknown \['extra.weight'\]"),
        ({"tensors": lambda t: t | {"d2t": t["d2t"] + torch.arange(17)}}, "target ids run from"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 9]}}, "must lie in 0..7"),
    ],
)
def test_what_cannot_be_done_is_refused(folder, target, draft, changes, words):
    edit(folder, **changes)
    with pytest.raises(CheckpointError, match=words):
        import_draft(folder, target, draft.embed_VH)


def test_files_that_cannot_be_read_are_refused(folder, target, draft, tmp_path):
    with pytest.raises(CheckpointError, match="has no \\*.safetensors and no pytorch_model"):
        import_draft(tmp_path, target, draft.embed_VH)
    (folder / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(CheckpointError, match="cannot be read"):
        import_draft(folder, target, draft.embed_VH)


def test_any_folder_is_opened_as_what_it_is(folder, target, draft, tmp_path):
    assert torch.equal(logits(open_draft(folder, target, draft.embed_VH)), logits(draft))
    assert open_draft(folder, target, draft.embed_VH, [2, 4, 5]).config.aux_layers == (2, 4, 5)
    own = export_draft(draft, tmp_path / "own", {}, dtype=torch.float32)
    assert torch.equal(logits(open_draft(own, target, draft.embed_VH)), logits(draft))
    edit(own, rope_theta=7.0)
    with pytest.raises(CheckpointError, match="rope_theta differ from training.json"):  # its own are read strictly
        open_draft(own, target, draft.embed_VH)
