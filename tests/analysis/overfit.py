"""A tiny random target, its greedy answers with their states, and a drafter overfit on them."""

from dataclasses import dataclass
from pathlib import Path

import torch

from eagle3lab.analysis.heldout import AnswerRow, capture_answers
from eagle3lab.draft.config import DraftConfig
from eagle3lab.draft.model import Eagle3Draft
from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.train import Trainer
from eagle3lab.engines.base import Completion, Request
from eagle3lab.engines.embedded import EmbeddedEngine
from tests.tiny import VOCAB, save_tiny_target

STEPS, ANSWERS, LENGTH = 3, 8, 28
# no draft id for every ninth target id: tokens outside, and offsets that are not zero
KNOWN_W = torch.tensor([i for i in range(VOCAB) if i % 9 != 4])


@dataclass(frozen=True)
class Overfit:
    """What the tests start from; `draft` is not to be changed, `requests` are the prompts of `rows`."""

    folder: Path
    engine: EmbeddedEngine
    draft: Eagle3Draft
    rows: list[AnswerRow]
    requests: list[Request]
    completions: list[Completion]

    @property
    def answers(self) -> list[dict]:
        """As `capture_answers` takes them."""
        return [
            {"id": c.id, "set": "even" if int(c.id[1:]) % 2 == 0 else "odd", "prompt_ids": c.prompt_ids,
             "output_ids": c.output_ids}
            for c in self.completions
        ]  # fmt: skip


def make_overfit(folder: Path, epochs: int = 80) -> Overfit:
    engine = EmbeddedEngine(save_tiny_target(folder), end_ids=())
    generator = torch.Generator().manual_seed(1)
    requests = [
        Request(f"p{i}", torch.randint(2, VOCAB, (3 + i % 5,), generator=generator).tolist(), max_tokens=LENGTH)
        for i in range(ANSWERS)
    ]
    completions = sorted(engine.generate(requests, batch_size=4), key=lambda c: int(c.id[1:]))
    config = DraftConfig.for_target(engine.config, tuple(engine.aux_layers), len(KNOWN_W))
    draft = Eagle3Draft(config, engine.embed_VH.detach(), KNOWN_W)
    with torch.no_grad():  # norms as a trained drafter has them: far from one
        for module in (draft.midlayer.hidden_norm, draft.midlayer.input_layernorm, draft.norm):
            module.weight.copy_(torch.rand(module.weight.shape, generator=generator) * 2 + 0.2)
    whole = Overfit(folder, engine, draft, [], requests, completions)
    rows = sorted(capture_answers(engine, whole.answers, 512), key=lambda row: int(row.id[1:]))
    recipe = Recipe(ttt_steps=STEPS, epochs=epochs, batch_tokens=120, compute_dtype="float32", lr=1e-2, head_lr=1e-2)
    by_id = {row.id: row for row in rows}
    lengths = {row.id: len(row.input_ids_T) for row in rows}
    list(Trainer(draft, lengths, by_id.__getitem__, engine.lm_head_VH.detach(), recipe, folder / "state").run())
    return Overfit(folder, engine, draft.eval(), rows, requests, completions)
