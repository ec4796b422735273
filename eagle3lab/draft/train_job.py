"""A training as plain values: the same whether it runs in this process or in several others.

    python -m eagle3lab.draft.train_job job.json                                      one process
    python -m torch.distributed.run --nproc-per-node=2 -m eagle3lab.draft.train_job job.json

Files, in the job's folder: the checkpoints; stream.jsonl, the metric rows as they come (written by the first process);
failure-<rank>.json, kind and message of the error that ended a process.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from torch import nn
from torch.distributed.tensor import DTensor

from eagle3lab.data.fingerprint import target_fingerprint
from eagle3lab.draft import fit
from eagle3lab.draft.checkpoint import check_export
from eagle3lab.draft.engine_support import SERVER
from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.rows import TrainingRows, training_rows
from eagle3lab.draft.start import new_draft
from eagle3lab.draft.target_weights import read_target_weights
from eagle3lab.draft.team import ALONE, Team
from eagle3lab.draft.train import AHEAD, Trainer
from eagle3lab.draft.vocab import VocabMap
from eagle3lab.features.layout import check_fingerprint
from eagle3lab.features.live import LiveFeatures
from eagle3lab.features.store import FeatureStore
from eagle3lab.workbench.files import append_jsonl, read_json, write_json_atomic
from eagle3lab.workbench.ranges import outside

STREAM = "stream.jsonl"
DEVICES = ("cpu", "cuda")
LAUNCHER = "EAGLE3LAB_LAUNCHER"  # pid of the process that started the job: without it the job ends


@dataclass(frozen=True)
class TrainJob:
    """Paths, recipe and rhythm of one training.

    target: local folder of the target. features: the feature store. vocab_map: its vocabulary map. folder: where the
    checkpoints go. sizes: fields of DraftConfig that shall differ from the target's. row_ids: train on these rows only.
    heldout_rows: how many rows of the split "heldout" the accept length is measured on. sharded: several processes
    split weights, gradients and moments (FSDP2). device: "cpu" or "cuda". serve_with: the engine release that shall run
    the drafter. trust_remote_code: the target's tokenizer may be code in its folder. The other fields are those of
    `Trainer.run`.
    """

    target: str
    features: str
    vocab_map: str
    folder: str
    recipe: Recipe
    sizes: dict = field(default_factory=dict)
    row_ids: list[str] | None = None
    heldout_rows: int = 0
    checkpoint_every: int = 100
    log_every: int = 10
    evaluate_every: int | None = None
    num_steps: int | None = None
    keep: int = 2
    sharded: bool = False
    device: str = "cpu"
    serve_with: str = SERVER
    trust_remote_code: bool = False

    def __post_init__(self):
        if broken := outside(vars(self)):
            raise ValueError("; ".join(broken))
        if self.device not in DEVICES:
            raise ValueError(f"device={self.device!r} is not one of {', '.join(DEVICES)}")
        if bool(self.heldout_rows) != (self.evaluate_every is not None):
            raise ValueError(
                f"heldout_rows={self.heldout_rows} and evaluate_every={self.evaluate_every} go together: how many "
                "rows, and every how many optimizer steps"
            )

    def save(self, path: str | Path) -> None:
        """Writes the job as JSON; `load` reads it."""
        values = {name: str(value) if isinstance(value, Path) else value for name, value in vars(self).items()}
        write_json_atomic(path, values | {"recipe": self.recipe.to_dict()})

    @classmethod
    def load(cls, path: str | Path) -> "TrainJob":
        """Reads what `save` wrote. ValueError names the file when it is something else."""
        values = read_json(path)
        try:
            return cls(**values | {"recipe": Recipe(**values["recipe"])})
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path} is no training job: {error}") from error

    def rows(self, source=None) -> TrainingRows:
        """What is trained, from the index of the store (or of the `source`, see `trainer`). Raises ValueError as
        `training_rows` and `chosen_rows` do."""
        source = FeatureStore(self.features) if source is None else source
        rows = training_rows(source, "train", self.recipe)
        return rows if self.row_ids is None else fit.chosen_rows(self.features, source, rows, self.row_ids)

    def trainer(self, team: Team = ALONE, source=None) -> Trainer:
        """The training, continued from its newest checkpoint where there is one.

        source: what is read in the store's place and has its interface, such as LiveFeatures.
        Raises, before anything is trained, FeatureStoreError for features of another target, VocabError for a map of
        another text, and what `rows`, `new_draft`, `check_export`, `Trainer` and the functions of fit.py raise.
        """
        source = FeatureStore(self.features) if source is None else source
        device = fit.device_of(self.device, team.rank)
        self._check_target(source.fingerprint)
        fit.check_features(self.features, source, self.target)
        vocab = VocabMap.load(self.vocab_map, source.fingerprint.get("corpus"))
        weights = read_target_weights(self.target)
        draft = new_draft(
            self.target, source.aux_layers, vocab, weights, self.recipe.seed, self.recipe.warm_start, **self.sizes
        )
        check_export(draft.config, self.serve_with)
        rows, heldout = self.rows(source), fit.measured_rows(self.features, source, self.heldout_rows)
        read_row = fit.checked(rows.reader(source.row), draft.config.vocab_size)
        fit.check_names_something(self.vocab_map, vocab, rows, read_row, self.recipe)
        return Trainer(
            draft.to(device),
            rows.lengths,
            read_row,
            weights.head_VH,
            self.recipe,
            self.folder,
            {"features": source.fingerprint},
            heldout,
            team,
            self.sharded,
            0 if device == "cpu" and isinstance(source, LiveFeatures) else AHEAD,
            fit.shard_of(source, rows),
        )

    def _check_target(self, fingerprint: dict) -> None:
        """The features must be of this target: weights, tokenizer, chat template, as far as their record knows them."""
        known = {name: fingerprint[name] for name in ("target", "template") if name in fingerprint}
        check_fingerprint(Path(self.features), known, target_fingerprint(self.target, known, self.trust_remote_code))

    def run(self, trainer: Trainer) -> Iterator[dict]:
        """Metric rows of the training in this process."""
        return trainer.run(self.checkpoint_every, self.log_every, self.evaluate_every, self.num_steps, self.keep)


def _weights_here(draft: nn.Module) -> int:
    """How many of the trained numbers lie in this process: all of them, or its part."""
    return sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in draft.parameters())


def main(path: str) -> None:
    """One process of a job."""
    job, team, parent = TrainJob.load(path), Team.join(), os.getppid()
    folder = Path(job.folder)
    try:
        trainer = job.trainer(team)
        print(f"process {team.rank + 1} of {team.size} holds {_weights_here(trainer.draft):,} weights", flush=True)
        for row in job.run(trainer):
            if team.leads:
                append_jsonl(folder / STREAM, row)
            launcher = os.environ.get(LAUNCHER)
            if (team.size > 1 and os.getppid() != parent) or (launcher and not psutil.pid_exists(int(launcher))):
                raise RuntimeError("the process that started this training is gone")
    except Exception as error:
        failure = {"kind": type(error).__name__, "message": str(error)}
        write_json_atomic(folder / f"failure-{team.rank}.json", failure)
        raise
    team.leave()


if __name__ == "__main__":
    main(sys.argv[1])
    # everything is on disk. Threads that torch.distributed leaves behind can abort the interpreter on its way out
    # ("terminate called without an active exception"), and a finished training would count as failed
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
