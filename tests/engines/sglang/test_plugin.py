"""The plugin's hooks on what SGLang hands them; what it really hands them is tested on servers in tests/sglang."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from eagle3lab.engines.sglang import plugin
from eagle3lab.engines.sglang.capture import plugin_environment
from eagle3lab.engines.sglang.capture_files import FOLDER_VARIABLE


def batch(mode="EXTEND", rids=("a", "b"), lengths=(2, 1), starts=(0, 4)):
    return SimpleNamespace(
        forward_mode=SimpleNamespace(name=mode), rids=rids and list(rids), input_ids=torch.tensor([5, 6, 7, 0]),
        extend_seq_lens_cpu=list(lengths), extend_prefix_lens_cpu=list(starts),
    )  # fmt: skip


def result(tokens=4):
    return SimpleNamespace(hidden_states=torch.randn(tokens, 6), last_hidden_states=torch.randn(tokens, 2))


def test_a_prefill_is_copied_without_its_padding():
    given = result()
    item = plugin.to_host(given, batch())
    assert (item.rids, item.starts, item.lengths) == (["a", "b"], [0, 4], [2, 1])
    assert item.ids_N.tolist() == [5, 6, 7]
    aux_NE, last_NH = given.hidden_states[:3].clone(), given.last_hidden_states[:3].clone()
    given.hidden_states.zero_(), given.last_hidden_states.zero_()  # the server uses its buffers again
    assert torch.equal(item.aux_NE, aux_NE) and torch.equal(item.last_NH, last_NH)


@pytest.mark.parametrize("mode", ["DECODE", "IDLE", "TARGET_VERIFY", "DRAFT_EXTEND_V2"])
def test_passes_without_prompt_tokens_are_left_alone(mode):
    assert plugin.to_host(result(), batch(mode)) is None


def test_a_rank_without_requests_is_left_alone():
    assert plugin.to_host(result(), batch(rids=(), lengths=(4,), starts=(0,))) is None


def test_a_server_that_was_started_otherwise_is_told_which_flag_is_missing():
    with pytest.raises(RuntimeError, match="--cuda-graph-backend-prefill disabled"):
        plugin.to_host(result(), batch(rids=None))
    with pytest.raises(RuntimeError, match="--enable-return-aux-hidden-states"):
        plugin.to_host(SimpleNamespace(hidden_states=None, last_hidden_states=None), batch())


def test_a_hook_fails_the_session_and_never_the_server(tmp_path):
    told = []
    tap = plugin.Tap(tmp_path)
    tap.passed(result(), None, None, None, None, batch())  # no writer in this process
    tap.writer = SimpleNamespace(capturing=True, fail=told.append, put=lambda item: told.append(item.rids))
    tap.passed(result(), None, None, None, None, batch())
    tap.passed(result(), None, None, None, None, logits_metadata=batch())
    tap.passed(object(), None, None, None, None, batch())
    assert told[:2] == [["a", "b"], ["a", "b"]] and told[2].startswith("AttributeError")
    tap.writer.capturing = False
    tap.passed(object(), None, None, None, None, batch())
    assert len(told) == 3


def test_nothing_is_hooked_where_no_folder_is_named(monkeypatch):
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "sglang", None)  # importing it would fail
    plugin.register()


def test_the_servers_python_finds_the_entry_point_and_little_else(tmp_path):
    environment = plugin_environment(tmp_path / "capture")
    assert environment[FOLDER_VARIABLE] == str(tmp_path / "capture")
    code = (
        "import importlib.metadata, json, sys\n"
        "points = importlib.metadata.entry_points(group='sglang.srt.plugins')\n"
        "print(json.dumps([p.name for p in points]))\n"
        "register = next(iter(points)).load()\n"
        "print(register.__module__, [name for name in ('httpx', 'transformers', 'pandas') if name in sys.modules])\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found, loaded = run.stdout.splitlines()
    assert "eagle3lab-capture" in json.loads(found)
    assert loaded == "eagle3lab.engines.sglang.plugin []"
