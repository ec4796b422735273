"""A dispatch over a fake server in a process of its own, to be killed: prints a line once it has begun."""

import sys
from pathlib import Path

from eagle3lab.engines.servers.errors import RequestRefused
from tests.engines.dispatch.fakes import FakeServer, run, work

POISON = {"a-5", "b-17"}


def works():
    return [work(600, "a"), work(400, "b")]


def server():
    return FakeServer(
        delay=lambda row: 0.015 + (hash(row) % 10) / 1000,
        trouble=lambda row, n: RequestRefused("400") if row in POISON else None,
    )


if __name__ == "__main__":
    print("begun", flush=True)
    run(works(), [server(), server()], Path(sys.argv[1]))
