"""A scaling study: drafters of one recipe that differ in one thing, trained for it or found among finished runs.

What is varied (`vary`): "rows" and "tokens" of nested subsets of the training data, or a number of the recipe (epochs,
ttt_steps, lr ...) or of the drafter's sizes (intermediate_size, hidden_size ...). A training's seed decides its start
weights, the order of its rows, and which rows are in its subsets.
"""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from eagle3lab.data.corpus import nested_subsets
from eagle3lab.draft.checkpoint import export_draft, read_training
from eagle3lab.draft.config import FREE
from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.train_job import TrainJob
from eagle3lab.workbench.files import read_json

SUBSETS = {"rows": "training rows", "tokens": "training tokens of one pass"}
RECIPE_NAMES = {field.name for field in fields(Recipe)} - {"seed"}  # seeds are a study's own: `train_seeds`
GUARDS = ("seed", "explode_factor")  # of the recipe: drafters of one curve may differ in them
TRAININGS = "trainings"  # folder of a study's run that its trainings are in
COLLECTED = ("training", "scaling")  # stages whose finished runs hold drafters


@dataclass(frozen=True)
class Studied:
    """One drafter of a study.

    amount: of what is varied. rows, slots: what one pass over its data holds. source: the run it was trained in.
    draft: its folder, which is there once it is trained. job: how it is trained; None for a finished run's drafter.
    """

    amount: float
    seed: int
    rows: int
    slots: int
    source: str
    draft: Path
    job: TrainJob | None = None

    @property
    def key(self) -> dict:
        """What tells it from the others, for tables and metric rows."""
        return {"amount": self.amount, "seed": self.seed, "rows": self.rows, "slots": self.slots, "source": self.source}

    def told(self, row: dict) -> bool:
        """Whether a metric row is this training's."""
        return self.key.items() <= row.items()

    def among(self, others: Iterable["Studied"]) -> bool:
        """Whether the same training is there already, of another run: same amount, seed, rows and slots. A drafter that
        counted twice would make the luck of trainings look smaller than it is."""
        return any({**one.key, "source": ""} == {**self.key, "source": ""} for one in others)


def unit(vary: str) -> str:
    """What an amount counts, for axes."""
    return SUBSETS.get(vary, vary)


def finished(draft: str | Path, run_id: str, vary: str) -> Studied:
    """The drafter of a finished training run, its amount from its training.json. ValueError when that does not tell."""
    told = read_training(draft)
    known = {**told.get("draft_config", {}), **told["recipe"]}
    known |= {"rows": told.get("rows"), "tokens": told.get("slots_per_epoch")}
    amount = known.get(vary)
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        numbers = sorted(name for name, value in known.items() if type(value) in (int, float))
        raise ValueError(f"vary={vary!r}: {run_id} has no such number; it has {', '.join(numbers)}")
    return Studied(amount, told["recipe"]["seed"], told["rows"], told["slots_per_epoch"], run_id, Path(draft))


def collected(run, vary: str) -> list[Studied]:
    """The drafters of a finished run (an UpstreamRun): that of a training, or those a scaling study trained itself.

    Only the drafters are taken, and each is judged anew: with which num_steps and on which prompts that study measured
    them does not matter. ValueError where the study trained none, where a drafter of it is gone, and as `finished`.
    """
    if run.stage == "training":
        return [finished(run.artefact("draft"), run.id, vary)]
    curve, found = read_json(run.artefact("curve")), []
    for point in curve["points"]:
        if point["source"] == run.id:
            draft = _folder(run.folder / TRAININGS, curve["vary"], point["amount"], point["seed"]) / "draft"
            if not draft.is_dir():
                raise ValueError(f"{run.id}: its drafter {draft} is gone: leave the run out, or run that study again")
            found.append(finished(draft, run.id, vary))
    if not found:
        raise ValueError(f"{run.id} trained no drafter itself: name the runs it collected in its place")
    return found


def planned(
    full: Studied, job: TrainJob, features, vary: str, amounts: Sequence[float], seeds: Iterable[int], run_id: str
) -> list[Studied]:
    """The trainings of every amount, and of the full one, with every seed; the full training itself is not repeated.

    `job` is the full training, `features` what it reads (a FeatureStore or LiveFeatures); the trainings go to folders
    below its own. ValueError for an amount of data above the
    full one, and for what the recipe or the drafter's sizes refuse.
    """
    amounts, found = [_whole(amount) for amount in amounts], []
    for seed in seeds:
        wanted = [amount for amount in (*amounts, full.amount) if (amount, seed) != (full.amount, full.seed)]
        subsets = _subsets(job, features, vary, sorted(set(wanted)), seed) if vary in SUBSETS else {}
        for amount in dict.fromkeys(wanted):
            folder = _folder(job.folder, vary, amount, seed)
            here = replace(job, folder=folder / "checkpoints", recipe=replace(job.recipe, seed=seed), keep=1)
            if vary in SUBSETS:
                here = replace(here, row_ids=subsets[amount])
            else:
                here = _changed(here, vary, amount)
            rows = here.rows(features)
            size = len(rows.row_ids), sum(rows.lengths.values())
            found.append(Studied(amount, seed, *size, run_id, folder / "draft", here))
    return found


def export(one: Studied, draft, target: str) -> None:
    """Exports a drafter that was trained for the study; its checkpoints are not needed after that."""
    told = {"recipe": one.job.recipe.to_dict(), "sizes": one.job.sizes, "rows": one.rows, "slots_per_epoch": one.slots}
    export_draft(draft, one.draft, {"target": target, "run": one.source, **told}, engine=one.job.serve_with)
    shutil.rmtree(one.job.folder)


def check_same_recipe(one: Studied, full: Studied, vary: str) -> None:
    """ValueError for a finished run's drafter that differs from the full training in more than what is varied."""
    ours, theirs = (_setting(each.draft, vary) for each in (full, one))
    other = [f"{name} ({ours.get(name)}, {theirs.get(name)})" for name in ours if ours[name] != theirs.get(name)]
    if other:
        raise ValueError(
            f"{one.source} differs from the full training {full.source} not in {vary} alone, but in "
            f"{', '.join(sorted(other))}: leave it out, or vary that"
        )


def check_comparable(one: Studied, features, here, answer_ids: Iterable[str]) -> None:
    """ValueError for a finished run's drafter that the held-out answers cannot judge: the features it was trained on
    (`features`) are of another target or other aux_layers than those of this study (`here`), or hold some of the
    answers as training rows."""
    if features.fingerprint.get("target") != here.fingerprint.get("target"):
        raise ValueError(f"{one.source} was trained for another target than this study's: leave it out")
    trained = {row_id for row_id in features.ids if features.index(row_id)["split"] == "train"}
    if seen := sorted(trained.intersection(answer_ids)):
        raise ValueError(f"{one.source} was trained on {len(seen)} of the held-out answers ({seen[0]}): leave it out")
    theirs, ours = list(features.aux_layers), list(here.aux_layers)
    if theirs != ours:
        raise ValueError(f"{one.source} reads aux_layers {theirs}, this study captures {ours}: leave it out")


def _setting(draft: Path, vary: str) -> dict:
    """What a drafter was trained with, but for what is varied: its recipe and its sizes."""
    told = read_training(draft)
    values = {**asdict(Recipe(**told["recipe"])), **told.get("draft_config", {})}
    return {name: value for name, value in values.items() if name not in (vary, *GUARDS)}


def _folder(trainings: str | Path, vary: str, amount: float, seed: int) -> Path:
    """Where a study keeps one of its trainings."""
    return Path(trainings) / f"{vary}-{amount:g}-seed-{seed}"


def _subsets(job: TrainJob, features, vary: str, amounts: list[float], seed: int) -> dict[float, list[str]]:
    """Row ids of each amount, each a subset of the next. Tokens: as many rows as fit, at least one."""
    if not amounts:
        return {}
    rows = job.rows(features)
    sets = {row_id: features.index(row_id)["set"] for row_id in rows.row_ids}
    if vary == "rows":
        if broken := [amount for amount in amounts if not isinstance(amount, int)]:
            raise ValueError(f"amounts: {broken[0]} rows: give a whole number")
        if amounts[-1] > len(rows.row_ids):
            raise ValueError(f"amounts: {amounts[-1]} rows are more than the {len(rows.row_ids)} of the full training")
        return nested_subsets(rows.row_ids, amounts, seed, sets)
    (order,) = nested_subsets(rows.row_ids, [len(sets)], seed, sets).values()
    sizes = dict.fromkeys(order, 0)
    for piece, n in rows.lengths.items():
        sizes[rows.row_of(piece)] += n
    if amounts[-1] > sum(sizes.values()):
        raise ValueError(
            f"amounts: {amounts[-1]:,.0f} tokens are more than the {sum(sizes.values()):,} of the full training"
        )
    found = {}
    for amount in amounts:
        tokens, chosen = 0, []
        for row_id in order:
            tokens += sizes[row_id]
            if chosen and tokens > amount:
                break
            chosen.append(row_id)
        found[amount] = chosen
    return found


def _whole(amount: float) -> float:
    """An int where it is a whole number: parameters of type float arrive as 3.0."""
    return int(amount) if float(amount).is_integer() else amount


def _changed(job: TrainJob, vary: str, amount: float) -> TrainJob:
    """The job with another number in its recipe or in the drafter's sizes."""
    if vary in RECIPE_NAMES:
        return replace(job, recipe=replace(job.recipe, **{vary: amount}))
    if vary in FREE:
        return replace(job, sizes=job.sizes | {vary: amount})
    if vary == "draft_vocab_size":
        raise ValueError(
            "vary='draft_vocab_size': the trainings of a study share one vocabulary map, that of the extraction; run "
            "03 and 04 once for each draft_vocab_size, name those trainings in collect_runs, and set amounts = []"
        )
    raise ValueError(f"vary={vary!r} is neither {' nor '.join(SUBSETS)}, nor a number of the recipe or the drafter")
