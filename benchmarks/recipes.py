"""Which training recipe gives the longest accept length at equal data and equal tokens trained.

Answers of a corpus made by notebook 02 are captured once; every arm trains one drafter per seed on the same store and
is measured on the same other answers (simulated greedy chain, which equals the served one). The arms: training as
SpecForge does it, at several learning rates; this project's defaults (`ours`); and the defaults with one thing changed.
Seeds are paired: the same order of rows, and the same random numbers at the start, for every arm.
Usage: python -m benchmarks.recipes runs/<inference run>/corpus.parquet --work runs/recipes [--arms ...] [--seeds ...]
Results are one JSON line each in <work>/results.jsonl. A study that was cut off goes on, inside a training too. Two
processes may share <work> when they have different --seeds or --arms and its stores are there (give each --threads 1).
"""

import argparse
import shutil
import statistics
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from benchmarks.codecs import answer_rows, every_token, extract
from benchmarks.compared import report
from eagle3lab.analysis.accept import AcceptSetting, summarise
from eagle3lab.analysis.heldout import LEAST_ANSWER, simulate
from eagle3lab.data.corpus import corpus_summary, read_corpus
from eagle3lab.data.targets import resolve_target
from eagle3lab.draft.diverged import TrainingDiverged
from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.train_job import TrainJob
from eagle3lab.draft.vocab import build_vocab, count_tokens
from eagle3lab.engines.servers.model_files import read_target
from eagle3lab.features.precision import resolve_dtype
from eagle3lab.features.slots import spans_to_mask, teacher_slots
from eagle3lab.features.store import FeatureStore
from eagle3lab.workbench.files import append_jsonl, read_json, read_jsonl, write_json_atomic

PLAIN = {"fc_norm": False, "norm_output": False}  # sizes of plain EAGLE-3, without the norms of EAGLE-3.1
SPECFORGE = {
    "warm_start": (), "loss_mask_kind": "specforge", "denominator": "all", "optimizer": "adamw", "ttt_steps": 7,
    "clip_norm": 0.5, "warmup_share": 0.015, "final_lr_share": 0.0,
}  # fmt: skip
STUDY = (
    "train_rows", "heldout_rows", "epochs", "batch_tokens", "ttt_steps", "draft_vocab_size", "num_steps", "target",
    "dtype",
)  # fmt: skip


@dataclass(frozen=True)
class Arm:
    """One recipe: fields of Recipe and of DraftConfig that differ from the defaults.

    prompts: prompt tokens are teachers too, as notebook 03 has it. vocabulary: factor on the size of the draft
    vocabulary. foreign: half of the epochs, on twice the text: answers that the target did not write beside its own.
    """

    recipe: dict = field(default_factory=dict)
    sizes: dict = field(default_factory=dict)
    prompts: bool = True
    vocabulary: float = 1.0
    foreign: bool = False


def adamw(lr: float) -> dict:
    return {"optimizer": "adamw", "lr": lr, "head_lr": lr}


CORE = {
    "specforge 1e-4": Arm(SPECFORGE | adamw(1e-4), PLAIN, prompts=False),
    "specforge 3e-4": Arm(SPECFORGE | adamw(3e-4), PLAIN, prompts=False),
    "specforge 1e-3": Arm(SPECFORGE | adamw(1e-3), PLAIN, prompts=False),
    "ours": Arm(),
}
ARMS = CORE | {
    "specforge 3e-3": Arm(SPECFORGE | adamw(3e-3), PLAIN, prompts=False),
    "no norms": Arm(sizes=PLAIN),
    "fc_norm alone": Arm(sizes={"norm_output": False}),
    "norm_output alone": Arm(sizes={"fc_norm": False}),
    "answers only": Arm(prompts=False),
    "adamw 1e-3": Arm(adamw(1e-3)),
    "adamw 3e-3": Arm(adamw(3e-3)),
    "muon 1e-3": Arm({"lr": 1e-3}),
    "muon, head 1e-3": Arm({"head_lr": 1e-3}),
    "random start": Arm({"warm_start": ()}),
    "start: head": Arm({"warm_start": ("lm_head",)}),
    "start: head, norm, fc": Arm({"warm_start": ("lm_head", "norm", "fc")}),
    "start: head, norm, layer": Arm({"warm_start": ("lm_head", "norm", "layer")}),
    "mask shifted": Arm({"loss_mask_kind": "shifted"}),
    "mask specforge": Arm({"loss_mask_kind": "specforge"}),
    "mean over all slots": Arm({"denominator": "all"}),
    "ids outside kept": Arm({"drop_oov": False}),
    "half LK 1-a": Arm({"lk_weight": 0.5}),
    "half LK -log a": Arm({"lk_weight": 0.5, "lk_form": "log"}),
    "all LK -log a": Arm({"lk_weight": 1.0, "lk_form": "log"}),
    "half the vocabulary": Arm(vocabulary=0.5),
    "twice the vocabulary": Arm(vocabulary=2.0),
    "weights 1.0^i": Arm({"step_decay": 1.0}),
    "weights 0.6^i": Arm({"step_decay": 0.6}),
    "1 TTT step": Arm({"ttt_steps": 1}),
    "5 TTT steps": Arm({"ttt_steps": 5}),
    "7 TTT steps": Arm({"ttt_steps": 7}),
    "twice the batch": Arm({"accumulate": 2}),
    "foreign text": Arm(foreign=True),
}
ARMS |= {  # the same on plain EAGLE-3
    f"no norms, {name}": replace(arm, sizes=PLAIN) for name, arm in ARMS.items() if not arm.sizes and name != "ours"
}


class LeftOut(ValueError):
    """An arm that this study cannot run."""


class AnswersOnly:
    """A store of which only the answers are trained; the prompts' aux states stay, as context."""

    def __init__(self, store: FeatureStore, spans: dict[str, list[list[int]]]):
        self._store, self._spans = store, spans
        self.ids, self.aux_layers, self.fingerprint = store.ids, store.aux_layers, store.fingerprint

    def index(self, row_id: str) -> dict:
        return self._store.index(row_id) | {"loss_spans": self._spans[row_id]}

    def row(self, row_id: str):
        row = self._store.row(row_id)
        mask_T = spans_to_mask(self._spans[row_id], len(row.input_ids_T))
        kept_M = torch.isin(row.last_slots, teacher_slots(mask_T))
        return replace(row, loss_mask_T=mask_T, last_slots=row.last_slots[kept_M], last_MH=row.last_MH[kept_M])


class Study:
    """What all arms share: stores, held-out answers, token counts, settings."""

    def __init__(self, arguments):
        self.arguments, self.work = arguments, arguments.work
        self.target = resolve_target(arguments.target)
        setting = {name: getattr(arguments, name) for name in STUDY}
        setting["corpus"] = corpus_summary(arguments.corpus)["fingerprint"]
        if (self.work / "study.json").exists() and read_json(self.work / "study.json") != setting:
            raise SystemExit(f"{self.work} holds a study of another setting: use another --work, or the same arguments")
        write_json_atomic(self.work / "study.json", setting)
        answers, others, foreign = choose(arguments.corpus, arguments.train_rows, arguments.heldout_rows)
        foreign = [] if arguments.epochs % 2 else foreign  # see Arm: an odd number of epochs has no use for them
        stored, layers = answers + foreign, arguments.aux_layers
        extract(self.target, arguments.dtype, stored, every_token, ["bf16"], self.work / "train", layers)
        spans = {row["id"]: row["loss_spans"] for row in stored + others}
        extract(self.target, "float32", others, lambda row: spans[row["id"]], ["float32"], self.work / "others", layers)
        self.answer_ids, self.foreign_ids = ([row["id"] for row in rows] for rows in (answers, foreign))
        self.store = FeatureStore(self.work / "train" / "bf16")
        self.answers_only = AnswersOnly(self.store, spans)
        self.heldout = list(answer_rows(FeatureStore(self.work / "others" / "float32")))
        texts = ((torch.tensor(row["input_ids"]), row["loss_spans"]) for row in answers)
        pairs = ((ids_T, spans_to_mask(spans_, len(ids_T))) for ids_T, spans_ in texts)
        self.counts_V = count_tokens(pairs, read_target(self.target).vocab_size)

    def state(self, name: str, seed: int) -> Path:
        """Where the checkpoints of an arm go, until it is measured."""
        return self.work / f"state-{name.replace(' ', '_')}-{seed}"

    def job(self, name: str, seed: int) -> TrainJob:
        """The training of one arm. LeftOut where this corpus or the epochs cannot give what it needs."""
        arm, given = ARMS[name], self.arguments
        shared = {name: getattr(given, name) for name in ("epochs", "batch_tokens", "ttt_steps")}
        shared |= {"seed": seed, "compute_dtype": given.dtype}
        ids = self.answer_ids
        if arm.foreign:
            if given.epochs % 2 or not self.foreign_ids:
                raise LeftOut("needs an even number of epochs, and a corpus made with references")
            ids, shared["epochs"] = ids + self.foreign_ids, given.epochs // 2
        seen = int((self.counts_V > 0).sum())
        vocab = build_vocab(self.counts_V, min(seen, round(given.draft_vocab_size * arm.vocabulary)))
        path = self.work / f"vocab-{vocab.size}.safetensors"
        vocab.save(path)
        paths = (self.target, self.store.folder, path, self.state(name, seed))
        return TrainJob(*paths, Recipe(**shared | arm.recipe), arm.sizes, ids, checkpoint_every=200, log_every=50)

    def measure(self, name: str, seed: int) -> dict:
        """Trains one arm and runs its drafter along the other answers."""
        job = self.job(name, seed)
        trainer = job.trainer(source=self.store if ARMS[name].prompts else self.answers_only)
        try:
            rows = list(job.run(trainer))
        except TrainingDiverged as error:
            return {"diverged": str(error)}
        result = {
            "steps": trainer.total_steps,
            "slots": trainer.progress["tokens_seen"],
            "draft_vocab_size": trainer.draft.config.draft_vocab_size,
            "tokens_per_second": statistics.median(row["tokens_per_second"] for row in rows) if rows else None,
            "accept_length": {},
            "histogram": {},
        }
        for steps in self.arguments.num_steps:
            setting = AcceptSetting("simulated", steps, 1, steps + 1, 0.0, "answers not trained on")
            summary = summarise(simulate(trainer.draft, self.heldout, steps).cycles, setting)
            result["accept_length"][str(steps)] = summary.accept_length
            result["histogram"][str(steps)] = list(summary.histogram)
        return result

    def run(self, arms: list[str], seeds: list[int]) -> None:
        """Measures what is missing, the core of the comparison first for all seeds; prints the table after each."""
        path = self.work / "results.jsonl"
        done = {(row["arm"], row["seed"]) for row in read_jsonl(path, repair=True)}
        core = [name for name in arms if name in CORE]
        others = [name for name in arms if name not in CORE]
        for name, seed in [(name, seed) for group in (core, others) for seed in seeds for name in group]:
            if (name, seed) in done:
                continue
            try:
                result = self.measure(name, seed)
            except LeftOut as error:
                print(f"{name}: left out, {error}", flush=True)
                continue
            append_jsonl(path, {"arm": name, "seed": seed, **result})
            shutil.rmtree(self.state(name, seed))
            print(report(read_jsonl(path), self.arguments.num_steps[0]), flush=True)
        print(report(read_jsonl(path), self.arguments.num_steps[0]))


def choose(corpus: Path, train_rows: int, heldout_rows: int) -> tuple[list[dict], list[dict], list[dict]]:
    """Rows to train on, others to measure with (the held-out ones first), and as many that the target did not write."""
    rows = [row for row in read_corpus(corpus) if row["loss_spans"][0][1] - row["loss_spans"][0][0] >= LEAST_ANSWER]
    answers = [row for row in rows if row["origin"] == "target"]
    train = [row for row in answers if row["split"] == "train"][:train_rows]
    chosen = {row["id"] for row in train}
    others = sorted((row for row in answers if row["id"] not in chosen), key=lambda row: row["split"] != "heldout")
    foreign = [row for row in rows if row["origin"] == "reference" and row["split"] == "train"][: len(train)]
    return train, others[:heldout_rows], foreign


def main() -> None:
    """Measures what is missing and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="folder of stores, checkpoints and results")
    parser.add_argument("--target", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--aux-layers", type=int, nargs="+", help="for a target with few layers")
    names = list(ARMS)
    usual = [name for name in names if not name.startswith("no norms,")]
    parser.add_argument("--arms", nargs="+", choices=names, default=usual, metavar="ARM", help=", ".join(names))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--train-rows", type=int, default=2000)
    parser.add_argument("--heldout-rows", type=int, default=150)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--ttt-steps", type=int, default=3, help="of the arms that do not set them")
    parser.add_argument("--batch-tokens", type=int, default=512)
    parser.add_argument("--draft-vocab-size", type=int, default=8192)
    parser.add_argument("--num-steps", type=int, nargs="+", default=[5, 3], help="chains; the table shows the first")
    parser.add_argument("--dtype", type=resolve_dtype, default="auto", help="of training and its states (auto)")
    parser.add_argument("--threads", type=int, help="of torch; default: all cores")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    Study(arguments).run(arguments.arms, arguments.seeds)


if __name__ == "__main__":
    main()
