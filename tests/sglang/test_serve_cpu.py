"""`make serve-cpu`: a server for anyone, from the first line to Ctrl-C."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from functools import partial

import pytest
import torch

from eagle3lab.engines.servers.process import free_port

pytestmark = pytest.mark.sglang


def generated(url: str) -> list[int]:
    body = {"input_ids": [5, 6, 7], "sampling_params": {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}}
    request = urllib.request.Request(f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["output_ids"]


def test_it_serves_until_ctrl_c_and_leaves_nothing_behind(story, story_reference):
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "eagle3lab.engines.sglang.serve_cpu", "--target", story, "--port", str(port)]
    # as where a script started it in the background: Ctrl-C is ignored there unless a program asks for it
    ignored = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=ignored)
    try:
        said = [process.stdout.readline(), process.stdout.readline()]
        assert "log " in said[0] and url in said[1], said
        expected = story_reference.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, do_sample=False)
        assert generated(url) == expected[0, 3:].tolist()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.terminate()
        process.communicate()
    with pytest.raises(urllib.error.URLError):
        generated(url)
