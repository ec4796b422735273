"""Faults of a drafter's vocabulary map, tensors and options are found before a launch; the good folder passes."""

import numpy as np
import pytest

from eagle3lab.engines.servers.findings import faults
from eagle3lab.engines.sglang.guards import before_launch
from eagle3lab.engines.sglang.spec import ServerSpec
from tests.engines.sglang.drafters import IDS_W, H, V, W, good_tensors, with_ids, write_draft, write_target
from tests.engines.sglang.test_guards import found, only


@pytest.fixture
def target(tmp_path):
    return write_target(tmp_path / "target")


# ---- vocabulary map ----------------------------------------------------------------------------------------


def map_fault(tmp_path, target, d2t, t2d="kept"):
    tensors = good_tensors() | {"d2t": d2t}
    if t2d is None:
        del tensors["t2d"]
    return only(found(target, write_draft(tmp_path / "draft", tensors)), "fault")


@pytest.mark.parametrize("t2d", ["kept", None])
def test_absolute_ids_in_d2t(tmp_path, target, t2d):
    assert "holds the target's ids themselves (0, 1, ... 42)" in map_fault(tmp_path, target, IDS_W, t2d)


def test_d2t_out_of_range(tmp_path, target):
    assert "outside the target's 0..63" in map_fault(tmp_path, target, IDS_W - np.arange(W) + 30, None)


def test_d2t_with_an_id_twice(tmp_path, target):
    ids = IDS_W.copy()
    ids[3] = ids[4]
    assert "1 target ids twice" in map_fault(tmp_path, target, ids - np.arange(W))


def test_d2t_against_t2d(tmp_path, target):
    ids = IDS_W.copy()
    ids[-1] += 1
    assert "name different target ids" in map_fault(tmp_path, target, ids - np.arange(W))


def test_d2t_of_another_length(tmp_path, target):
    assert f"d2t has 19 entries, draft_vocab_size is {W}" in map_fault(tmp_path, target, np.zeros(19, np.int64))


def test_d2t_missing(tmp_path, target):
    tensors = good_tensors()
    del tensors["d2t"]
    assert "no tensor d2t" in only(found(target, write_draft(tmp_path / "draft", tensors)), "fault")


def test_an_unsorted_draft_vocabulary_passes_where_t2d_agrees(tmp_path, target):
    ids = IDS_W[::-1].copy()
    assert found(target, write_draft(tmp_path / "draft", good_tensors() | {"d2t": ids - np.arange(W)})) == []


def test_a_full_vocabulary_needs_no_map(tmp_path, target):
    tensors = good_tensors() | {"lm_head.weight": np.zeros((V, H), np.float32)}
    del tensors["d2t"], tensors["t2d"]
    assert found(target, write_draft(tmp_path / "own", tensors, draft_vocab_size=V)) == []
    del tensors["lm_head.weight"]
    assert found(target, write_draft(tmp_path / "of the target", tensors, draft_vocab_size=None)) == []
    assert "no draft_vocab_size" in only(
        found(target, write_draft(tmp_path / "x", tensors, drop=["draft_vocab_size"])), "fault"
    )


# ---- tensors, options --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(good_tensors()) - {"d2t", "t2d"}))
def test_a_missing_tensor(tmp_path, target, name):
    tensors = good_tensors()
    del tensors[name]
    text = only(found(target, write_draft(tmp_path / "draft", tensors)), "fault")
    assert "random values for" in text and name.replace("midlayer", "layers.0") in text


@pytest.mark.parametrize("name", ["midlayer.self_attn.q_proj.bias", "fc_norm.0.weight", "decoder.fc.weight"])
def test_a_tensor_that_would_be_dropped(tmp_path, target, name):
    tensors = good_tensors() | {name: np.zeros(H, np.float32)}
    assert f"would drop {name}" in only(found(target, write_draft(tmp_path / "draft", tensors)), "fault")


def test_a_tensor_named_for_another_engine_is_missing_and_dropped(tmp_path, target):
    tensors = good_tensors()
    tensors["fusion.weight"] = tensors.pop("fc.weight")
    texts = [f.text for f in faults(found(target, write_draft(tmp_path / "draft", tensors)))]
    assert any("random values for fc.weight" in t for t in texts) and any("drop fusion.weight" in t for t in texts)


def test_a_wrong_shape(tmp_path, target):
    tensors = good_tensors() | {"fc.weight": np.zeros((H, H), np.float32)}
    assert "fc.weight [32, 32] instead of [32, 96]" in only(
        found(target, write_draft(tmp_path / "draft", tensors)), "fault"
    )


def test_a_norm_before_fc_is_expected_where_the_config_says_so(tmp_path, target):
    tensors = good_tensors() | {f"fc_norm.{i}.weight": np.zeros(H, np.float32) for i in range(3)}
    assert found(target, write_draft(tmp_path / "with", tensors, fc_norm=True)) == []
    assert "fc_norm.0.weight" in only(found(target, write_draft(tmp_path / "without", fc_norm=True)), "fault")


def test_the_targets_embedding_may_be_stored_too(tmp_path, target):
    tensors = good_tensors() | {"embed_tokens.weight": np.zeros((V, H), np.float32)}
    assert found(target, write_draft(tmp_path / "draft", tensors)) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"norm_before_residual": True}, "norm_before_residual"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state"),
        ({"architectures": ["LlamaForCausalLMEagle4"]}, "no EAGLE-3 drafter that SGLang knows"),
        ({"drop": ["intermediate_size"]}, "does not say 'intermediate_size'"),
    ],
)
def test_options_the_server_does_not_know(tmp_path, target, changes, text):
    assert text in only(found(target, write_draft(tmp_path / "draft", **changes)), "fault")


def test_a_drafter_with_latent_attention_cannot_run_on_a_cpu(tmp_path, target):
    draft = write_draft(tmp_path / "draft", architectures=["Eagle3DeepseekV2ForCausalLM"])
    assert found(target, draft) == []
    assert "does not run on a CPU" in only(found(target, draft, device="cpu"), "fault")


@pytest.mark.parametrize(
    ("option", "norms", "older", "since"),
    [
        ("fc_norm", {f"fc_norm.{i}.weight": np.zeros(H, np.float32) for i in range(3)}, "0.5.11", "0.5.12"),
        ("norm_output", {}, "0.5.11", "0.5.12"),
        ("norm_before_fc", {"input_norm.weight": np.zeros(3 * H, np.float32)}, "0.5.16", "0.5.17"),
    ],
)
def test_an_option_that_an_older_release_leaves_out(tmp_path, target, option, norms, older, since):
    spec = ServerSpec(target, draft=write_draft(tmp_path / "draft", good_tensors() | norms, **{option: True}))
    assert f"{option} is on, which SGLang {older} does not know" in only(before_launch(spec, older), "fault")
    assert before_launch(spec, since) == []


def test_states_as_wide_as_the_drafter(tmp_path):
    """Then the server cannot tell target states from the drafter's own."""
    target = write_target(tmp_path / "target", hidden_size=8)
    tensors = good_tensors() | {
        "fc.weight": np.zeros((H, 4 * 8), np.float32),
        "embed_tokens.weight": np.zeros((V, H), np.float32),
    }
    draft = write_draft(tmp_path / "draft", tensors, target_hidden_size=8, **with_ids(0, 1, 3, 5))
    assert "skip fc" in only(found(target, draft), "fault")
