"""What the bookkeeping of a dispatch costs: rows a second with 150 in flight, and memory over a long run.

The transport is a fake that answers after a turn of the event loop; the same fake behind bare workers, which keep no
journal and no counts, is what it is compared with. Every row has a prompt of 400 and an answer of 788 tokens.
Usage: python -m benchmarks.dispatch [--rows 20000] [--memory-rows 83288]
"""

import argparse
import asyncio
import json
import os
import time
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.results import Result, add_json_option, save
from eagle3lab.engines.base import Completion
from eagle3lab.engines.dispatch.journal import SYNC_ROWS, Journal
from eagle3lab.engines.dispatch.run import dispatch
from eagle3lab.engines.dispatch.work import Partition, Sampling, Work

ANSWER = [17 + i % 40000 for i in range(788)]
PROMPT = [11 + i % 40000 for i in range(400)]
SHORT = Partition("short", concurrency=150, max_tokens=10240)
FLIGHT = SHORT.concurrency


class Instant:
    """Answers every request with the same tokens at the next turn of the loop."""

    name = "instant"

    def __init__(self, answer=ANSWER):
        self.answer = answer

    async def __aenter__(self):
        return self

    async def __aexit__(self, *failure):
        pass

    async def alive(self):
        return True

    async def generate(self, request):
        await asyncio.sleep(0)
        return Completion(request.id, request.input_ids, self.answer, "stop", 0.1)


class Prompts:
    """Row ids made as they are read, as a file would give them."""

    def __init__(self, rows, prompt=PROMPT):
        self.rows, self.prompt = rows, prompt

    def __iter__(self):
        return ((f"prompts-{i:06d}-0123456789abcdef", self.prompt) for i in range(self.rows))


def journalled(rows: int, folder: Path) -> float:
    """Rows a second of a dispatch, opening and closing of its journal included."""
    start = time.perf_counter()
    *_, last = dispatch([Work("prompts", SHORT, Prompts(rows))], [Instant()], folder, "fake")
    assert last.done == rows
    return rows / (time.perf_counter() - start)


def bare(rows: int) -> float:
    """Rows a second of the same transport with workers that forget every answer."""

    async def worker(prompts, server):
        for row_id, ids in prompts:
            await server.generate(Sampling().request(_Row(row_id, ids)))

    async def all_workers():
        prompts, server = iter(Prompts(rows)), Instant()
        await asyncio.gather(*(worker(prompts, server) for _ in range(FLIGHT)))

    start = time.perf_counter()
    asyncio.run(all_workers())
    return rows / (time.perf_counter() - start)


class _Row:
    partition = SHORT

    def __init__(self, row_id, input_ids):
        self.id, self.input_ids = row_id, input_ids


def json_alone(rows: int) -> float:
    """Rows a second of turning the journal's lines into JSON, and nothing else."""
    line = {"id": "prompts-000000-0123456789abcdef", "set": "prompts", "prompt_ids": PROMPT, "output_ids": ANSWER}
    start = time.perf_counter()
    for _ in range(rows):
        json.dumps(line, ensure_ascii=False, allow_nan=False)
    return rows / (time.perf_counter() - start)


def memory(rows: int, folder: Path) -> list[tuple[int, int]]:
    """(rows done, bytes in use by Python) over a dispatch of short rows (tracing is slow, and only rows count)."""
    seen = []
    works = [Work("prompts", SHORT, Prompts(rows, PROMPT[:8]))]
    tracemalloc.start()
    for view in dispatch(works, [Instant(ANSWER[:16])], folder, "fake"):
        seen.append((view.done, tracemalloc.get_traced_memory()[0]))
    tracemalloc.stop()
    return seen


def fsync_ms(folder: Path, lines: int) -> float:
    """Milliseconds of one fsync after so many rows were appended."""
    line = b"x" * 8000 + b"\n"
    with open(folder / "probe", "ab", buffering=0) as file:
        for _ in range(lines):
            file.write(line)
        start = time.perf_counter()
        os.fsync(file.fileno())
        return (time.perf_counter() - start) * 1e3


def main() -> None:
    """Prints rows a second, the ratio to the bare loop, and memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--memory-rows", type=int, default=83_288)
    parser.add_argument("--repeats", type=int, default=3)
    add_json_option(parser)
    arguments = parser.parse_args()
    with TemporaryDirectory() as name:
        rows = arguments.rows
        runs = [(journalled(rows, Path(name) / str(i)), bare(rows), json_alone(rows)) for i in range(arguments.repeats)]
        size = (Path(name) / "0" / "completions.jsonl").stat().st_size
        print(f"fsync after {SYNC_ROWS} rows: {fsync_ms(Path(name), SYNC_ROWS):.1f} ms")
        start = time.perf_counter()
        Journal(Path(name) / "0", {}).close()
        print(f"opening a journal to go on: {rows / (time.perf_counter() - start):,.0f} rows/s")
    best, loop, text = (max(column) for column in zip(*runs, strict=True))
    print(
        f"{best:,.0f} rows/s with {FLIGHT} in flight, {size / rows:,.0f} bytes a row: {best / loop:.1%} of the bare "
        f"event loop ({loop:,.0f} rows/s), {best / text:.0%} of turning the rows into JSON alone ({text:,.0f} rows/s)"
    )
    with TemporaryDirectory() as name:
        seen = memory(arguments.memory_rows, Path(name))
    print("memory over the run, rows done: MiB in use")
    for share in (0.1, 0.25, 0.5, 0.75, 1.0):
        done, used = min(seen, key=lambda one: abs(one[0] - share * arguments.memory_rows))
        print(f"  {done:>7,}: {used / 2**20:.1f}")
    told = (f"{best:,.0f} rows/s", f"{text:,.0f} rows/s, turning the rows into JSON alone")
    setting = f"journal of {rows:,} rows, {FLIGHT} in flight, no server"
    save(arguments.json, [Result("dispatch", setting, *told, best / text)])


if __name__ == "__main__":
    main()
