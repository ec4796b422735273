"""Can the drafter learn a few answers by heart: the test that separates a bug from too little data.

What it learns is of no use; that it can says that features, masks, slots and loss fit together.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from eagle3lab.analysis.accept import accept_length
from eagle3lab.analysis.heldout import AnswerRow, Simulation, simulate
from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.train import Trainer

AGAIN = 2  # times that the passes are doubled where they were not enough


def most_passes(epochs: int) -> int:
    """Passes of the last and longest training of `learn_by_heart`, where none was enough."""
    return epochs * 2**AGAIN


def learn_by_heart(
    draft,
    rows: Sequence[AnswerRow],
    head_VH: torch.Tensor,
    num_steps: int,
    epochs: int = 60,
    lr: float = 1e-3,
    compute_dtype: str = "float32",
    seed: int = 0,
    enough: float | None = None,
) -> Simulation:
    """What a copy of the drafter accepts on these answers after `epochs` passes over them alone; `draft` stays as is.

    head_VH: the target's output head. Training and simulation are the ordinary ones, all answers in one step. AdamW:
    on a few answers Muon would spend most of the time on its own products. One answer and 20 passes take seconds on a
    CPU. enough: accept length that is wanted; where it is not reached, the training is done again with twice and four
    times the passes, so that few passes are not taken for a fault.
    """
    for doubled in range(1 + AGAIN):
        found = _learn(draft, rows, head_VH, num_steps, epochs * 2**doubled, lr, compute_dtype, seed)
        if enough is None or _length(found) >= enough:
            break
    return found


def _length(found: Simulation) -> float:
    return accept_length(sum(row.committed for row in found.cycles), sum(len(row.accepted) for row in found.cycles))


def _learn(draft, rows, head_VH, num_steps, epochs, lr, compute_dtype, seed) -> Simulation:
    learner, by_id = copy.deepcopy(draft), {row.id: row for row in rows}
    lengths = {row.id: len(row.input_ids_T) for row in rows}
    recipe = Recipe(
        ttt_steps=num_steps,
        step_decay=1.0,
        epochs=epochs,
        lr=lr,
        head_lr=lr,
        optimizer="adamw",
        batch_tokens=sum(lengths.values()),
        compute_dtype=compute_dtype,
        explode_factor=None,
        seed=seed,
    )
    with TemporaryDirectory() as folder:
        trainer = Trainer(learner, lengths, by_id.__getitem__, head_VH.detach(), recipe, Path(folder))
        for _ in trainer.run(checkpoint_every=10**9, log_every=10**9):
            pass
    return simulate(learner.eval(), rows, num_steps)
