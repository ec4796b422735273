"""`python -m eagle3lab.engines.sglang.serve_cpu`: a real SGLang server on this machine's CPU, to try things out.

It serves until Ctrl-C. `make serve-cpu` starts it with SmolLM2 on port 30000.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence

from eagle3lab.data.targets import resolve_target
from eagle3lab.engines.sglang.server import SGLangServer
from eagle3lab.engines.sglang.spec import ServerSpec

TARGET = "HuggingFaceTB/SmolLM2-135M-Instruct"
MAX_TOTAL_TOKENS, MAX_RUNNING_REQUESTS, MEM_FRACTION = 8192, 4, 0.3  # a laptop's memory is enough
POLL_S = 1.0


def cpu_spec(target: str, draft: str | None = None) -> ServerSpec:
    """A small float32 server of a target (a folder or hub name, see resolve_target), with a drafter's folder or
    without."""
    return ServerSpec(
        target=str(resolve_target(target)), draft=draft, device="cpu", dtype="float32", mem_fraction=MEM_FRACTION,
        max_total_tokens=MAX_TOTAL_TOKENS, max_running_requests=MAX_RUNNING_REQUESTS,
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until Ctrl-C or SIGTERM (0) or until the server ends by itself (1)."""
    parser = argparse.ArgumentParser(prog="python -m eagle3lab.engines.sglang.serve_cpu", description=__doc__)
    parser.add_argument("--target", default=TARGET, help="folder or hub name (default: %(default)s)")
    parser.add_argument("--draft", help="folder of an exported drafter; without it nothing is speculated")
    parser.add_argument("--port", type=int, default=30000, help="on 127.0.0.1 (default: %(default)s)")
    options = parser.parse_args(arguments)
    for ends in (signal.SIGINT, signal.SIGTERM):  # SIGINT by name: a script's `&` starts its commands with it ignored
        signal.signal(ends, signal.default_int_handler)
    server = SGLangServer(cpu_spec(options.target, options.draft), port=options.port)
    try:
        print(f"Starting SGLang, log {server.log}; half a minute or more.", flush=True)
        with server:
            print(_greeting(server.url), flush=True)
            while server.alive():
                time.sleep(POLL_S)
    except KeyboardInterrupt:
        return 0
    print(f"The server ended by itself, see {server.log}", file=sys.stderr)
    return 1


def _greeting(url: str) -> str:
    body = '{"messages": [{"role": "user", "content": "Name three colours."}], "max_tokens": 32}'
    return (
        f"Ready: {url} (Ctrl-C ends it). Try\n"
        f"  curl -s {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'"
    )


if __name__ == "__main__":
    sys.exit(main())
