"""Each fault is planted in a good drafter's folder and found; the good folder passes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from eagle3lab.draft.checkpoint import export_draft
from eagle3lab.draft.model import DraftConfig, Eagle3Draft
from eagle3lab.engines.servers.findings import faults
from eagle3lab.engines.servers.model_files import read_draft, read_target
from eagle3lab.engines.sglang.attach import parse_server_info
from eagle3lab.engines.sglang.draft_guards import check_sizes
from eagle3lab.engines.sglang.guards import before_launch, check_speculation, on_server, tree_capacity
from eagle3lab.engines.sglang.spec import ServerSpec
from tests.engines.sglang.drafters import CONTEXT, IDS_W, H, V, W, good_tensors, with_ids, write_draft, write_target


@pytest.fixture
def target(tmp_path):
    return write_target(tmp_path / "target")


def found(target, draft, **changes):
    return before_launch(ServerSpec(**{"target": target, "draft": draft, **changes}), "0.5.23")


def only(findings, level):
    """The one finding there is, as text."""
    assert [finding.level for finding in findings] == [level], [str(finding) for finding in findings]
    return findings[0].text


def test_a_good_folder_of_somebody_else_passes(tmp_path, target):
    assert found(target, write_draft(tmp_path / "draft")) == []


@pytest.mark.parametrize("aux_layers", [(2, 4, 5), (1, 3, 6)])
def test_a_drafter_of_this_project_passes(tmp_path, target, aux_layers):
    config = DraftConfig(
        hidden_size=H, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=V,
        draft_vocab_size=W, target_hidden_size=H, aux_layers=aux_layers, target_num_layers=8,
        max_position_embeddings=CONTEXT,
    )  # fmt: skip
    draft = Eagle3Draft(config, torch.zeros(V, H), torch.from_numpy(IDS_W))
    assert found(target, export_draft(draft, tmp_path / "draft", {"trained_length": CONTEXT})) == []


def test_stored_names_with_the_model_prefix_pass(tmp_path, target):
    tensors = {f"model.{n}" if n not in ("d2t", "t2d", "lm_head.weight") else n: t for n, t in good_tensors().items()}
    assert found(target, write_draft(tmp_path / "draft", tensors)) == []


# ---- the flag ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["EAGLE", "NEXTN"])
def test_the_wrong_flag_is_a_fault_and_the_right_one_is_named(tmp_path, target, algorithm):
    (finding,) = found(target, write_draft(tmp_path / "draft"), algorithm=algorithm)
    assert finding.level == "fault"
    assert f"--speculative-algorithm is {algorithm}" in finding.text
    assert "EAGLE3" in finding.remedy


def test_an_older_kind_of_drafter_with_the_flag_of_the_new_one(tmp_path, target):
    tensors = {"fc.weight": np.zeros((H, 2 * H), np.float32)}
    draft = write_draft(tmp_path / "draft", tensors, architectures=["LlamaForCausalLMEagle"], drop=["draft_vocab_size"])
    assert "is no EAGLE-3 drafter" in only(found(target, draft), "fault")
    assert found(target, draft, algorithm="EAGLE") == []


# ---- steps, topk, draft tokens -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_steps", "topk", "num_draft_tokens", "level", "text"),
    [
        (3, 1, 5, "fault", "a chain verifies"),
        (3, 1, 3, "fault", "a chain verifies"),
        (3, 2, 12, "fault", "11 nodes at most"),
        (1, 4, 6, "fault", "5 nodes at most"),
        (3, 2, 1, "fault", "nothing would be drafted"),
        (5, 4, 4, "warning", "cannot fill a path"),
    ],
)
def test_settings_that_make_no_sense(num_steps, topk, num_draft_tokens, level, text):
    assert text in only(check_speculation(num_steps, topk, num_draft_tokens), level)


@pytest.mark.parametrize("setting", [(3, 1, 4), (1, 1, 2), (5, 4, 8), (3, 2, 11), (1, 4, 5), (6, 10, 60)])
def test_settings_that_do(setting):
    assert check_speculation(*setting) == []


@pytest.mark.parametrize(("num_steps", "topk"), [(1, 1), (4, 1), (1, 5), (2, 3), (4, 2)])
def test_a_tree_holds_as_many_nodes_as_the_server_scores(num_steps, topk):
    # the server's own drafting: all children of the root, then of the topk best nodes of every step
    scored, beam = 0, 1
    for _ in range(num_steps):
        scored += beam * topk
        beam = topk
    assert tree_capacity(num_steps, topk) == 1 + scored


# ---- sizes, layers -----------------------------------------------------------------------------------------


def test_another_hidden_size_of_the_target(tmp_path):
    target = write_target(tmp_path / "target", hidden_size=48)
    text = " ".join(f.text for f in faults(found(target, write_draft(tmp_path / "draft"))))
    assert "states of width 32, the target's have 48" in text


def test_another_vocabulary_of_the_target(tmp_path):
    target = write_target(tmp_path / "target", vocab_size=70)
    assert "64 ids, the target has 70" in only(found(target, write_draft(tmp_path / "draft")), "fault")


def test_sizes_that_stand_elsewhere_are_not_taken_for_another_target(tmp_path):
    """As speculators writes them: inside transformer_layer_config."""
    nested = {"transformer_layer_config": {"hidden_size": H}}
    draft = write_draft(tmp_path / "draft", drop=("hidden_size", "vocab_size"), **nested)
    (unsaid,) = check_sizes(read_draft(draft), read_target(write_target(tmp_path / "target")))
    assert unsaid.text.startswith("config.json names no hidden_size and no vocab_size") and unsaid.level == "fault"
    assert unsaid.remedy.startswith("convert the drafter")


def test_a_narrower_drafter_needs_an_embedding_of_its_own(tmp_path):
    target = write_target(tmp_path / "target", hidden_size=48)
    tensors = good_tensors() | {"fc.weight": np.zeros((H, 3 * 48), np.float32)}
    draft = write_draft(tmp_path / "without", tensors, target_hidden_size=48)
    assert "random values for embed_tokens.weight" in only(found(target, draft), "fault")
    tensors["embed_tokens.weight"] = np.zeros((V, H), np.float32)
    assert found(target, write_draft(tmp_path / "with", tensors, target_hidden_size=48)) == []


@pytest.mark.parametrize(
    ("architecture", "ids"),
    [("LlamaForCausalLM", [1, 3, 4]), ("DeepseekV3ForCausalLM", [1, 3, 4]), ("DeepseekV3ForCausalLM", [2, 4, 5])],
)
def test_ids_of_the_layers_trained_on_pass(tmp_path, architecture, ids):
    target = write_target(tmp_path / "target", architectures=[architecture])
    training = {"draft_config": {"aux_layers": [2, 4, 5]}}
    assert found(target, write_draft(tmp_path / "draft", training=training, **with_ids(*ids))) == []


def test_ids_off_by_one_layer_are_a_fault(tmp_path, target):
    training = {"draft_config": {"aux_layers": [2, 4, 5]}}
    draft = write_draft(tmp_path / "draft", training=training, **with_ids(2, 4, 5))
    text = only(found(target, draft), "fault")
    assert "hs[3, 5, 6]" in text and "trained on hs[2, 4, 5]" in text


def test_ids_in_the_form_of_llama_are_a_fault_for_a_deepseek_target(tmp_path):
    target = write_target(tmp_path / "target", architectures=["DeepseekV3ForCausalLM"])
    training = {"draft_config": {"aux_layers": [3, 4, 6]}}
    draft = write_draft(tmp_path / "draft", training=training, **with_ids(2, 3, 5))
    assert "take hs[2, 3, 5] of DeepseekV3ForCausalLM" in only(found(target, draft), "fault")


def test_the_two_lists_of_ids_contradict_each_other(tmp_path, target):
    draft = write_draft(tmp_path / "draft", eagle_aux_hidden_state_layer_ids=[1, 3, 4], **with_ids(1, 3, 4))
    assert "which vLLM reads, say hs[1, 3, 4]" in only(found(target, draft), "warning")


@pytest.mark.parametrize(("ids", "text"), [([1, 3, 9], "does not have"), ([1, 3, 7], "after the last layer")])
def test_layers_that_the_target_lacks(tmp_path, target, ids, text):
    assert text in " ".join(f.text for f in found(target, write_draft(tmp_path / "draft", **with_ids(*ids))))


def test_default_layers_that_collide_in_a_shallow_target(tmp_path):
    target = write_target(tmp_path / "target", num_hidden_layers=6)
    assert "but fc takes 3 states" in only(found(target, write_draft(tmp_path / "draft")), "fault")


# ---- context -----------------------------------------------------------------------------------------------


def test_a_context_longer_than_the_drafter_has_or_saw(tmp_path, target):
    draft = write_draft(tmp_path / "draft", training={"trained_length": 40}, max_position_embeddings=100)
    texts = [finding.text for finding in found(target, draft)]
    assert "allows 128 positions, the drafter's max_position_embeddings is 100" in texts[0]
    assert "allows 128 positions, the drafter's longest training row had 40" in texts[1]
    assert faults(found(target, draft)) == []
    assert found(target, draft, context_length=40) == []


# ---- folders, capture --------------------------------------------------------------------------------------


def test_a_drafter_whose_files_cannot_be_read(tmp_path, target):
    draft = write_draft(tmp_path / "draft")
    (draft / "model.safetensors").write_bytes(b"cut")
    assert "model.safetensors: cannot be read" in only(found(target, draft), "fault")
    (draft / "model.safetensors").unlink()
    assert "has no *.safetensors" in only(found(target, draft), "fault")


def test_what_is_not_here_is_said_not_to_be_checked(tmp_path, target):
    assert "is no folder here" in only(found(target, "owner/drafter"), "warning")
    assert "was not checked against it" in only(found("owner/model", write_draft(tmp_path / "draft")), "warning")


def capture(target, version="0.5.23", **changes):
    return before_launch(ServerSpec(**{"target": target, "return_aux": True, **changes}), version)


def test_capturing_with_an_older_release(target):
    assert "cannot hand out aux states" in only(capture(target, "0.5.22"), "fault")
    assert capture(target) == []


@pytest.mark.parametrize(
    ("architecture", "aux_layers", "text"),
    [
        ("LlamaForCausalLM", [0, 2, 4], "cannot capture hs[0]"),
        ("LlamaForCausalLM", [2, 4, 8], "must lie in 0..7"),
        ("LlamaForCausalLM", [4, 2, 5], "must increase"),
        ("DeepseekV3ForCausalLM", [1, 2, 4], "begins with 1"),
    ],
)
def test_layers_that_cannot_be_captured(tmp_path, architecture, aux_layers, text):
    target = write_target(tmp_path / "target", architectures=[architecture])
    assert text in only(capture(target, aux_layers=aux_layers), "fault")


def test_layers_of_a_target_that_is_not_here():
    assert "cannot be turned into SGLang's ids" in only(capture("owner/model", aux_layers=[2, 4, 5]), "fault")
    assert capture("owner/model") == []


# ---- a server of somebody else -----------------------------------------------------------------------------


@pytest.fixture
def info(target):
    answer = {
        "version": "0.5.23", "model_path": str(target), "speculative_algorithm": "EAGLE", "device": "cuda",
        "speculative_draft_model_path": "/somewhere/else", "speculative_num_steps": 3, "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4, "context_length": None, "internal_states": [{}],
    }  # fmt: skip
    return parse_server_info("http://127.0.0.1:1", answer, {"model_path": str(target)})


def test_the_wrong_flag_of_a_running_server_is_recognised_by_its_drafters_folder(tmp_path, info):
    info = replace(info, draft=str(write_draft(tmp_path / "draft")))
    assert "--speculative-algorithm is EAGLE" in only(faults(on_server(info)), "fault")
    assert on_server(replace(info, algorithm="EAGLE3")) == []


@pytest.mark.parametrize("draft", ["lmsys/SGLang-EAGLE3-Llama", "/models/kimi-k2.5-eagle-3-mla"])
def test_or_by_its_drafters_name(info, draft):
    assert "runs --speculative-algorithm EAGLE and its drafter is" in only(
        on_server(replace(info, draft=draft)), "fault"
    )


def test_or_by_an_accept_length_of_one(info):
    assert "its accept length is 1.00" in only(on_server(replace(info, accept_length=1.0)), "fault")
    assert on_server(replace(info, accept_length=1.4)) == []
    assert on_server(info) == []


def test_a_drafter_trained_on_other_layers_is_recognised_on_a_running_server(tmp_path, info):
    training = {"draft_config": {"aux_layers": [3, 4, 6]}}
    info = replace(info, algorithm="EAGLE3", draft=str(write_draft(tmp_path / "draft", training=training)))
    assert "trained on hs[3, 4, 6]" in only(on_server(info), "fault")


def test_a_server_without_speculation_has_nothing_to_find(info):
    assert on_server(replace(info, algorithm=None, draft=None, num_steps=None)) == []
