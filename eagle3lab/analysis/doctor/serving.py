"""Checks of a server that is to be launched, of one that runs, and of what was measured on it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from eagle3lab.analysis.bench_row import BenchRow, Condition, not_measurable
from eagle3lab.analysis.doctor.commands import MEASURE
from eagle3lab.analysis.doctor.report import Check, from_findings, judged
from eagle3lab.analysis.parity import Parity
from eagle3lab.data.fingerprint import tokenizer_digest
from eagle3lab.draft.stored import StoredError, StoredTensors
from eagle3lab.engines.servers.findings import Finding, warning
from eagle3lab.engines.servers.model_files import DraftFiles, is_local
from eagle3lab.engines.sglang.attach import ServerInfo
from eagle3lab.engines.sglang.guards import before_launch, check_algorithm, check_speculation, on_server
from eagle3lab.engines.sglang.spec import ServerSpec
from eagle3lab.workbench.files import sha256_file

COMPUTE_BOUND = 256  # tokens of one forward pass from which a GPU computes rather than loads weights, about
NOTHING = 1.005  # accept length at which nothing is accepted, as printed


def check_launch(spec: ServerSpec, version: str, draft: DraftFiles | None = None) -> list[Check]:
    """A server's specification: flag, chain or tree, load, and whatever else the launch guards find."""
    rows = []
    if draft is not None:
        flag = check_algorithm(spec.speculation, draft)
        rows += from_findings("launch flag", flag, f"{spec.speculation}", "EAGLE3 for an EAGLE-3 drafter")
    if spec.draft:
        setting = (spec.num_steps, spec.topk, spec.draft_tokens)
        rows += _tree("launch chain or tree", setting)
        rows.append(check_load("launch load", spec.max_running_requests, spec.draft_tokens))
    said = {row.found for row in rows}
    others = [finding for finding in before_launch(spec, version) if finding.text not in said]
    return rows + from_findings(
        "launch guards", others, f"SGLang {version} would start", "nothing that forbids the launch"
    )


def check_server(
    info: ServerInfo, draft: DraftFiles | None = None, target: str | Path | None = None, tokenizer: Any = None
) -> list[Check]:
    """A running server: flag, chain or tree, load, accept length, and whether it runs the drafter and target meant."""
    rows = [_flag(info, draft)]
    if None not in (info.num_steps, info.topk, info.num_draft_tokens):
        rows += _tree("server chain or tree", (info.num_steps, info.topk, info.num_draft_tokens))
        rows.append(check_load("server load", info.max_running_requests, info.num_draft_tokens))
    rows += [check_served_length(info), _same_drafter(info, draft), _same_target(info, target)]
    rows.append(_same_template(info, target, tokenizer))
    said = {row.found for row in rows}
    others = [finding for finding in on_server(info) if finding.text not in said]
    return rows + from_findings("server guards", others, f"SGLang {info.version} at {info.url}", "nothing wrong")


def _tree(name: str, setting: tuple[int, int, int]) -> list[Check]:
    num_steps, topk, num_draft_tokens = setting
    findings: list[Finding] = check_speculation(*setting)
    least = num_steps + topk  # the best path, and the other first tokens beside it
    if not findings and topk > 1 and num_draft_tokens < least:
        text = (
            f"topk={topk} with {num_draft_tokens} draft tokens: the tree cannot hold its best path and the other tokens"
        )
        findings = [
            warning(f"{text} of its first step", f"num_draft_tokens={least} or more, or topk=1: a chain is better")
        ]
    found = f"num_steps {num_steps}, topk {topk}, num_draft_tokens {num_draft_tokens}"
    return from_findings(name, findings, found, "a chain, or a tree with room for its branches")


def check_load(name: str, requests: int | None, num_draft_tokens: int | None) -> Check:
    """Tokens verified in one pass at full load: beyond what loading the weights hides, drafts cost time."""
    expected = f"at most about {COMPUTE_BOUND} tokens a pass (dense target on a current GPU)"
    if not requests or not num_draft_tokens:
        remedy = "set max_running_requests, and measure at the concurrency that is served (06_serving)"
        return Check(name, "no limit of requests known", expected, "not checked", remedy)
    tokens = requests * num_draft_tokens
    found = f"{requests} requests x {num_draft_tokens} draft tokens = {tokens:,} tokens a pass"
    remedy = "fewer draft tokens at high concurrency, or none: measure both at the load that is served (06_serving)"
    return judged(name, found, expected, "warning" if tokens > COMPUTE_BOUND else "ok", remedy)


def _flag(info: ServerInfo, draft: DraftFiles | None) -> Check:
    name, expected = "server flag", "EAGLE3"
    if info.algorithm is None:
        remedy = "start it with --speculative-algorithm EAGLE3 and the drafter"
        return Check(name, "the server does not speculate", expected, "warning", remedy)
    findings = check_algorithm(info.algorithm, draft) if draft is not None else []
    if findings:
        return Check(name, findings[0].text, expected, findings[0].level, findings[0].remedy)
    return Check(name, info.algorithm, expected, "ok")


def check_served_length(info: ServerInfo) -> Check:
    """The accept length over the server's life: exactly 1.00 means that no draft is ever accepted."""
    name, expected = "server accept length", "above 1.00"
    if info.accept_length is None:
        return Check(name, "not told", expected, "not checked", "send it a few requests first")
    found = f"{info.accept_length:.2f} over its life ({_setting(info)}, the prefill's token counted)"
    remedy = "flag (EAGLE for EAGLE3), d2t, layers or names: 05_diagnostics ranks the causes"
    return judged(name, found, expected, "fault" if info.accept_length <= NOTHING else "ok", remedy)


def _setting(info: ServerInfo) -> str:
    return f"num_steps {info.num_steps}, topk {info.topk}, num_draft_tokens {info.num_draft_tokens}"


def _same_drafter(info: ServerInfo, draft: DraftFiles | None) -> Check:
    name, expected = "server drafter", "the drafter that is meant"
    if draft is None or not info.draft or not is_local(info.draft):
        return Check(
            name, info.draft or "none", expected, "not checked", "give the drafter; its folder must be on this machine"
        )
    same = _same_tensors(Path(info.draft), draft.folder)
    remedy = f"the server runs {info.draft}: start it again with {draft.folder}"
    return judged(
        name,
        "the same weights" if same else f"other weights: {info.draft}",
        expected,
        "ok" if same else "fault",
        remedy,
    )


def _same_tensors(served: Path, meant: Path) -> bool:
    """By name and value, however either folder stores them."""
    if served.resolve() == meant.resolve():
        return True
    try:
        one, other = StoredTensors(served), StoredTensors(meant)
    except StoredError:
        return False
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


def _same_target(info: ServerInfo, target: str | Path | None) -> Check:
    """Target and precision. A rotation inside the weights cannot be seen here; recaptured states show it."""
    name, expected = "server target", "the target the features were made with, unquantised alike"
    if target is None:
        return Check(name, f"{info.target}", expected, "not checked", "give the target")
    quantised, verdict, words = info.arguments.get("quantization"), "ok", f"the same config.json, {info.dtype}"
    if is_local(info.target):
        served, meant = (sha256_file(Path(folder) / "config.json") for folder in (info.target, target))
        if served != meant:
            verdict, words = "fault", f"another config.json: {info.target}"
    elif not quantised:
        return Check(name, f"{info.target}, which is not on this machine", expected, "not checked", "compare by hand")
    if quantised and verdict == "ok":
        verdict, words = "warning", f"served with quantization={quantised}"
    remedy = "extract the states from the target as it is served, or serve the one they were extracted from"
    return judged(name, words, expected, verdict, remedy)


def _same_template(info: ServerInfo, target: str | Path | None, tokenizer: Any) -> Check:
    name, expected = "server template", "the chat template of the data"
    own = info.arguments.get("chat_template")
    if own:
        remedy = "start it without --chat-template, or prepare the data with that template"
        return Check(name, f"--chat-template {own}", expected, "warning", remedy)
    path = info.arguments.get("tokenizer_path") or info.target
    if tokenizer is None or not is_local(path):
        return Check(
            name, f"tokenizer {path}", expected, "not checked", "give the target; the folder must be on this machine"
        )
    from eagle3lab.data.chat import load_tokenizer

    if target is not None and Path(path).resolve() == Path(target).resolve():
        same = True  # the folder that `tokenizer` was read from, perhaps with code of its own
    else:
        try:
            same = tokenizer_digest(load_tokenizer(path)) == tokenizer_digest(tokenizer)
        except (OSError, ValueError, ImportError) as error:
            remedy = "serve the target with the tokenizer in its own folder; code in another folder is not run here"
            return Check(name, f"tokenizer {path}: {str(error).splitlines()[0]}", expected, "not checked", remedy)
    remedy = "start the server with the tokenizer folder that the data was prepared with"
    return judged(
        name,
        "the same tokenizer and template" if same else f"another: {path}",
        expected,
        "ok" if same else "fault",
        remedy,
    )


def check_break_even(rows: Sequence[Mapping]) -> Check:
    """Benchmark rows (`setting`, `accept_length`, `break_even`): speculation must accept more than it costs. Whole rows
    of benchmark.json are judged only where their speeds carry a break-even."""
    name, expected = "break-even", "accept length above break-even in every setting"
    settings = [row for row in rows if row.get("accept_length") and row.get("break_even")]
    if not settings:
        return Check(name, "no speculative setting measured", expected, "not checked", "run the benchmark (06_serving)")
    unknown = _not_measurable(rows)
    measured = [row for row in settings if _condition(row) not in unknown]
    slow = [row for row in measured if row["accept_length"] < row["break_even"]]
    words = [f"{row['setting']}: {row['accept_length']:.2f} of {row['break_even']:.2f} needed" for row in slow]
    if not slow and measured:
        words = [f"{len(measured)} settings above break-even"]
    found = "; ".join(words + [f"not measurable at {where}: {why}" for where, why in unknown.items()])
    if not measured:
        return Check(name, found, expected, "not checked", "measure again on a quiet machine", MEASURE)
    remedy = "fewer draft tokens, or a drafter that accepts more"
    return judged(name, found, expected, "warning" if slow else "ok", remedy)


def _condition(row: Mapping) -> Condition:
    return Condition(row.get("concurrency", 1), row.get("temperature", 0.0), row.get("cuda_graphs"))


def _not_measurable(rows: Sequence[Mapping]) -> dict[Condition, str]:
    """Conditions whose speeds carry no break-even, and why; rows that tell too little are left out."""
    names = {field.name for field in fields(BenchRow)}
    whole = [BenchRow.read(dict(row)) for row in rows if row.keys() == names]
    found = {row.condition: not_measurable(whole, row.condition) for row in whole}
    return {condition: why for condition, why in found.items() if why}


def check_by_concurrency(rows: Iterable[Mapping]) -> Check:
    """Benchmark rows (`concurrency`, `speedup`): does speculation still pay under load."""
    name, expected = "speed-up by concurrency", "above 1 at the concurrency that is served"
    best: dict[int, float] = {}
    for row in rows:
        if row.get("accept_length") and row.get("speedup"):
            best[row["concurrency"]] = max(best.get(row["concurrency"], 0.0), row["speedup"])
    if not best:
        return Check(name, "no speculative setting measured", expected, "not checked", "run the benchmark (06_serving)")
    found = ", ".join(f"{speedup:.2f}x at {number}" for number, speedup in sorted(best.items()))
    slow = any(speedup < 1 for speedup in best.values())
    remedy = "verification is compute-bound there: fewer draft tokens at high load, or no speculation"
    return judged(name, found, expected, "warning" if slow else "ok", remedy)


def check_parity(parity: Parity) -> Check:
    """Simulated against served verifications, with the likeliest cause of what differs."""
    name, expected = "simulated = served", "every verification the same"
    if parity.equal:
        return Check(name, f"{parity.verifications:,} verifications, {parity.same_text} answers", expected, "ok")
    first = parity.causes[0] if parity.causes else None
    remedy = first.remedy if first else "run 05_diagnostics with the suspects: it ranks the causes"
    rounding = first is not None and first.cause == "precision"
    return Check(name, str(parity), expected, "warning" if rounding else "fault", remedy)
