"""A tiny training job: a target of 8 layers, random features of it, a map of half its vocabulary."""

import torch

from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.train_job import TrainJob
from eagle3lab.draft.vocab import VocabMap
from eagle3lab.features.store import FeatureWriter
from tests.tiny import HIDDEN, VOCAB, save_tiny_target

RECIPE = Recipe(ttt_steps=2, epochs=3, batch_tokens=60, accumulate=3, compute_dtype="float32", lr=1e-2, head_lr=1e-2)


def write_store(folder, rows=30):
    """Random states: 30 training rows and 4 held-out ones."""
    writer = FeatureWriter(folder, {"corpus": "abc"}, [2, 4, 5], HIDDEN)
    generator = torch.Generator().manual_seed(3)
    for i in range(rows + 4):
        n = 8 + i % 7
        ids = torch.randint(0, VOCAB, (n,), generator=generator).tolist()
        aux, last = torch.randn(n, 3, HIDDEN, generator=generator), torch.randn(n, HIDDEN, generator=generator)
        writer.add(f"r{i}", ids, [[3, n]], aux, last, "train" if i < rows else "heldout", "some")
    writer.close()


def make_job(folder) -> TrainJob:
    """A job whose files lie in `folder`; it trains in `folder/here`."""
    write_store(folder / "features")
    VocabMap(torch.arange(1, VOCAB, 2), VOCAB).save(folder / "map.safetensors", "abc")
    return TrainJob(
        target=save_tiny_target(folder / "target"),
        features=folder / "features",
        vocab_map=folder / "map.safetensors",
        folder=folder / "here",
        recipe=RECIPE,
        heldout_rows=3,
        log_every=2,
        evaluate_every=4,
        num_steps=2,
    )
