"""A drafter written as other projects write it gives the same logits when read; what cannot be done is refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3lab.draft.checkpoint import CheckpointError, export_draft
from eagle3lab.draft.foreign import import_draft, open_draft
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
        ({"norm_before_residual": True}, "norm_before_residual is on"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "RoPE is scaled"),
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
    with pytest.raises(CheckpointError, match="has no \\*.safetensors"):
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
