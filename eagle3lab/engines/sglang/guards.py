"""What would go wrong with a server, said before it is launched, or recognised on one that somebody else runs."""

from __future__ import annotations

from packaging.version import Version

from eagle3lab.draft.aux_layers import check_aux_layers, default_aux_layers, sglang_layer_ids
from eagle3lab.engines.servers.draft_guards import check_release
from eagle3lab.engines.servers.findings import Finding, fault, warning
from eagle3lab.engines.servers.model_files import (
    DraftFiles,
    ModelFilesError,
    TargetFacts,
    is_local,
    read_draft,
    read_target,
)
from eagle3lab.engines.sglang.attach import ServerInfo
from eagle3lab.engines.sglang.draft_guards import check_draft
from eagle3lab.engines.sglang.spec import ServerSpec

CAPTURES_SINCE = Version("0.5.23")  # --enable-return-aux-hidden-states
ONE_STATE = ("EAGLE", "NEXTN")  # algorithms whose drafter gets the target's last state only


def before_launch(spec: ServerSpec, version: str) -> list[Finding]:
    """All findings on a server that is to be launched with this SGLang release."""
    findings = check_speculation(spec.num_steps, spec.topk, spec.draft_tokens) if spec.draft else []
    if spec.captures and Version(version) < CAPTURES_SINCE:
        text = f"SGLang {version} cannot hand out aux states"
        findings.append(fault(text, f"install {CAPTURES_SINCE} or newer in the server's environment"))
    if not is_local(spec.target):
        text = f"target {spec.target!r} is no folder here"
        remedy = "resolve the target to a local folder first"
        if spec.aux_layers:
            findings.append(fault(f"{text}: aux_layers cannot be turned into SGLang's ids", remedy))
        elif spec.draft:
            findings.append(warning(f"{text}: the drafter was not checked against it", remedy))
        return findings
    try:
        target = read_target(spec.target)
        findings += _capture_layers(spec, target) if spec.captures else []
        if is_local(spec.draft):
            draft = read_draft(spec.draft)
            findings += check_algorithm(spec.speculation, draft)
            if draft.is_eagle3 and spec.speculation in ("EAGLE3", *ONE_STATE):
                findings += check_draft(draft, target, spec.context_length, spec.device)
                findings += check_release(draft, "SGLang", version)
        elif spec.draft:
            text = f"draft {spec.draft!r} is no folder here: it was not checked"
            findings.append(warning(text, "give a local folder, or look at the accept length"))
    except ModelFilesError as error:
        findings.append(fault(str(error), "mend the folder, or give another"))
    return findings


def on_server(info: ServerInfo) -> list[Finding]:
    """All findings on a running server, from what it tells and, where they can be read here, its model folders."""
    findings: list[Finding] = []
    if info.algorithm in ("EAGLE3", *ONE_STATE) and None not in (info.num_steps, info.topk, info.num_draft_tokens):
        findings += check_speculation(info.num_steps, info.topk, info.num_draft_tokens)
    if not info.draft:
        return findings
    try:
        draft = read_draft(info.draft) if is_local(info.draft) else None
        target = read_target(info.target) if is_local(info.target) else None
    except ModelFilesError as error:
        return [*findings, warning(f"{error}; the drafter was not checked", "look at the accept length")]
    if draft is not None:
        findings += check_algorithm(info.algorithm, draft)
        if target is not None and draft.is_eagle3:
            findings += check_draft(draft, target, info.context_length, info.device or "cuda")
            findings += check_release(draft, "SGLang", info.version)
    elif info.algorithm in ONE_STATE:
        named = "eagle3" in info.draft.lower().replace("-", "").replace("_", "")
        never = info.accept_length is not None and info.accept_length <= 1.005
        if named or never:
            why = f"its drafter is {info.draft}" if named else f"its accept length is {info.accept_length:.2f}"
            text = f"{info.url} runs --speculative-algorithm {info.algorithm} and {why}"
            findings.append(fault(text, "if the drafter is an EAGLE-3 one, start the server with EAGLE3"))
    return findings


def check_algorithm(algorithm: str | None, draft: DraftFiles) -> list[Finding]:
    """The flag against the kind of drafter: with EAGLE an EAGLE-3 drafter starts and never has a token accepted."""
    if draft.is_eagle3 and algorithm in ONE_STATE:
        text = (
            f"{draft.folder} is an EAGLE-3 drafter, but --speculative-algorithm is {algorithm}: the target would hand "
            f"over one state instead of {draft.num_aux}, fc would be skipped, and no draft token would be accepted"
        )
        return [fault(text, "use --speculative-algorithm EAGLE3 (algorithm='EAGLE3')")]
    if not draft.is_eagle3 and algorithm == "EAGLE3":
        text = (
            f"{draft.folder} ({draft.architecture or 'no architecture'}) is no EAGLE-3 drafter, but the flag is EAGLE3"
        )
        return [fault(text, "use EAGLE for an EAGLE or EAGLE-2 drafter, or give an EAGLE-3 drafter")]
    return []


def tree_capacity(num_steps: int, topk: int) -> int:
    """Nodes a drafted tree can have, its root (the last verified token) included.

    SGLang scores topk children of the root and topk children of each of the topk kept nodes of every later step, and
    verifies the best num_draft_tokens - 1 of them (`organize_draft_results`): more than there are make it fail.
    """
    return 1 + topk + (num_steps - 1) * topk * topk


def check_speculation(num_steps: int, topk: int, num_draft_tokens: int) -> list[Finding]:
    """Do steps, topk and draft tokens make sense together."""
    setting = f"num_steps={num_steps}, topk={topk}, num_draft_tokens={num_draft_tokens}"
    if topk == 1 and num_draft_tokens != num_steps + 1:
        text = f"{setting}: a chain verifies num_steps + 1 tokens, and SGLang changes the number to that"
        return [fault(text, f"num_draft_tokens={num_steps + 1}")]
    capacity = tree_capacity(num_steps, topk)
    if num_draft_tokens > capacity:
        return [fault(f"{setting}: the tree has {capacity} nodes at most", f"num_draft_tokens={capacity} or less")]
    if num_draft_tokens < 2:
        return [fault(f"{setting}: nothing would be drafted", "num_draft_tokens=2 or more: it counts the root")]
    if num_draft_tokens < num_steps + 1:
        text = f"{setting}: {num_draft_tokens - 1} draft tokens cannot fill a path of {num_steps} steps"
        return [warning(text, f"num_draft_tokens={num_steps + 1} or more, or fewer steps")]
    return []


def _capture_layers(spec: ServerSpec, target: TargetFacts) -> list[Finding]:
    layers = list(spec.aux_layers or ())
    try:
        layers = check_aux_layers(layers, target.num_layers) if layers else default_aux_layers(target.num_layers)
        ids = sglang_layer_ids(layers, target.architecture)
    except ValueError as error:
        return [fault(str(error), "choose other aux_layers")]
    if min(ids) < 0:
        text = f"aux_layers={layers}: SGLang cannot capture hs[0], the embeddings, of a {target.architecture}"
        return [fault(text, "begin with hs[1] or a later layer")]
    return []
