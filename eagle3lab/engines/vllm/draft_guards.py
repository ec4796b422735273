"""What is wrong with a drafter's folder for vLLM and a target. Works on anybody's folder, from config.json and headers.

vLLM refuses a tensor that it does not know. One that is missing it does without: a norm stays one, `fc` and `d2t` stay
zeros or whatever the memory held, and nothing or little is accepted. Read in, and tried with, vLLM 0.32.0.
"""

from __future__ import annotations

from dataclasses import replace

from eagle3lab.draft.aux_layers import layers_vllm_reads
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
from eagle3lab.engines.sglang.draft_tensors import compare_tensors

LLAMA_DRAFTS = (
    "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3MiniMaxM2ForCausalLM", "Eagle3Qwen2_5vlForCausalLM",
    "Eagle3Qwen3vlForCausalLM", "Eagle3Speculator", "Eagle3DraftModel",
)  # fmt: skip
OTHER_DRAFTS = ("Eagle3Qwen3ForCausalLM", "Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM")
TOP, INSIDE = "eagle_aux_hidden_state_layer_ids at the top", "eagle_aux_hidden_state_layer_ids inside eagle_config"


def check_draft(draft: DraftFiles, target: TargetFacts, context: int | None = None) -> list[Finding]:
    """Everything about an EAGLE-3 drafter's folder. context: tokens the server will allow, None: the target's own."""
    draft = flat(draft)
    return [
        *check_architecture(draft),
        *check_same_target(draft, target),
        *check_layers(draft, target),
        *check_map(draft, target),
        *check_tensors(draft, target),
        *check_trained_options(draft),
        *check_context(draft, target, context),
    ]


def flat(draft: DraftFiles) -> DraftFiles:
    """The drafter with the sizes of its layer where this project's folders have them: speculators nests them."""
    inner = draft.config.get("transformer_layer_config")
    if not isinstance(inner, dict):
        return draft
    outer = {name: value for name, value in draft.config.items() if value is not None}
    vocab = inner.get("vocab_size") or len(draft.t2d_V if draft.t2d_V is not None else ())
    return replace(draft, config={**inner, **outer, "vocab_size": vocab})


def check_architecture(draft: DraftFiles) -> list[Finding]:
    """Does vLLM have this drafter's network."""
    name, findings = draft.architecture, []
    if name not in LLAMA_DRAFTS + OTHER_DRAFTS:
        text = f"{draft.folder}: architecture {name or 'none'!r} is no EAGLE-3 drafter that vLLM knows"
        findings.append(fault(text, f"convert it to one of {', '.join(LLAMA_DRAFTS[:2])}"))
    if draft.eagle_config.get("use_aux_hidden_state") is False:
        text = f"{draft.folder}: use_aux_hidden_state is false: vLLM would leave out fc"
        findings.append(fault(text, "set it to true in eagle_config of config.json"))
    return findings


def layers_read(draft: DraftFiles, target: TargetFacts) -> list[int]:
    """hs indices whose states vLLM would give this drafter."""
    return layers_vllm_reads(draft.config.get("eagle_aux_hidden_state_layer_ids"), draft.layer_ids, target.num_layers)


def check_layers(draft: DraftFiles, target: TargetFacts) -> list[Finding]:
    """The target layers that vLLM would hand over, against what the drafter takes and was trained on."""
    top, reads, findings = draft.config.get("eagle_aux_hidden_state_layer_ids"), layers_read(draft, target), []
    written = f"{TOP}={list(top)}" if top else f"{INSIDE}={draft.layer_ids}" if draft.layer_ids else "no explicit ids"
    means = (
        f"{written} makes vLLM take hs{reads} of {target.architecture or 'this target'} ({target.num_layers} layers)"
    )
    if len(reads) != draft.num_aux:
        remedy = "name that many different layers, and as many inside eagle_config, by which vLLM sizes fc"
        findings.append(fault(f"{means}, but fc takes {draft.num_aux} states", remedy))
    if reads[0] < 0 or reads[-1] > target.num_layers:
        findings.append(fault(f"{means}, which it does not have", "was the drafter trained for a deeper target?"))
    trained = draft.training.get("draft_config", {}).get("aux_layers")
    if trained is not None and sorted(trained) != reads:
        text = f"{means}, but the drafter was trained on hs{list(trained)} (training.json)"
        findings.append(fault(text, f"write {TOP} as hs indices: {sorted(trained)}"))
    elif trained is None and not top and draft.layer_ids:
        text = f"{means}; the same ids make SGLang take hs{draft.layers_read(target)}"
        same = draft.layers_read(target) == reads
        findings += [] if same else [warning(text, f"say which is meant by {TOP}, which only vLLM reads")]
    return findings


def check_map(draft: DraftFiles, target: TargetFacts) -> list[Finding]:
    """d2t: there where the vocabulary is pruned, and only there; offsets, in range, no id twice."""
    size = draft.config.get("draft_vocab_size") or target.vocab_size
    if draft.d2t_W is not None and size == target.vocab_size:
        text = "a tensor d2t, and a draft vocabulary as large as the target's: vLLM has no place for it and refuses it"
        return [fault(text, "leave out d2t and t2d")]
    return check_vocabulary(replace(draft, config={**draft.config, "draft_vocab_size": size}), target)


def check_tensors(draft: DraftFiles, target: TargetFacts) -> list[Finding]:
    """Tensors that vLLM would do without, or refuse. Only for Llama-type drafters that are not quantised."""
    if draft.architecture not in LLAMA_DRAFTS:
        return []
    if draft.config.get("quantization_config"):
        return [warning("the drafter is quantised: its tensors were not checked", "look at the accept length")]
    try:
        missing, unknown, wrong = compare_tensors(draft, target)
    except KeyError as error:
        return [fault(f"{draft.folder / 'config.json'} does not say {error}", EXPORT_AGAIN)]
    unknown = [*unknown, *(name for name in draft.shapes if "aux_norm_" in name)]
    findings = []
    if missing:
        text = f"vLLM would start without {some(missing)} and accept little or nothing, without a word"
        findings.append(fault(text, "the drafter's folder lacks them: were they named for another engine?"))
    if unknown:
        text = f"vLLM does not know {some(unknown)} with this config.json, and would not start"
        findings.append(fault(text, "turn on the option they belong to, or were they named for another engine?"))
    if wrong:
        findings.append(fault(f"shapes that vLLM cannot load: {some(wrong)}", EXPORT_AGAIN))
    return findings
