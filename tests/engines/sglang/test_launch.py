"""What stops a launch before a server's Python is even asked to run SGLang."""

import socket
import sys

import pytest

from eagle3lab.engines.servers.findings import LaunchRefused
from eagle3lab.engines.servers.process import ServerStartError
from eagle3lab.engines.servers.python import ServerPythonError
from eagle3lab.engines.sglang import server as server_module
from eagle3lab.engines.sglang.release import Release
from eagle3lab.engines.sglang.server import SGLangServer
from eagle3lab.engines.sglang.spec import ServerSpec
from tests.engines.sglang.drafters import write_draft, write_target


@pytest.fixture
def release(monkeypatch):
    monkeypatch.setattr(server_module, "installed_release", lambda python: Release("0.5.23", "", 0))


def test_a_python_that_is_not_there(tmp_path):
    with pytest.raises(ServerPythonError, match="make sglang-env"):
        SGLangServer(ServerSpec("m"), python=tmp_path / "python").start()


def test_a_python_without_sglang():
    with pytest.raises(ServerPythonError, match="has no SGLang"):
        SGLangServer(ServerSpec("m"), python=sys.executable).start()


def test_a_port_that_is_taken(release, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerStartError, match=f"port {port} of 127.0.0.1 is taken"):
            SGLangServer(ServerSpec(write_target(tmp_path / "m")), port=port).start()


def test_all_faults_are_told_with_their_remedies(release, tmp_path):
    target = write_target(tmp_path / "m", num_hidden_layers=6)
    spec = ServerSpec(target, draft=write_draft(tmp_path / "d"), algorithm="EAGLE", num_draft_tokens=9)
    server = SGLangServer(spec)
    with pytest.raises(LaunchRefused) as refused:
        server.start()
    assert len(refused.value.findings) == 3 and server.findings == refused.value.findings
    for words in ("[num_draft_tokens=4]", "use --speculative-algorithm EAGLE3", "but fc takes 3 states"):
        assert words in str(refused.value)


def test_a_server_inherits_nothing_that_belongs_to_the_lab(monkeypatch, tmp_path):
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "MPLBACKEND"):
        monkeypatch.setenv(name, "the lab")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("EAGLE3LAB_DRIVEN_RUN", "run:token")
    environment = SGLangServer(ServerSpec(write_target(tmp_path / "m")), python="/env/bin/python")._environment()
    assert "the lab" not in environment.values()
    assert (environment["CUDA_VISIBLE_DEVICES"], environment["EAGLE3LAB_DRIVEN_RUN"]) == ("3", "run:token")
    assert environment["PATH"].startswith("/env/bin:")


def test_a_server_that_never_started_ends_without_a_word():
    server = SGLangServer(ServerSpec("m"))
    server.stop()
    assert not server.alive() and server.pid is None and server.url == f"http://127.0.0.1:{server.port}"
