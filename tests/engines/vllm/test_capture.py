"""Files of states as vLLM's connector writes them, turned into features; real servers are asked in tests/vllm."""

import json

import pytest
import torch
from safetensors.torch import save_file

from eagle3lab.engines.base import NonFiniteError
from eagle3lab.engines.servers.errors import BadAnswer, ServerFault
from eagle3lab.engines.vllm.capture import FinalNorm, capture_states
from tests.engines.fake_server import FakeServer
from tests.tiny import HIDDEN, save_tiny_target


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return save_tiny_target(tmp_path_factory.mktemp("target"))


def captured(target, tmp_path, change=lambda tensors: tensors, order=(0, 1, 2), written=True):
    """Features of one row of three tokens, whose states the stand-in writes: layer a holds the number a."""
    path = tmp_path / "cmpl.safetensors"

    def reply(body, attempt):
        states_TLH = torch.arange(4.0)[None, :, None].expand(3, 4, HIDDEN).contiguous()
        tensors = {"token_ids": torch.tensor(body["prompt"]), "hidden_states": states_TLH}
        if written:
            save_file(change(tensors), path)
        assert body["max_tokens"] == 1
        return {"choices": [{"token_ids": [5]}], "kv_transfer_params": {"hidden_states_path": str(path)}}

    with FakeServer(reply) as server:
        rows = [("row", [5, 6, 7])]
        (features,) = capture_states(server.url, FinalNorm(target), rows, list(order), 2, patience_s=0.2)
    assert not path.exists()
    return features


def test_layers_are_told_apart_and_the_last_state_is_normed(target, tmp_path):
    features = captured(target, tmp_path, order=(2, 0, 1))  # aux layers that were not asked in ascending order
    assert features.input_ids_T.tolist() == [5, 6, 7] and features.input_ids_T.dtype == torch.int32
    assert features.aux_TAH[1, :, 0].tolist() == [2.0, 0.0, 1.0]
    # a state of equal numbers has a root mean square of that number: the norm leaves its weights, all one at first
    torch.testing.assert_close(features.last_TH, torch.ones(3, HIDDEN))


@pytest.mark.parametrize(
    ("change", "error", "what"),
    [
        (lambda t: t | {"token_ids": t["token_ids"] + 1}, BadAnswer, "other tokens"),
        (lambda t: t | {"hidden_states": t["hidden_states"][:, :3].contiguous()}, BadAnswer, "or layers"),
        (lambda t: t | {"hidden_states": t["hidden_states"] * float("nan")}, NonFiniteError, "NaN"),
    ],
)
def test_what_was_not_asked_is_refused(target, tmp_path, change, error, what):
    with pytest.raises(error, match=f"'row'.*{what}"):
        captured(target, tmp_path, change)


def test_a_file_that_never_comes(target, tmp_path):
    with pytest.raises(ServerFault, match="'row'.*did not write"):
        captured(target, tmp_path, written=False)


def test_a_server_that_does_not_capture(target, tmp_path):
    with FakeServer(lambda body, attempt: {"choices": [{"token_ids": [5]}]}) as server:
        with pytest.raises(BadAnswer, match="'row'.*does not capture"):
            list(capture_states(server.url, FinalNorm(target), [("row", [5])], [0], 1, 0.2))


def test_a_target_that_ends_with_another_norm_is_refused(target, tmp_path):
    config = json.loads((target / "config.json").read_text())
    for changes in ({"architectures": ["Gemma2ForCausalLM"]}, {"rms_norm_eps": None}):
        changed = {key: value for key, value in (config | changes).items() if value is not None}
        (tmp_path / "config.json").write_text(json.dumps(changed))
        with pytest.raises(ValueError, match="plain RMSNorm: capture it with SGLang"):
            FinalNorm(tmp_path)
