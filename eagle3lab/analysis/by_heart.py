"""Can the drafter learn a few answers by heart: the test that separates a bug from too little data.

What it learns is of no use; that it can says that features, masks, slots and loss fit together.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from eagle3lab.analysis.heldout import AnswerRow, Simulation, simulate
from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.train import Trainer


def learn_by_heart(
    draft,
    rows: Sequence[AnswerRow],
    head_VH: torch.Tensor,
    num_steps: int,
    epochs: int = 60,
    lr: float = 3e-3,
    compute_dtype: str = "float32",
    seed: int = 0,
) -> Simulation:
    """What a copy of the drafter accepts on these answers after `epochs` passes over them alone; `draft` stays as is.

    head_VH: the target's output head. Training and simulation are the ordinary ones; a few answers and some 60 passes
    take a minute on a CPU.
    """
    learner, by_id = copy.deepcopy(draft), {row.id: row for row in rows}
    lengths = {row.id: len(row.input_ids_T) for row in rows}
    recipe = Recipe(
        ttt_steps=num_steps,
        step_decay=1.0,
        epochs=epochs,
        lr=lr,
        head_lr=lr,
        batch_tokens=max(lengths.values()),
        compute_dtype=compute_dtype,
        explode_factor=None,
        seed=seed,
    )
    with TemporaryDirectory() as folder:
        trainer = Trainer(learner, lengths, by_id.__getitem__, head_VH.detach(), recipe, Path(folder))
        for _ in trainer.run(checkpoint_every=10**9, log_every=10**9):
            pass
    return simulate(learner.eval(), rows, num_steps)
