"""Prompts for glassllm (a real trained target of 0.85 M weights), and a drafter overfit on its answers to some."""

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import AutoTokenizer

from eagle3lab.analysis.accept import PromptCycles
from eagle3lab.analysis.heldout import capture_answers, simulate
from eagle3lab.draft.checkpoint import export_draft, load_draft
from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.start import new_draft
from eagle3lab.draft.target_weights import read_target_weights
from eagle3lab.draft.train import Trainer
from eagle3lab.draft.vocab import VocabMap
from eagle3lab.engines.base import Completion, Request, SpecCompletion
from eagle3lab.engines.embedded import EmbeddedEngine

AUX_LAYERS = [1, 2, 3]  # four layers: the default 2, L//2, L-3 would name one layer twice

# Lewis Carroll, Alice's Adventures in Wonderland: what the target was trained on
STORY = (
    "There was nothing so very remarkable in that; nor did Alice think it so very much out of the way to hear "
    "the Rabbit say to itself, Oh dear! Oh dear! I shall be late! But when the Rabbit actually took a watch "
    "out of its pocket, and looked at it, and then hurried on, Alice started to her feet, for it flashed "
    "across her mind that she had never before seen a rabbit with either a pocket, or a watch to take out of "
    "it, and burning with curiosity, she ran across the field after it. The rabbit-hole went straight on like "
    "a tunnel for some way, and then dipped suddenly down, so suddenly that Alice had not a moment to think "
    "about stopping herself before she found herself falling down a very deep well. Either the well was very "
    "deep, or she fell very slowly, for she had plenty of time as she went down to look about her and to "
    "wonder what was going to happen next."
)


def prompts(folder: Path, count: int, longest: int = 60) -> list[list[int]]:
    """Prompts of 2 to `longest` tokens, cut from the story at different places."""
    ids = AutoTokenizer.from_pretrained(folder)(STORY, add_special_tokens=False, verbose=False)["input_ids"]
    places = [((i * 11) % (len(ids) - longest), 2 + (i * 17) % (longest - 1)) for i in range(count)]
    return [ids[start : start + length] for start, length in places]


def greedy_answers(engine: EmbeddedEngine, rows: list[list[int]], max_tokens: int) -> list[dict]:
    """The engine's own answers, as `analysis.heldout` takes them."""
    requests = [Request(f"r{i}", ids, max_tokens) for i, ids in enumerate(rows)]
    done = {answer.id: answer for answer in engine.generate(requests)}
    return [_row(done[request.id]) for request in requests]


def _row(answer: Completion) -> dict:
    return {"id": answer.id, "set": "story", "prompt_ids": answer.prompt_ids, "output_ids": answer.output_ids}


def served_cycles(answers: Iterable[SpecCompletion]) -> list[PromptCycles]:
    """What each verification of a server accepted."""
    return [PromptCycles.served(done.id, len(done.output_ids), done.accepted) for done in answers]


def simulated_cycles(
    engine: EmbeddedEngine, folder: Path, answers: Iterable[SpecCompletion], num_steps: int
) -> list[PromptCycles]:
    """The offline walk of a drafter's folder, as it was trained, over these answers."""
    draft = load_draft(folder, engine.embed_VH)
    return simulate(draft, capture_answers(engine, map(_row, answers), 1024), num_steps=num_steps).cycles


def train_draft(
    folder: Path, out: Path, rows: list[list[int]], max_tokens: int, epochs: int, pruned: bool = False, **sizes
) -> Path:
    """A drafter of this project trained on the target's greedy answers to `rows`, exported in float32 to `out`.
    `pruned`: it knows nine of ten ids of its training text (so that it has a d2t) instead of all. `sizes` are fields
    of DraftConfig."""
    engine = EmbeddedEngine(folder, aux_layers=AUX_LAYERS, end_ids=())
    features = {row.id: row for row in capture_answers(engine, greedy_answers(engine, rows, max_tokens), 1024)}
    weights = read_target_weights(folder)
    ids_W = torch.arange(engine.target.vocab_size)
    if pruned:
        seen = torch.cat([row.input_ids_T for row in features.values()]).unique()
        ids_W = seen[torch.arange(len(seen)) % 10 != 4]
    vocab = VocabMap(ids_W, engine.target.vocab_size)
    draft = new_draft(folder, AUX_LAYERS, vocab, weights, seed=0, **sizes)
    recipe = Recipe(ttt_steps=4, epochs=epochs, batch_tokens=512, compute_dtype="float32")
    lengths = {key: len(row.input_ids_T) for key, row in features.items()}
    with TemporaryDirectory() as checkpoints:
        trainer = Trainer(draft, lengths, features.__getitem__, weights.head_VH, recipe, checkpoints)
        for _ in trainer.run(checkpoint_every=10**6, log_every=10**6):
            pass
    return export_draft(draft, out, {"target": "glassllm/en"}, dtype=torch.float32)
