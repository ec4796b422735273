"""Deterministic rows for store tests; also run as a child process that writes a store and may be killed."""

import sys

import torch

from eagle3lab.features.store import FeatureWriter

FINGERPRINT = {"target": "abc", "template": "t1", "corpus": {"rows": 40}}
AUX_LAYERS, HIDDEN = [2, 4, 5], 16
SOLE_FILES = {"store.json", "part-00.json", "index-00.jsonl", ".part-00.lock"}  # beside the shards, of an only writer


def make_row(number: int, hidden: int = HIDDEN):
    """(id, ids, spans, aux_TAH, last_TH, split, set), a function of the number alone."""
    generator = torch.Generator().manual_seed(number)
    T = int(torch.randint(2, 40, (1,), generator=generator))
    start = int(torch.randint(0, T, (1,), generator=generator))
    ids = torch.randint(0, 200_000, (T,), generator=generator)
    aux = torch.randn(T, len(AUX_LAYERS), hidden, generator=generator)
    last = torch.randn(T, hidden, generator=generator)
    split, set_name = ("heldout", "b") if number % 5 == 0 else ("train", "a")
    return f"row-{number}", ids, [[start, T]], aux, last, split, set_name


def write_rows(folder, count: int, shard_tokens: int, progress=None, part=None, step: int = 1, codec="bf16") -> dict:
    """Rows part, part + step, ... below count (all rows by default); goes on where an earlier call was cut off."""
    writer = FeatureWriter(folder, FINGERPRINT, AUX_LAYERS, HIDDEN, shard_tokens, codec, part)
    for number in range(int(part or 0), count, step):
        if f"row-{number}" not in writer.done_ids:
            writer.add(*make_row(number))
            if progress:
                progress(number)
    return writer.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, count, shard_tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    part, step = (sys.argv[4], int(sys.argv[5])) if len(sys.argv) > 4 else (None, 1)
    write_rows(folder, count, shard_tokens, lambda n: print(n, flush=True), part, step)
