"""What would go wrong with a vLLM server, said before it is launched."""

from __future__ import annotations

from packaging.version import Version

from eagle3lab.draft.aux_layers import check_aux_layers, default_aux_layers
from eagle3lab.engines.servers.draft_guards import check_release
from eagle3lab.engines.servers.findings import Finding, fault, warning
from eagle3lab.engines.servers.model_files import ModelFilesError, TargetFacts, is_local, read_draft, read_target
from eagle3lab.engines.vllm.draft_guards import check_draft
from eagle3lab.engines.vllm.spec import VllmSpec

TRIED = Version("0.32.0")  # counts in order for each request, and hidden states to files


def before_launch(spec: VllmSpec, version: str) -> list[Finding]:
    """All findings on a server that is to be launched with this vLLM release."""
    findings: list[Finding] = []
    if Version(version) < TRIED:
        text = f"vLLM {version} was not tried: its flags may be other ones than those of {TRIED}"
        findings.append(warning(text, f"install {TRIED} or newer in the server's environment"))
    try:
        target = read_target(spec.target) if is_local(spec.target) else None
        if spec.capture_folder:
            findings += _layers(spec, target)
        if spec.draft and (target is None or not is_local(spec.draft)):
            text = f"target {spec.target!r} or draft {spec.draft!r} is no folder here: the drafter was not checked"
            findings.append(warning(text, "give local folders, or look at the accept length"))
        elif spec.draft:
            draft = read_draft(spec.draft)
            findings += check_draft(draft, target, spec.context_length) + check_release(draft, "vLLM", version)
    except ModelFilesError as error:
        findings.append(fault(str(error), "mend the folder, or give another"))
    return findings


def _layers(spec: VllmSpec, target: TargetFacts | None) -> list[Finding]:
    if target is None:
        text = f"target {spec.target!r} is no folder here: its layers are not known"
        return [fault(text, "resolve the target to a local folder first")]
    try:
        check_aux_layers(spec.aux_layers or default_aux_layers(target.num_layers), target.num_layers)
    except ValueError as error:
        return [fault(str(error), "choose other aux_layers")]
    return []
