"""Speculative decoding against plain decoding, in one interleaved run, with the drafter of a finished training run.

Held-out prompts of the run's own data, greedy, one stream, embedded engine in float32; answers must be equal.
Usage: python -m benchmarks.decode [--profile demo] [--num-steps 1 2 3]
"""

import argparse
from pathlib import Path

from benchmarks.results import Result, add_json_option, save
from eagle3lab.analysis.bench import run_bench
from eagle3lab.data.chat import end_token_ids, load_tokenizer
from eagle3lab.data.mixed import mixed_prompts
from eagle3lab.data.targets import resolve_target
from eagle3lab.draft.checkpoint import load_draft, read_draft_config
from eagle3lab.engines.base import Request
from eagle3lab.engines.embedded import EmbeddedEngine
from eagle3lab.workbench.lineage import ancestors, finished_run
from eagle3lab.workbench.records import OK, all_records, newest
from eagle3lab.workbench.root import from_root


def training_record(runs: Path, profile: str) -> dict:
    """The newest finished training run of a profile; SystemExit with the command that makes one."""
    record = newest(all_records(runs), "training", profile, OK)
    if record is None:
        raise SystemExit(f"{runs} has no finished training run of profile {profile}: make {profile}")
    return record


def main() -> None:
    """Prints one row a setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", default="demo")
    parser.add_argument("--runs", default="runs")
    parser.add_argument("--num-steps", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    add_json_option(parser)
    given = parser.parse_args()
    runs = from_root(given.runs)
    record = training_record(runs, given.profile)
    trained = finished_run("training", record["run_id"], runs).artefact("draft")
    data = finished_run("data_prep", ancestors(record, runs)["data_prep"], runs).artefact("prepared")
    target = record["parameters"]["target"]["value"]
    folder = resolve_target(target)
    ends = end_token_ids(load_tokenizer(folder), folder)
    engine = EmbeddedEngine(folder, "float32", read_draft_config(trained).aux_layers, end_ids=ends)
    requests = [Request(row["id"], row["prompt_ids"], given.max_tokens) for row in mixed_prompts(data, given.prompts)]
    bench = run_bench(engine, load_draft(trained, engine.embed_VH), requests, given.num_steps, given.rounds)
    baseline, *settings = bench.rows
    where = f"{target}, {record['run_id']}, {len(requests)} held-out prompts, {given.max_tokens} tokens, float32"
    print(f"{where}: {baseline.tok_s:.1f} tok/s without speculation, {len(bench.differences)} answers differ")
    results = []
    for row in settings:
        spread = f"{row.speedup_low:.2f} to {row.speedup_high:.2f} over {row.rounds} rounds"
        needs = f"accept length {row.accept_length:.2f}, break-even {row.break_even:.2f}"
        print(f"{row.setting}: {row.tok_s:.1f} tok/s, x{row.speedup:.2f} ({spread}), {needs}")
        told = (f"{row.tok_s:.1f} tok/s", f"{baseline.tok_s:.1f} tok/s without speculation")
        results.append(Result("speculative decoding", f"{where}, {row.setting}; {needs}", *told, row.speedup))
    save(given.json, results)


if __name__ == "__main__":
    main()
