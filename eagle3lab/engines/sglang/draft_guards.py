"""What is wrong with a drafter's folder for SGLang and a target. Works on anybody's, from config.json and headers."""

from __future__ import annotations

from eagle3lab.engines.servers.draft_guards import (
    EXPORT_AGAIN,
    check_context,
    check_same_target,
    check_trained_options,
    check_vocabulary,
    some,
)
from eagle3lab.engines.servers.findings import Finding, fault, warning
from eagle3lab.engines.servers.model_files import DraftFiles, TargetFacts
from eagle3lab.engines.sglang.draft_tensors import LLAMA_DRAFT, MLA_DRAFT, compare_tensors


def check_draft(
    draft: DraftFiles, target: TargetFacts, context: int | None = None, device: str = "cuda"
) -> list[Finding]:
    """Everything about an EAGLE-3 drafter's folder. context: tokens the server will allow, None: the target's own."""
    return [
        *check_architecture(draft, device),
        *check_sizes(draft, target),
        *check_layers(draft, target),
        *check_vocabulary(draft, target),
        *check_tensors(draft, target),
        *check_trained_options(draft),
        *check_context(draft, target, context),
    ]


def check_architecture(draft: DraftFiles, device: str = "cuda") -> list[Finding]:
    """Does SGLang have this drafter's network, and every option that its config turns on."""
    name, findings = draft.architecture, []
    if name not in (LLAMA_DRAFT, MLA_DRAFT):
        text = f"{draft.folder}: architecture {name or 'none'!r} is no EAGLE-3 drafter that SGLang knows"
        findings.append(fault(text, f"it knows {LLAMA_DRAFT} and {MLA_DRAFT}: convert the drafter to one of these"))
    if name == MLA_DRAFT and device == "cpu":
        findings.append(fault(f"{draft.folder}: {MLA_DRAFT} does not run on a CPU", "serve it on a GPU"))
    if draft.config.get("norm_before_residual"):
        text = f"{draft.folder}: norm_before_residual is on, and SGLang, which does not know it, would leave it out"
        findings.append(fault(text, "serve this drafter with vLLM, or train it without this option"))
    if draft.eagle_config.get("use_aux_hidden_state") is False:
        text = f"{draft.folder}: use_aux_hidden_state is false: the server would hand over one state, not three"
        findings.append(fault(text, "set it to true in eagle_config of config.json"))
    return findings


def check_sizes(draft: DraftFiles, target: TargetFacts) -> list[Finding]:
    """Hidden size and vocabulary of the drafter against those of the target."""
    unsaid = [name for name in ("hidden_size", "vocab_size") if not draft.config.get(name)]
    if unsaid:
        text = f"config.json names no {' and no '.join(unsaid)} where SGLang looks (speculators nests them)"
        return [fault(text, "convert the drafter: its sizes stand at the top level")]
    findings = check_same_target(draft, target)
    if draft.target_hidden_size == target.hidden_size and draft.num_aux * target.hidden_size == draft.hidden_size:
        text = f"the {draft.num_aux} states together are as wide as the drafter's own ({draft.hidden_size})"
        findings.append(fault(f"{text}: the server would take them for those and skip fc", "train another width"))
    return findings


def check_layers(draft: DraftFiles, target: TargetFacts) -> list[Finding]:
    """The target layers that the server would hand over, against what the drafter takes and was trained on."""
    ids, reads = draft.layer_ids, draft.layers_read(target)
    written = "no explicit ids" if ids is None else f"eagle_aux_hidden_state_layer_ids={list(ids)}"
    of = f"{target.architecture or 'this target'} ({target.num_layers} layers)"
    means = f"{written} makes SGLang take hs{reads} of {of}"
    findings = []
    if len(reads) != draft.num_aux:
        findings.append(fault(f"{means}, but fc takes {draft.num_aux} states", "name that many different layers"))
    if reads[0] < 0 or reads[-1] > target.num_layers:
        findings.append(fault(f"{means}, which it does not have", "was the drafter trained for a deeper target?"))
    elif reads[-1] == target.num_layers:
        text = f"{means}: only a few of SGLang's model files hand out the state after the last layer"
        findings.append(warning(text, f"train with layers up to hs[{target.num_layers - 1}]"))
    trained = draft.training.get("draft_config", {}).get("aux_layers")
    if trained is not None and list(trained) != reads:
        text = f"{means}, but the drafter was trained on hs{list(trained)} (training.json)"
        findings.append(fault(text, EXPORT_AGAIN))
    other = draft.config.get("eagle_aux_hidden_state_layer_ids")
    if other is not None and sorted(other) != reads:
        text = f"{means}; the ids outside eagle_config, which vLLM reads, say hs{list(other)}"
        findings.append(warning(text, "one of the two engines gets other layers than the drafter was trained on"))
    return findings


def check_tensors(draft: DraftFiles, target: TargetFacts) -> list[Finding]:
    """Tensors that the server would miss, drop or stumble over. Only for Llama-type drafters that are not quantised."""
    if draft.architecture != LLAMA_DRAFT:
        return []
    if draft.config.get("quantization_config"):
        return [warning("the drafter is quantised: its tensors were not checked", "look at the accept length")]
    try:
        missing, ignored, wrong = compare_tensors(draft, target)
    except KeyError as error:
        return [fault(f"{draft.folder / 'config.json'} does not say {error}", EXPORT_AGAIN)]
    findings = []
    if missing:
        text = f"the server would start with random values for {some(missing)}, without a word"
        findings.append(fault(text, "the drafter's folder lacks them: were they named for another engine?"))
    if ignored:
        text = f"the server would drop {some(ignored)}, without a word"
        findings.append(fault(text, "they were trained and would not be used: were they named for another engine?"))
    if wrong:
        findings.append(fault(f"shapes that the server cannot load: {some(wrong)}", EXPORT_AGAIN))
    return findings
