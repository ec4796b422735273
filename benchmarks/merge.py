"""Merging and shuffling the case's corpus: 88,088 rows of 2,000 tokens, made up here (synthetic).

Prints MB/s of token data (4 bytes a token), the peak memory of the merging processes, and the time against plain
reading and writing of the same bytes in the same run. Usage: python -m benchmarks.merge [--rows 8000]
"""

import argparse
import json
import os
import resource
import time
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.results import Result, add_json_option, save
from eagle3lab.data.assemble import assemble_corpus, completions_of

NATIVE_SHARE = 4_800 / 88_088  # rows of the case's target-native sets
PROMPT_TOKENS, VOCAB = 500, 163_840
CHUNK = 1 << 22


def make(folder: Path, rows: int, tokens: int) -> None:
    """prepared/<set>/ and completions.jsonl with random ids, as the notebooks write them."""
    random = np.random.default_rng(0)
    native = round(rows * NATIVE_SHARE)
    prepared = folder / "prepared"
    for name in ("native", "asked"):
        (prepared / name).mkdir(parents=True)
    with open(prepared / "native" / "tokenized.jsonl", "w") as file:
        for n in range(native):
            row = head("native", n) | {"origin": "target", "input_ids": random.integers(0, VOCAB, tokens).tolist()}
            file.write(json.dumps(row | {"loss_spans": [[PROMPT_TOKENS, tokens]], "finish_reason": "stop"}) + "\n")
    with (
        open(prepared / "asked" / "prompts.jsonl", "w") as prompts,
        open(folder / "completions.jsonl", "w") as completions,
    ):
        for n in range(rows - native):
            ids = random.integers(0, VOCAB, tokens).tolist()
            prompt, answer = ids[:PROMPT_TOKENS], ids[PROMPT_TOKENS:]
            row = head("asked", n) | {"messages": [{"role": "user", "content": "synthetic " * 100}]}
            prompts.write(json.dumps(row | {"prompt_ids": prompt, "n_prompt": PROMPT_TOKENS}) + "\n")
            done = {
                "id": row["id"],
                "prompt_ids": prompt,
                "output_ids": answer,
                "finish_reason": "stop",
                "seconds": 1.0,
            }
            completions.write(json.dumps(done) + "\n")


def head(name: str, number: int) -> dict:
    """Id, set and split of a made-up row."""
    key = f"{number * 2 + (name == 'asked'):016x}"
    return {"id": f"{name}-{key}", "set": name, "split": "heldout" if number % 10 == 0 else "train"}


def merge(folder: Path, pipe) -> None:
    """In a process of its own, so that the peak memory is the merge's alone (with twice that of the largest process
    that reads for it). Arrow and pandas are loaded before the clock starts, as they are in a notebook."""
    import pandas  # noqa: F401  Arrow looks for it
    import pyarrow.parquet  # noqa: F401

    start, before = time.perf_counter(), os.times()
    summary = assemble_corpus(
        folder / "prepared", completions_of(folder / "completions.jsonl"), folder / "corpus.parquet"
    )
    seconds, after = time.perf_counter() - start, os.times()
    cpu = sum(after[:4]) - sum(before[:4])
    own, readers = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    peak = own + 2 * readers
    pipe.send({"seconds": seconds, "cpu": cpu, "peak_mib": peak / 1024, "summary": summary})


def plain(folder: Path) -> float:
    """Seconds to read the same input bytes and write as many bytes as the corpus has."""
    inputs = [*folder.glob("prepared/*/*.jsonl"), folder / "completions.jsonl"]
    size = (folder / "corpus.parquet").stat().st_size
    start = time.perf_counter()
    for path in inputs:
        with open(path, "rb") as file:
            while file.read(CHUNK):
                pass
    with open(folder / "copy", "wb") as file, open(folder / "corpus.parquet", "rb") as source:
        while chunk := source.read(CHUNK):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    assert (folder / "copy").stat().st_size == size
    return time.perf_counter() - start


def main() -> None:
    """Prints the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=88_088)
    parser.add_argument("--tokens", type=int, default=2_000)
    parser.add_argument("--folder", type=Path, default=None, help="where to put about 3 GB; default: the system's")
    add_json_option(parser)
    arguments = parser.parse_args()
    with TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        make(folder, arguments.rows, arguments.tokens)
        context = get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=merge, args=(folder, theirs))
        process.start()
        theirs.close()
        found = ours.recv()
        process.join()
        floor = plain(folder)
    megabytes = arguments.rows * arguments.tokens * 4 / 1e6
    assert found["summary"]["rows"] == arguments.rows
    print(
        f"{arguments.rows:,} synthetic rows of {arguments.tokens:,} tokens, {megabytes:,.0f} MB of token ids: "
        f"{found['seconds']:.1f} s, {megabytes / found['seconds']:.0f} MB/s; {found['cpu']:.1f} s of processor time; "
        f"peak memory {found['peak_mib']:,.0f} MiB"
    )
    times = found["seconds"] / floor
    print(f"plain reading and writing of the same bytes: {floor:.1f} s; merging takes {times:.1f} times that")
    setting = f"{arguments.rows:,} synthetic rows of {arguments.tokens:,} tokens, peak {found['peak_mib']:,.0f} MiB"
    told = (f"{found['seconds']:.1f} s", f"{floor:.1f} s, reading and writing the same bytes")
    save(arguments.json, [Result("merge and shuffle", setting, *told, times, "less")])


if __name__ == "__main__":
    main()
