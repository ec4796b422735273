"""Learning from a server somebody else runs how it was started. Answers of real servers: tests/sglang."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from eagle3lab.engines.servers.errors import BadAnswer, ServerFault, ServerGone
from eagle3lab.engines.servers.process import free_port
from eagle3lab.engines.sglang.attach import AttachedServer, attach, server_info

ARGUMENTS = {
    "version": "0.5.23", "model_path": "/models/m", "speculative_algorithm": "EAGLE3", "dtype": "float32",
    "speculative_draft_model_path": "/models/d", "speculative_num_steps": 3, "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4, "device": "cpu", "tp_size": 1, "context_length": 8192,
    "max_running_requests": 4, "max_total_num_tokens": 2048, "disable_radix_cache": True,
    "internal_states": [{"avg_spec_accept_length": 2.5}], "launch_command": "python ...",
}  # fmt: skip
MODEL = {"model_path": "/models/m", "architectures": ["LlamaForCausalLM"]}


@contextmanager
def service(answers, otherwise=404):
    """A service that answers paths with (status, text)."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, text = answers.get(self.path, (otherwise, "not found"))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def sglang(prefix="", health=200):
    return {
        f"/{prefix}server_info": (200, json.dumps(ARGUMENTS)),
        f"/{prefix}model_info": (200, json.dumps(MODEL)),
        "/health": (health, ""),
    }


@pytest.mark.parametrize("prefix", ["", "get_"])
def test_old_and_new_releases_tell_the_same(prefix):
    with service(sglang(prefix)) as url:
        info = attach(url + "/").info()
    assert (info.url, info.version, info.architecture) == (url, "0.5.23", "LlamaForCausalLM")
    assert (info.algorithm, info.num_steps, info.topk, info.num_draft_tokens) == ("EAGLE3", 3, 1, 4)
    assert (info.draft, info.target, info.dtype, info.device) == ("/models/d", "/models/m", "float32", "cpu")
    assert (info.max_total_tokens, info.radix_cache, info.captures, info.layer_ids) == (2048, False, False, None)
    assert info.accept_length == 2.5 and info.arguments["tp_size"] == 1


def test_nothing_listens():
    with pytest.raises(ServerGone, match="nothing listens there"):
        attach(f"http://127.0.0.1:{free_port()}")


def test_a_server_that_is_still_loading():
    with service(sglang(health=503)) as url, pytest.raises(ServerFault, match="still loading"):
        attach(url)
    with service({}, otherwise=503) as url, pytest.raises(ServerFault, match="still loading"):
        attach(url)


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {"/server_info": (200, "<html>hello</html>")},
        {"/server_info": (200, "[]")},
        {"/server_info": (200, "{}"), "/model_info": (200, "{}")},
    ],
)
def test_another_service(answers):
    with service(answers) as url, pytest.raises(BadAnswer, match="is no SGLang server|not as an SGLang server"):
        attach(url)


def test_a_server_with_a_key():
    with service({}, otherwise=401) as url, pytest.raises(BadAnswer, match="API key"):
        server_info(url)


def test_a_url_without_its_scheme():
    with pytest.raises(ValueError, match="http://localhost:3000"):
        attach("localhost:3000")


def test_an_attached_server_that_goes_away_is_noticed():
    with service(sglang()) as url:
        server = AttachedServer(url)
        assert server.alive()
    assert not server.alive()


def test_proxies_are_not_asked_for_servers_of_this_machine(monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with service(sglang()) as url:
        assert server_info(url).version == "0.5.23"
