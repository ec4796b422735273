"""Throughput of the lab's client against SGLang's own `bench_serving`: same server, prompts, lengths and concurrency.

Both ask for whole answers (no streaming), greedy, end tokens ignored, after flushing the server's cache; the order
changes from round to round and the ratio is taken within a round. bench_serving sends text where the lab sends token
ids. Without --url a CPU server of --target is started. Usage: python -m benchmarks.client [--concurrency 8]
"""

import argparse
import json
import os
import random
import subprocess
import time
import urllib.request
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from transformers import AutoTokenizer

from benchmarks.results import Result, add_json_option, save
from eagle3lab.data.targets import resolve_target
from eagle3lab.engines.base import Request
from eagle3lab.engines.sglang.attach import attach
from eagle3lab.engines.sglang.blocking import generate_all
from eagle3lab.engines.sglang.server import PYTHON, SGLangServer
from eagle3lab.engines.sglang.spec import ServerSpec

WORDS = (
    "the rabbit took a watch out of its pocket and looked at it then hurried on while Alice ran across the field after "
    "it down a very deep well wondering what was going to happen next and whether there would be tea"
).split()


def texts(count: int, words: int, seed: int) -> list[str]:
    """Different prompts of a quarter of `words` to `words` words."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(max(2, words // 4), words))) for _ in range(count)]


def flush(url: str) -> None:
    """No prompt may be found in the server's prefix cache."""
    urllib.request.urlopen(urllib.request.Request(f"{url}/flush_cache", method="POST"), timeout=60).close()


def lab_tokens_per_second(url: str, requests: list[Request], concurrency: int) -> float:
    """Output tokens of all answers over the time from the first request to the last answer."""
    flush(url)
    started = time.perf_counter()
    tokens = sum(len(done.output_ids) for done in generate_all(url, requests, concurrency=concurrency))
    return tokens / (time.perf_counter() - started)


def bench_serving_tokens_per_second(url: str, folder: Path, prompts: Path, count: int, tokens: int, concurrency: int):
    """bench_serving's own `output_throughput`. RuntimeError with its output when it does not answer all prompts."""
    out = prompts.with_name("bench_serving.jsonl")
    out.unlink(missing_ok=True)
    command = [
        str(PYTHON), "-m", "sglang.benchmark.serving", "--backend", "sglang", "--base-url", url, "--model", str(folder),
        "--tokenizer", str(folder), "--dataset-name", "custom", "--dataset-path", str(prompts), "--num-prompts",
        str(count), "--sharegpt-output-len", str(tokens), "--max-concurrency", str(concurrency), "--flush-cache",
        "--disable-stream", "--disable-tqdm", "--output-file", str(out),
    ]  # fmt: skip
    # imported at its start for one data set that is not used here; the server's environment goes without it
    prompts.with_name("datasets.py").write_text("load_dataset = None\n")
    environment = {**os.environ, "PYTHONPATH": str(prompts.parent)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    result = json.loads(out.read_text()) if out.exists() else {}
    if result.get("completed") != count:
        raise RuntimeError(
            f"bench_serving answered {result.get('completed')} of {count}:\n{done.stdout}\n{done.stderr}"
        )
    return result["output_throughput"]


def one_round(url: str, folder: Path, prompts: Path, number: int, given) -> tuple[float, float]:
    """(lab, bench_serving) tokens per second on new prompts; odd rounds begin with bench_serving."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    asked = texts(given.prompts, given.words, seed=number)
    lines = [json.dumps({"conversations": [{"value": text}, {"value": "-"}]}) for text in asked]
    prompts.write_text("\n".join(lines))
    rows = [tokenizer(text)["input_ids"] for text in asked]
    requests = [Request(f"r{i}", row, given.max_tokens) for i, row in enumerate(rows)]

    def lab():
        return lab_tokens_per_second(url, requests, given.concurrency)

    def bench_serving():
        return bench_serving_tokens_per_second(url, folder, prompts, given.prompts, given.max_tokens, given.concurrency)

    if number % 2:
        theirs = bench_serving()
        return lab(), theirs
    return lab(), bench_serving()


def main() -> None:
    """Prints one line a round and the median ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running server of --target; without it a CPU server is started")
    parser.add_argument("--target", default="glassllm/en")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--words", type=int, default=24)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=8)
    add_json_option(parser)
    given = parser.parse_args()
    folder = resolve_target(given.target)
    limits = {"max_running_requests": given.concurrency, "max_total_tokens": 8192, "mem_fraction": 0.3}
    spec = ServerSpec(str(folder), dtype="float32", device="cpu", **limits)
    with TemporaryDirectory() as scratch, nullcontext(attach(given.url)) if given.url else SGLangServer(spec) as server:
        speeds = []
        for number in range(given.rounds):
            lab, theirs = one_round(server.url, folder, Path(scratch) / "prompts.jsonl", number, given)
            speeds.append((lab, theirs))
            print(
                f"round {number + 1}: lab {lab:.0f} tok/s, bench_serving {theirs:.0f} tok/s, ratio {lab / theirs:.3f}"
            )
        setting = f"{given.target}, {given.prompts} prompts, {given.max_tokens} tokens, concurrency {given.concurrency}"
        ratio = median(lab / theirs for lab, theirs in speeds)
        print(f"median ratio {ratio:.3f} ({setting})")
    lab, theirs = (median(column) for column in zip(*speeds, strict=True))
    told = (f"{lab:,.0f} tok/s", f"{theirs:,.0f} tok/s, SGLang's bench_serving")
    save(given.json, [Result("client", f"{setting}, median of {given.rounds} rounds", *told, ratio)])


if __name__ == "__main__":
    main()
