"""The exported folder: what engines need, read back strictly, every silent fault made loud."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3lab.draft import checkpoint
from eagle3lab.draft.aux_layers import layers_sglang_reads
from eagle3lab.draft.checkpoint import CheckpointError, check_export, engine_config, export_draft, load_draft
from tests.draft.samples import A, H, L, V, W, make_draft


@pytest.fixture
def folder(tmp_path, draft):
    return export_draft(draft, tmp_path / "draft", {"note": "test"})


def test_names_shapes_dtypes_of_the_format(folder):
    tensors = load_file(folder / "model.safetensors")
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    assert shapes == {
        "midlayer.input_layernorm.weight": (H,),
        "midlayer.hidden_norm.weight": (H,),
        "midlayer.post_attention_layernorm.weight": (H,),
        "midlayer.self_attn.q_proj.weight": (32, 2 * H),
        "midlayer.self_attn.k_proj.weight": (16, 2 * H),
        "midlayer.self_attn.v_proj.weight": (16, 2 * H),
        "midlayer.self_attn.o_proj.weight": (H, 32),
        "midlayer.mlp.gate_proj.weight": (24, H),
        "midlayer.mlp.up_proj.weight": (24, H),
        "midlayer.mlp.down_proj.weight": (H, 24),
        "fc.weight": (H, A * H),
        "norm.weight": (H,),
        "lm_head.weight": (W, H),
        "d2t": (W,),
        "t2d": (V,),
    }
    assert tensors["d2t"].dtype == torch.int64 and tensors["t2d"].dtype == torch.bool
    assert tensors["fc.weight"].dtype == torch.bfloat16
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"] and config["num_hidden_layers"] == 1
    assert config["draft_vocab_size"] == W and config["vocab_size"] == V and config["tie_word_embeddings"] is False
    # layers 2, 4, 5 of 8 are the engines' default: no ids, so that every engine agrees
    assert config["eagle_config"] == {"use_aux_hidden_state": True}


def test_other_layers_are_written_in_each_engines_convention(draft):
    object.__setattr__(draft.config, "aux_layers", (1, 3, 6))
    config = engine_config(draft.config)
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 2, 5]  # "after layer k" = hs[k + 1]
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 3, 6]


# eagle3-facts: what SGLang's model files make of explicit ids; hs[k] is the input of layer k
ARCHITECTURES = [
    ("LlamaForCausalLM", (1, 3, 6), [0, 2, 5]),
    ("Qwen3MoeForCausalLM", (2, 3, 6), [1, 2, 5]),
    ("DeepseekV3ForCausalLM", (2, 3, 6), [2, 3, 6]),
    ("KimiK25ForConditionalGeneration", (0, 3, 6), [0, 3, 6]),
    ("Glm4MoeLiteForCausalLM", (2, 4, 6), [2, 4, 6]),
    ("GptOssForCausalLM", (1, 3, 6), [0, 2, 5]),
    ("MiniMaxM3SparseForConditionalGeneration", (2, 4, 5), [1, 3, 4]),  # its default is a layer late: never left out
]


@pytest.mark.parametrize("architecture, layers, ids", ARCHITECTURES)
def test_layers_are_written_as_sglang_reads_them_of_this_target(tmp_path, architecture, layers, ids):
    draft = make_draft(aux_layers=layers, target_architecture=architecture)
    folder = export_draft(draft, tmp_path / "draft", {})
    config = json.loads((folder / "config.json").read_text())
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == ids
    assert config["eagle_aux_hidden_state_layer_ids"] == list(layers)
    assert layers_sglang_reads(ids, L, architecture) == list(layers)
    assert load_draft(folder, draft.embed_VH).config == draft.config


def test_layers_that_sglang_cannot_take_are_refused_before_a_training(tmp_path):
    config = make_draft(aux_layers=(1, 3, 6), target_architecture="DeepseekV3ForCausalLM").config
    with pytest.raises(ValueError, match=r"cannot be told to take hs\[1\] as the first layer of DeepseekV3"):
        check_export(config)
    check_export(make_draft(aux_layers=(1, 3, 6)).config)


def test_reload_gives_the_same_draft(folder, draft):
    loaded = load_draft(folder, draft.embed_VH)
    for name, p in draft.named_parameters():
        assert torch.equal(dict(loaded.named_parameters())[name], p.to(torch.bfloat16).float()), name
    assert torch.equal(loaded.target_ids_W, draft.target_ids_W)


def test_a_drafter_of_another_width_carries_its_embedding(tmp_path):
    draft = make_draft(hidden_size=12)
    folder = export_draft(draft, tmp_path / "draft", {})
    assert torch.equal(load_file(folder / "model.safetensors")["embed_tokens.weight"], draft.embed_VH.bfloat16())
    config = json.loads((folder / "config.json").read_text())
    assert (config["hidden_size"], config["target_hidden_size"]) == (12, H)
    loaded = load_draft(folder, torch.zeros(V, H))  # the target's embedding is of no use here
    assert torch.equal(loaded.embed_VH, draft.embed_VH.bfloat16().float())
    plant(folder, lambda tensors: tensors.pop("embed_tokens.weight"))
    with pytest.raises(CheckpointError, match="no tensor 'embed_tokens.weight'"):
        load_draft(folder, torch.zeros(V, H))


def test_a_full_vocabulary_needs_no_map(tmp_path):
    """vLLM refuses a d2t there; SGLang takes the ids as they are."""
    draft = make_draft(draft_vocab_size=V)
    folder = export_draft(draft, tmp_path / "draft", {})
    assert not {"d2t", "t2d"} & load_file(folder / "model.safetensors").keys()
    assert torch.equal(load_draft(folder, draft.embed_VH).target_ids_W, torch.arange(V))


def plant(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


FAULTS = {
    "d2t missing": (lambda t: t.pop("d2t"), "no tensor 'd2t'"),
    "d2t absolute": (lambda t: t.update(d2t=t["d2t"] + torch.arange(W)), "d2t and t2d name different|outside"),
    "hidden_norm missing": (lambda t: t.pop("midlayer.hidden_norm.weight"), "missing .*hidden_norm"),
    "unknown tensor": (lambda t: t.update(extra=torch.ones(2)), "unknown .*extra"),
    "wrong fc": (lambda t: t.update({"fc.weight": torch.ones(H, H)}), "wrong shape .*fc.weight"),
    "NaN": (lambda t: t["norm.weight"].fill_(float("nan")), "NaN or Inf in .*norm.weight"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_named(folder, draft, fault):
    change, message = FAULTS[fault]
    plant(folder, change)
    with pytest.raises(CheckpointError, match=message):
        load_draft(folder, draft.embed_VH)


def test_edited_config_is_named(folder, draft):
    config = json.loads((folder / "config.json").read_text())
    config["rope_theta"] = 1.0
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="rope_theta differ"):
        load_draft(folder, draft.embed_VH)


def test_truncated_weights_are_named(folder, draft):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_draft(folder, draft.embed_VH)


def test_nan_is_not_exported_and_nothing_is_left(tmp_path):
    draft = make_draft()
    draft.fc.weight.data[0, 0] = float("inf")
    with pytest.raises(CheckpointError, match="fc.weight holds NaN or Inf"):
        export_draft(draft, tmp_path / "draft", {})
    assert list(tmp_path.iterdir()) == []


def test_an_exporter_that_loses_a_tensor_is_stopped(tmp_path, draft, monkeypatch):
    """The proof is a proof: break the writer and the export fails, leaving nothing."""

    def forgetful(tensors, path, metadata):
        save_file({n: t for n, t in tensors.items() if n != "fc.weight"}, path, metadata=metadata)

    monkeypatch.setattr(checkpoint, "save_file", forgetful)
    with pytest.raises(CheckpointError, match="missing .*fc.weight"):
        export_draft(draft, tmp_path / "draft", {})
    assert list(tmp_path.iterdir()) == []


def test_an_export_replaces_nothing_but_an_export(tmp_path, draft):
    """Whatever else lies in the folder stays: files, folders, half a drafter, and a file of that name."""
    again, empty = export_draft(draft, tmp_path / "draft", {"note": "first"}), tmp_path / "empty"
    assert (
        json.loads((export_draft(draft, again, {"note": "second"}) / "training.json").read_text())["note"] == "second"
    )
    empty.mkdir()
    assert load_draft(export_draft(draft, empty, {}), draft.embed_VH)
    own, half, below, file = (tmp_path / name for name in ("own", "half", "below", "file"))
    for path in (own, half, below / "optimizer"):
        path.mkdir(parents=True)
    (own / "thesis.txt").write_text("mine")
    (half / "config.json").write_text("{}")
    file.write_text("mine")
    (again / ".notes").write_text("mine")
    for folder, name in ((own, "thesis.txt"), (half, "config.json"), (below, "optimizer"), (file, "file")):
        with pytest.raises(CheckpointError, match=f"{folder} is not .* holds {name}; name a new folder, or move these"):
            export_draft(draft, folder, {})
    with pytest.raises(CheckpointError, match="holds .notes;"):
        export_draft(draft, again, {})
    assert (own / "thesis.txt").read_text() == file.read_text() == "mine" and (below / "optimizer").is_dir()
    assert json.loads((again / "training.json").read_text())["note"] == "second"
