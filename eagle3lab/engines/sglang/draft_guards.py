"""What is wrong with a drafter's folder for a target: sizes, layers, vocabulary map, tensors, trained context.

Works on anybody's folder, from config.json and safetensors headers. Shapes: V target vocabulary, W draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from packaging.version import Version

from eagle3lab.draft.engine_support import FIRST_RELEASE
from eagle3lab.engines.servers.findings import Finding, fault, warning
from eagle3lab.engines.sglang.draft_tensors import LLAMA_DRAFT, MLA_DRAFT, compare_tensors
from eagle3lab.engines.sglang.model_files import DraftFiles, TargetFacts

EXPORT_AGAIN = "export the drafter again for this target, or mend its folder"


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


def check_trained_options(draft: DraftFiles) -> list[Finding]:
    """Switches of the network in config.json against those it was trained with, where training.json says them."""
    trained, findings = draft.training.get("draft_config"), []
    for option in ("fc_norm", "norm_output", "norm_before_residual", "norm_before_fc") if trained else ():
        served = draft.config.get(option) or draft.eagle_config.get(option)
        if bool(served) != bool(trained.get(option)):
            text = f"{option} is {'on' if served else 'off'} in config.json, the drafter was trained with it "
            findings.append(fault(text + ("off" if served else "on"), EXPORT_AGAIN))
    return findings


def check_release(draft: DraftFiles, version: str) -> list[Finding]:
    """Options of EAGLE-3.1 that this release of SGLang would leave out without a word."""
    findings = []
    for option in ("fc_norm", "norm_output"):
        since = FIRST_RELEASE[option]["sglang"]
        if draft.config.get(option) and Version(version) < Version(since):
            text = f"{draft.folder}: {option} is on, which SGLang {version} does not know: it would leave it out"
            findings.append(fault(text, f"install {since} or newer in the server's environment"))
    return findings


def check_sizes(draft: DraftFiles, target: TargetFacts) -> list[Finding]:
    """Hidden size and vocabulary of the drafter against those of the target."""
    unsaid = [name for name in ("hidden_size", "vocab_size") if not draft.config.get(name)]
    if unsaid:
        text = f"config.json names no {' and no '.join(unsaid)} where SGLang looks (speculators nests them)"
        return [fault(text, "convert the drafter: its sizes stand at the top level")]
    findings = []
    if draft.target_hidden_size != target.hidden_size:
        text = f"the drafter takes states of width {draft.target_hidden_size}, the target's have {target.hidden_size}"
        findings.append(fault(text, "this drafter was trained for another target"))
    elif draft.num_aux * target.hidden_size == draft.hidden_size:
        text = f"the {draft.num_aux} states together are as wide as the drafter's own ({draft.hidden_size})"
        findings.append(fault(f"{text}: the server would take them for those and skip fc", "train another width"))
    stored = draft.config.get("vocab_size")
    if stored != target.vocab_size:
        text = f"the drafter was made for a vocabulary of {stored} ids, the target has {target.vocab_size}"
        findings.append(fault(text, "this drafter was trained for another target or tokenizer"))
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


def check_vocabulary(draft: DraftFiles, target: TargetFacts) -> list[Finding]:
    """d2t: there, offsets (not ids), in range, no id twice, and t2d says the same."""
    size = draft.config.get("draft_vocab_size")
    if "draft_vocab_size" not in draft.config:
        return [fault("config.json has no draft_vocab_size: the server fails on it", "write it, null for the full one")]
    if draft.d2t_W is None:
        if size in (None, target.vocab_size):
            return []
        text = f"no tensor d2t: draft ids 0..{size - 1} would be taken for the target's ids, without a word"
        return [fault(text, EXPORT_AGAIN)]
    offsets_W = draft.d2t_W.astype(np.int64).reshape(-1)
    if offsets_W.size != size:
        return [fault(f"d2t has {offsets_W.size} entries, draft_vocab_size is {size}", EXPORT_AGAIN)]
    ids_W = offsets_W + np.arange(size)
    wrong = _map_fault(ids_W, draft.t2d_V, target.vocab_size)
    # offsets of a real vocabulary hardly ever grow at every step: that would be no two neighbouring ids in it
    looks_absolute = size > 8 and bool((np.diff(offsets_W) > 0).all())
    as_absolute = _map_fault(offsets_W, draft.t2d_V, target.vocab_size) is None
    if as_absolute and looks_absolute and (wrong or draft.t2d_V is None):
        some = f"{offsets_W[0]}, {offsets_W[1]}, ... {offsets_W[-1]}"
        text = f"d2t holds the target's ids themselves ({some}), not offsets: the server would add the draft id to each"
        return [fault(text, "store target id - draft id")]
    return [fault(wrong, EXPORT_AGAIN)] if wrong else []


def _map_fault(ids_W: np.ndarray, t2d_V: np.ndarray | None, vocab_size: int) -> str | None:
    low, high = int(ids_W.min()), int(ids_W.max())
    if low < 0 or high >= vocab_size:
        return f"d2t leads to target ids {low}..{high}, outside the target's 0..{vocab_size - 1}"
    if len(np.unique(ids_W)) < len(ids_W):
        return f"d2t leads to {len(ids_W) - len(np.unique(ids_W))} target ids twice"
    if t2d_V is not None and not np.array_equal(np.flatnonzero(t2d_V), np.sort(ids_W)):
        return "d2t and t2d name different target ids"
    return None


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


def some(names: Sequence[str], most: int = 4) -> str:
    """The first names, and how many more there are."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def check_context(draft: DraftFiles, target: TargetFacts, context: int | None = None) -> list[Finding]:
    """Positions that the server allows against those that the drafter has and was trained on."""
    served = context or target.context
    if served is None:
        return []
    findings = []
    positions = draft.config.get("max_position_embeddings")
    if positions is not None and positions < served:
        text = f"the server allows {served} positions, the drafter's max_position_embeddings is {positions}"
        findings.append(warning(text, "set it to the target's: vLLM clamps positions to it"))
    trained = draft.training.get("trained_length")
    if trained is not None and trained < served:
        text = f"the server allows {served} tokens, the drafter's longest training row had {trained}"
        findings.append(warning(text, "accept length falls beyond the trained length: train on longer rows"))
    return findings
