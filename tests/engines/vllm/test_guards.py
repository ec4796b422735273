"""Each fault is planted in a good drafter's folder and named before vLLM is launched; the good folder passes."""

import sys

import numpy as np
import pytest
import torch

from eagle3lab.draft.checkpoint import export_draft
from eagle3lab.draft.engine_support import SERVER
from eagle3lab.draft.model import DraftConfig, Eagle3Draft
from eagle3lab.engines.servers.findings import LaunchRefused
from eagle3lab.engines.servers.python import ServerPythonError
from eagle3lab.engines.sglang.guards import before_launch as before_sglang
from eagle3lab.engines.sglang.spec import ServerSpec
from eagle3lab.engines.vllm import server as server_module
from eagle3lab.engines.vllm.guards import before_launch
from eagle3lab.engines.vllm.server import VllmServer
from eagle3lab.engines.vllm.spec import VllmSpec
from tests.engines.sglang.drafters import (
    CONTEXT,
    DRAFT,
    IDS_W,
    H,
    V,
    W,
    good_tensors,
    with_ids,
    write_draft,
    write_target,
)

FAMILIES = ("LlamaForCausalLM", "GptOssForCausalLM", "MiniMaxM3SparseForConditionalGeneration")


@pytest.fixture
def target(tmp_path):
    return write_target(tmp_path / "target")


def found(target, draft, version="0.32.0", **changes):
    return before_launch(VllmSpec(**{"target": target, "draft": draft, **changes}), version)


def only(findings, level):
    """The one finding there is, as text."""
    assert [finding.level for finding in findings] == [level], [str(finding) for finding in findings]
    return findings[0].text


def test_a_good_folder_of_somebody_else_passes(tmp_path, target):
    assert found(target, write_draft(tmp_path / "draft")) == []


def exported(folder, architecture="LlamaForCausalLM", aux_layers=(2, 4, 5), engine=SERVER, **changes):
    config = DraftConfig(
        hidden_size=H, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=V,
        draft_vocab_size=W, target_hidden_size=H, aux_layers=aux_layers, target_num_layers=8,
        max_position_embeddings=CONTEXT, target_architecture=architecture, **changes,
    )  # fmt: skip
    draft = Eagle3Draft(config, torch.zeros(V, H), torch.from_numpy(IDS_W))
    return export_draft(draft, folder, {"trained_length": CONTEXT}, engine=engine)


@pytest.mark.parametrize("options", [{}, {"fc_norm": True, "norm_output": True}])
@pytest.mark.parametrize("aux_layers", [(2, 4, 5), (1, 3, 6), (1, 3, 5, 6)])
@pytest.mark.parametrize(
    "architecture", ["LlamaForCausalLM", "GptOssForCausalLM", "MiniMaxM3SparseForConditionalGeneration"]
)
def test_one_exported_folder_is_right_for_both_engines(tmp_path, architecture, aux_layers, options):
    target = write_target(tmp_path / "target", architectures=[architecture])
    draft = exported(tmp_path / "draft", architecture, aux_layers, **options)
    assert found(target, draft) == []
    assert before_sglang(ServerSpec(target, draft=draft), "0.5.23") == []


@pytest.mark.parametrize("aux_layers", [(2, 4, 5), (3, 4, 6), (0, 2, 4)])
def test_one_exported_folder_is_right_for_both_engines_and_deepseek(tmp_path, aux_layers):
    test_one_exported_folder_is_right_for_both_engines(tmp_path, "DeepseekV3ForCausalLM", aux_layers, {})


# ---- layers: ids are hs indices to vLLM, whoever wrote them -------------------------------------------------


def test_ids_in_sglangs_form_alone_are_one_layer_off(tmp_path, target):
    training = {"draft_config": {"aux_layers": [2, 4, 5]}}
    draft = write_draft(tmp_path / "draft", training=training, **with_ids(1, 3, 4))
    text = only(found(target, draft), "fault")
    assert "inside eagle_config=[1, 3, 4] makes vLLM take hs[1, 3, 4]" in text and "trained on hs[2, 4, 5]" in text


def test_ids_in_sglangs_form_of_a_folder_that_does_not_say_what_is_meant(tmp_path, target):
    text = only(found(target, write_draft(tmp_path / "draft", **with_ids(1, 3, 4))), "warning")
    assert "makes vLLM take hs[1, 3, 4]" in text and "make SGLang take hs[2, 4, 5]" in text


def test_ids_at_the_top_go_before_those_inside(tmp_path, target):
    training = {"draft_config": {"aux_layers": [2, 4, 5]}}
    ids = {"eagle_aux_hidden_state_layer_ids": [2, 4, 5], **with_ids(1, 3, 4)}
    assert found(target, write_draft(tmp_path / "right", training=training, **ids)) == []
    ids["eagle_aux_hidden_state_layer_ids"] = [3, 5, 6]
    assert "at the top=[3, 5, 6]" in only(
        found(target, write_draft(tmp_path / "off", training=training, **ids)), "fault"
    )


def test_vllm_sizes_fc_by_the_ids_inside(tmp_path, target):
    draft = write_draft(tmp_path / "draft", eagle_aux_hidden_state_layer_ids=[1, 2, 4, 6])
    assert "but fc takes 3 states" in only(found(target, draft), "fault")


def test_layers_that_the_target_lacks(tmp_path, target):
    draft = write_draft(tmp_path / "draft", eagle_aux_hidden_state_layer_ids=[1, 3, 9])
    assert "which it does not have" in only(found(target, draft), "fault")


# ---- vocabulary map, tensors -------------------------------------------------------------------------------


def without(name):
    tensors = good_tensors()
    del tensors[name]
    return tensors


def test_d2t_missing(tmp_path, target):
    assert "no tensor d2t" in only(found(target, write_draft(tmp_path / "draft", without("d2t"))), "fault")


def test_d2t_of_absolute_ids(tmp_path, target):
    tensors = good_tensors() | {"d2t": IDS_W}
    assert "holds the target's ids themselves" in only(found(target, write_draft(tmp_path / "d", tensors)), "fault")


def test_d2t_beside_a_full_vocabulary(tmp_path, target):
    tensors = good_tensors() | {"lm_head.weight": np.zeros((V, H), np.float32), "d2t": np.zeros(V, np.int64)}
    draft = write_draft(tmp_path / "draft", tensors, draft_vocab_size=V)
    assert "vLLM has no place for it" in only(found(target, draft), "fault")


@pytest.mark.parametrize("name", sorted(set(good_tensors()) - {"d2t", "t2d"}))
def test_a_missing_tensor_is_named(tmp_path, target, name):
    text = only(found(target, write_draft(tmp_path / "draft", without(name))), "fault")
    assert "vLLM would start without" in text and name.replace("midlayer", "layers.0") in text


@pytest.mark.parametrize("name", ["fc_norm.0.weight", "midlayer.self_attn.q_proj.bias", "decoder.fc.weight"])
def test_an_unknown_tensor_is_named(tmp_path, target, name):
    tensors = good_tensors() | {name: np.zeros(H, np.float32)}
    assert f"does not know {name}" in only(found(target, write_draft(tmp_path / "draft", tensors)), "fault")


def test_sglangs_older_names_of_the_norms_are_unknown(tmp_path, target):
    norms = {f"aux_norm_{place}.weight": np.zeros(H, np.float32) for place in ("low", "mid", "high")}
    draft = write_draft(tmp_path / "draft", good_tensors() | norms, fc_norm=True)
    assert "does not know aux_norm_" in only(found(target, draft), "fault")


# ---- options ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["norm_output", "norm_before_residual"])
def test_a_norm_that_was_not_trained(tmp_path, target, option):
    training = {"draft_config": {"aux_layers": [2, 4, 5]}}
    draft = write_draft(tmp_path / "draft", training=training, **{option: True})
    assert f"{option} is on in config.json, the drafter was trained with it off" in only(found(target, draft), "fault")
    own = write_draft(tmp_path / "own", **{option: True})  # somebody else's, who trained it so
    assert found(target, own) == []


def test_a_norm_that_was_trained_and_is_left_out(tmp_path, target):
    training = {"draft_config": {"aux_layers": [2, 4, 5], "norm_output": True}}
    draft = write_draft(tmp_path / "draft", training=training)
    assert "norm_output is off in config.json" in only(found(target, draft), "fault")


def test_what_speculators_trains_by_default_is_served_by_vllm_alone(tmp_path, target):
    options = {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True}
    draft = exported(tmp_path / "draft", engine="vllm==0.32.0", **options)
    assert found(target, draft) == []
    refused = only(before_sglang(ServerSpec(target, draft=draft), "0.5.23"), "fault")
    assert "norm_before_residual is on, and SGLang, which does not know it, would leave it out" in refused


@pytest.mark.parametrize(
    ("option", "norms", "release"),
    [
        ("fc_norm", {f"fc_norm.{i}.weight": np.zeros(H, np.float32) for i in range(3)}, "0.21.0"),
        ("norm_output", {}, "0.21.0"),
        ("norm_before_fc", {"input_norm.weight": np.zeros(3 * H, np.float32)}, "0.17.1"),
        ("norm_before_residual", {}, "0.10.0"),
    ],
)
def test_an_option_that_an_older_release_leaves_out(tmp_path, target, option, norms, release):
    draft = write_draft(tmp_path / "draft", good_tensors() | norms, **{option: True})
    texts = [finding.text for finding in found(target, draft, release)]
    assert texts[0].startswith(f"vLLM {release} was not tried") and f"{option} is on" in texts[1]
    assert found(target, draft) == []


def test_a_drafter_of_another_target(tmp_path):
    target = write_target(tmp_path / "target", vocab_size=70)
    assert "64 ids, the target has 70" in " ".join(f.text for f in found(target, write_draft(tmp_path / "draft")))


def test_a_drafter_as_speculators_writes_it(tmp_path, target):
    """Sizes inside transformer_layer_config, layers named layers.0, ids at the top."""
    inner = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers",
             "max_position_embeddings", "vocab_size")  # fmt: skip
    tensors = {name.replace("midlayer", "layers.0"): tensor for name, tensor in good_tensors().items()}
    config = {
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "target_hidden_size": None,
        "transformer_layer_config": {name: DRAFT[name] for name in inner},
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5], "norm_before_residual": True,
    }  # fmt: skip
    draft = write_draft(tmp_path / "draft", tensors, drop=inner, **config)
    assert found(target, draft) == []
    del tensors["fc.weight"]
    draft = write_draft(tmp_path / "without", tensors, drop=inner, **config)
    assert "start without fc.weight" in only(found(target, draft), "fault")


# ---- the launch ---------------------------------------------------------------------------------------------


def test_layers_to_capture_that_the_target_lacks(target):
    spec = VllmSpec(target, capture_folder="/c", aux_layers=(1, 8))
    assert "must lie in 0..7" in only(before_launch(spec, "0.32.0"), "fault")


def test_a_fault_forbids_the_launch(monkeypatch, tmp_path, target):
    monkeypatch.setattr(server_module, "installed_vllm", lambda python: "0.32.0")
    server = VllmServer(VllmSpec(target, draft=write_draft(tmp_path / "d", without("fc.weight"))))
    with pytest.raises(LaunchRefused, match="start without fc.weight"):
        server.start()
    assert not server.alive()


def test_a_python_that_has_no_vllm(tmp_path, target):
    with pytest.raises(ServerPythonError, match="make vllm-env"):
        VllmServer(VllmSpec(target), python=tmp_path / "python").start()
    with pytest.raises(ServerPythonError, match="has no vLLM"):
        VllmServer(VllmSpec(target), python=sys.executable).start()


def test_a_context_longer_than_the_drafter_has_or_saw(tmp_path, target):
    draft = write_draft(tmp_path / "draft", training={"trained_length": 40}, max_position_embeddings=100)
    texts = [finding.text for finding in found(target, draft)]
    assert "allows 128 positions, the drafter's max_position_embeddings is 100" in texts[0]
    assert "allows 128 positions, the drafter's longest training row had 40" in texts[1]
    assert found(target, draft, context_length=40) == []
