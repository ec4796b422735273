"""Extraction (capture, encode, write) against the target's bare forward pass over the same batches, in one run.

The bare pass ends at the last hidden state: no logits, no aux states kept. With a top-k teacher the extraction also
multiplies every teacher slot with the output head; then the bare pass with logits is timed too.
Bytes a token of the stores are compared with what the field's dumps hold: all aux states and the last one in bf16.
Usage: python -m benchmarks.extraction [--codecs bf16 fp8 fp8+top16]
"""

import argparse
import random
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.results import Result, add_json_option, save
from eagle3lab.data.targets import resolve_target
from eagle3lab.engines.capture import batches_by_length
from eagle3lab.engines.embedded import EmbeddedEngine
from eagle3lab.features.codec import Codec
from eagle3lab.features.store import FeatureWriter


def random_rows(count: int, shortest: int, longest: int, vocab_size: int) -> list[tuple[str, list[int]]]:
    """(id, input_ids) of random tokens: the time does not depend on what they say."""
    chance = random.Random(0)
    lengths = [chance.randint(shortest, longest) for _ in range(count)]
    return [(f"r{i}", [chance.randrange(vocab_size) for _ in range(n)]) for i, n in enumerate(lengths)]


def seconds(function) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


class Race:
    """The ways to run one set of rows through one engine."""

    def __init__(self, engine: EmbeddedEngine, rows: list[tuple[str, list[int]]], batch_tokens: int):
        self.engine, self.rows, self.batch_tokens = engine, rows, batch_tokens
        self.head_VH = engine.lm_head_VH

    @torch.inference_mode()
    def forward(self, logits: bool = False) -> None:
        for batch in batches_by_length(self.rows, self.batch_tokens):
            last_BTH = self.engine.target.prefill([ids for _, ids in batch])
            if logits:
                for last_TH in last_BTH:  # row by row: a batch of logits may not fit
                    torch.mm(last_TH, self.head_VH.T)

    def extract(self, codec: str) -> dict:
        """Gives back store.json."""
        with TemporaryDirectory() as folder:
            sizes = (self.engine.aux_layers, self.engine.config.hidden_size)
            writer = FeatureWriter(Path(folder), {}, *sizes, codec=codec, head_VH=self.head_VH)
            for features in self.engine.capture(self.rows, self.batch_tokens):
                T = len(features.input_ids_T)
                writer.add(features.id, features.input_ids_T, [[1, T]], features.aux_TAH, features.last_TH)
            return writer.close()


def main() -> None:
    """Prints tokens a second of each way, best of several rounds in which they take turns: the machine is shared."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--codecs", nargs="+", default=["bf16", "fp8", "fp8+top16"])
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--lengths", type=int, nargs=2, default=[100, 300])
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    add_json_option(parser)
    arguments = parser.parse_args()
    engine = EmbeddedEngine(resolve_target(arguments.target), arguments.dtype)
    rows = random_rows(arguments.rows, *arguments.lengths, engine.config.vocab_size)
    tokens = sum(len(ids) for _, ids in rows)
    race = Race(engine, rows, arguments.batch_tokens)
    ways = {"bare forward pass": race.forward}
    if any(Codec.of(codec).top for codec in arguments.codecs):
        ways["forward pass with logits"] = lambda: race.forward(logits=True)
    ways |= {f"extraction, {codec}": lambda codec=codec: race.extract(codec) for codec in arguments.codecs}
    race.forward()  # warm-up
    stores = {codec: race.extract(codec) for codec in arguments.codecs}
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(arguments.rounds):
        for name, way in ways.items():
            best[name] = min(best[name], seconds(way))
    print(f"{arguments.target}, {arguments.dtype}, {tokens} tokens, {torch.get_num_threads()} threads")
    for name, time_taken in best.items():
        share = " and ".join(
            f"{best[base] / time_taken:.0%} of the {base}" for base in list(ways)[: -len(arguments.codecs)]
        )
        print(f"{name:26s} {tokens / time_taken:7.0f} tokens/s, {share}")
    setting, bare = f"{arguments.target}, {arguments.dtype}", best["bare forward pass"]
    forward = f"{tokens / bare:,.0f} tokens/s, bare forward pass"
    sizes, results = (len(engine.aux_layers) + 1) * engine.config.hidden_size * 2, []
    for codec in arguments.codecs:
        taken = best[f"extraction, {codec}"]
        results.append(
            Result("extraction", f"{setting}, codec {codec}", f"{tokens / taken:,.0f} tokens/s", forward, bare / taken)
        )
    for codec, store in stores.items():
        size = store["bytes"] / store["tokens"]
        print(f"{codec}: {size:,.0f} bytes a token, {size / sizes:.0%} of all states in bf16")
        told = (f"{size:,.0f} bytes a token", f"{sizes:,} bytes, all states in bf16")
        results.append(Result("feature store", f"{setting}, codec {codec}", *told, size / sizes, "less"))
    save(arguments.json, results)


if __name__ == "__main__":
    main()
