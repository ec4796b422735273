"""What the feature store's codecs cost in accept length: the same answers in each, one drafter per codec and seed.

Every answer of a corpus made by notebook 02 is captured once and written to one store per codec; answers that are not
trained on, and the held-out ones, measure the accept length (simulated greedy chain, which equals the served one).
Seeds are paired: the same start weights and order of rows for every codec.
Usage: python -m benchmarks.codecs runs/<inference run>/corpus.parquet --work runs/codecs
Results are one JSON line each in <work>/results.jsonl, with their setting; a run that was cut off goes on after the
last of them. README tells dev/codecs.jsonl.
"""

import argparse
import statistics
from pathlib import Path

import torch

from benchmarks.compared import mean_and_error
from eagle3lab.analysis.accept import AcceptSetting, summarise
from eagle3lab.analysis.heldout import LEAST_ANSWER, AnswerRow, simulate
from eagle3lab.data.corpus import corpus_summary, read_corpus
from eagle3lab.data.targets import resolve_target
from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.train_job import TrainJob
from eagle3lab.draft.vocab import build_vocab, count_tokens
from eagle3lab.engines.embedded import EmbeddedEngine
from eagle3lab.engines.servers.model_files import read_target
from eagle3lab.features.precision import resolve_dtype
from eagle3lab.features.slots import spans_to_mask
from eagle3lab.features.store import FeatureStore, FeatureWriter
from eagle3lab.workbench.files import append_jsonl, read_jsonl

CODECS = ("bf16", "fp8", "fp8+top64", "fp8+top16")
SETTING = ("train_rows", "heldout_rows", "epochs", "ttt_steps", "batch_tokens", "draft_vocab_size", "target")
BATCH_TOKENS = 2048


def every_token(row: dict) -> list[list[int]]:
    """Every token is trained, those of the prompt too, as notebook 03 does by default."""
    return [[1, len(row["input_ids"])]]


def extract(folder: Path, dtype: str, rows: list[dict], spans_of, codecs, work: Path, aux_layers=None) -> None:
    """One store per codec, all from the same captured states."""
    if all((work / codec / "store.json").exists() for codec in codecs):
        return
    engine = EmbeddedEngine(folder, dtype, aux_layers)
    sizes = (engine.aux_layers, engine.config.hidden_size, 32768)
    fingerprint = {"rows": [row["id"] for row in rows]}
    head_VH = engine.lm_head_VH
    writers = [FeatureWriter(work / codec, fingerprint, *sizes, codec, head_VH=head_VH) for codec in codecs]
    by_id = {row["id"]: row for row in rows if any(row["id"] not in writer.done_ids for writer in writers)}
    for features in engine.capture(((key, row["input_ids"]) for key, row in by_id.items()), BATCH_TOKENS):
        row = by_id[features.id]
        for writer in writers:
            if row["id"] not in writer.done_ids:
                states = (features.aux_TAH, features.last_TH)
                writer.add(row["id"], row["input_ids"], spans_of(row), *states, row["split"], row["set"])
    for writer in writers:
        writer.close()


def answer_rows(store: FeatureStore):
    """The stored answers, as the simulation wants them."""
    for row in store.rows():
        n_prompt = int(row.loss_mask_T.nonzero()[0])
        tensors = (row.input_ids_T, row.loss_mask_T, row.aux_TAH, row.last_slots, row.last_MH)
        yield AnswerRow(row.id, row.set, n_prompt, *tensors)


def measure(job: TrainJob, heldout, num_steps: int) -> dict:
    """Accept length of the drafter that a job trains."""
    trainer = job.trainer()
    rows = list(job.run(trainer))
    setting = AcceptSetting("simulated", num_steps, 1, num_steps + 1, 0.0, "answers not trained on")
    summary = summarise(simulate(trainer.draft, heldout, num_steps).cycles, setting)
    return {
        "accept_length": summary.accept_length,
        "verifications": summary.verifications,
        "tokens_per_second": statistics.median(row["tokens_per_second"] for row in rows) if rows else None,
    }


def report(results: list[dict], codecs) -> str:
    """One line a codec: size, accept length by seed, and the change against the first codec, seed by seed.

    The change of the accepted drafts (accept length minus one) is the stricter measure where drafters are weak.
    """
    by = {(row["codec"], row["seed"]): row for row in results}
    seeds = sorted({row["seed"] for row in results})
    lines = []
    for codec in codecs:
        done = [seed for seed in seeds if (codec, seed) in by and (codecs[0], seed) in by]
        if not done:
            continue
        lengths = [by[codec, seed]["accept_length"] for seed in done]
        base = [by[codecs[0], seed]["accept_length"] for seed in done]
        length, length_error = mean_and_error([a / b - 1 for a, b in zip(lengths, base, strict=True)])
        drafts, drafts_error = mean_and_error([(a - 1) / (b - 1) - 1 for a, b in zip(lengths, base, strict=True)])
        size, hidden = by[codec, done[0]]["bytes_per_token"], by[codec, done[0]]["hidden_size"]
        lines.append(
            f"{codec:10s} {size:6.0f} bytes a token = {size / hidden:.2f} H   accept length "
            f"{statistics.mean(lengths):.3f} ({', '.join(f'{one:.3f}' for one in lengths)})   against {codecs[0]} "
            f"{length:+.2%} +- {length_error:.2%}, accepted drafts {drafts:+.1%} +- {drafts_error:.1%}"
        )
    return "\n".join(lines)


def main() -> None:
    """Measures what is missing and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="folder of stores, checkpoints and results")
    parser.add_argument("--target", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--codecs", nargs="+", default=list(CODECS), help="the first is the one to compare with")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--train-rows", type=int, default=400)
    parser.add_argument("--heldout-rows", type=int, default=150)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--ttt-steps", type=int, default=3)
    parser.add_argument("--batch-tokens", type=int, default=640)
    parser.add_argument("--draft-vocab-size", type=int, default=3072)
    arguments = parser.parse_args()
    path = arguments.work / "results.jsonl"
    setting = {name: getattr(arguments, name) for name in SETTING}
    setting |= {"corpus": corpus_summary(arguments.corpus)["fingerprint"], "compute_dtype": resolve_dtype("auto")}
    results = read_jsonl(path, repair=True)
    if any(row["setting"] != setting for row in results):
        raise SystemExit(f"{path} holds results of another setting: use another --work, or the same arguments")
    done = {(row["codec"], row["seed"]) for row in results}
    folder = resolve_target(arguments.target)
    rows = (row for row in read_corpus(arguments.corpus) if row["origin"] == "target")
    answered = [row for row in rows if row["loss_spans"][0][1] - row["loss_spans"][0][0] >= LEAST_ANSWER]
    train = [row for row in answered if row["split"] == "train"][: arguments.train_rows]
    chosen = {row["id"] for row in train}
    others = [row for row in answered if row["id"] not in chosen][-arguments.heldout_rows :]
    extract(folder, "bfloat16", train, every_token, arguments.codecs, arguments.work)
    extract(folder, "float32", others, lambda row: row["loss_spans"], ["float32"], arguments.work)
    heldout = list(answer_rows(FeatureStore(arguments.work / "float32")))
    ids = [torch.tensor(row["input_ids"]) for row in train]
    pairs = [(ids_T, spans_to_mask(every_token(row), len(ids_T))) for ids_T, row in zip(ids, train, strict=True)]
    vocab_map = arguments.work / "vocab_map.safetensors"
    build_vocab(count_tokens(pairs, read_target(folder).vocab_size), arguments.draft_vocab_size).save(vocab_map)
    print(
        f"{len(train)} answers to train on x {arguments.epochs} epochs, {len(heldout)} others to measure with",
        flush=True,
    )
    for seed in arguments.seeds:
        for codec in arguments.codecs:
            if (codec, seed) in done:
                continue
            recipe = Recipe(
                seed=seed,
                epochs=arguments.epochs,
                ttt_steps=arguments.ttt_steps,
                batch_tokens=arguments.batch_tokens,
                compute_dtype=setting["compute_dtype"],
            )
            store = FeatureStore(arguments.work / codec)
            paths = (folder, store.folder, vocab_map, arguments.work / f"state-{codec}-{seed}")
            result = measure(TrainJob(*paths, recipe, log_every=50), heldout, arguments.ttt_steps)
            size = {"bytes_per_token": store.info["bytes"] / store.info["tokens"], "hidden_size": store.hidden_size}
            append_jsonl(path, {"codec": codec, "seed": seed, **size, **result, "setting": setting})
            print(report(read_jsonl(path), arguments.codecs), flush=True)
    print(report(read_jsonl(path), arguments.codecs))


if __name__ == "__main__":
    main()
