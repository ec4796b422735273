"""What is wrong with a drafter's folder for a target, whichever engine serves it: sizes, map, options, context.

Works on anybody's folder, from config.json and safetensors headers. Shapes: V target vocabulary, W draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from packaging.version import Version

from eagle3lab.draft.engine_support import FIRST_RELEASE, FLAGS
from eagle3lab.engines.servers.findings import Finding, fault, warning
from eagle3lab.engines.servers.model_files import DraftFiles, TargetFacts

EXPORT_AGAIN = "export the drafter again for this target, or mend its folder"
LONGER_ROWS = "train on longer rows"


def check_trained_options(draft: DraftFiles) -> list[Finding]:
    """Switches of the network in config.json against those it was trained with, where training.json says them."""
    trained, findings = draft.training.get("draft_config"), []
    for option in FLAGS if trained else ():
        served = draft.config.get(option) or draft.eagle_config.get(option)
        if bool(served) != bool(trained.get(option)):
            text = f"{option} is {'on' if served else 'off'} in config.json, the drafter was trained with it "
            findings.append(fault(text + ("off" if served else "on"), EXPORT_AGAIN))
    return findings


def check_release(draft: DraftFiles, engine: Literal["SGLang", "vLLM"], version: str) -> list[Finding]:
    """Options that this release of an engine would leave out without a word, and a newer one would not."""
    findings = []
    for option in FLAGS:
        since = FIRST_RELEASE[option].get(engine.lower())
        on = draft.config.get(option) or draft.eagle_config.get(option)
        if on and since and Version(version) < Version(since):
            text = f"{draft.folder}: {option} is on, which {engine} {version} does not know: it would leave it out"
            findings.append(fault(text, f"install {since} or newer in the server's environment"))
    return findings


def check_same_target(draft: DraftFiles, target: TargetFacts) -> list[Finding]:
    """Hidden size and vocabulary of the drafter against those of the target."""
    findings = []
    if draft.target_hidden_size != target.hidden_size:
        text = f"the drafter takes states of width {draft.target_hidden_size}, the target's have {target.hidden_size}"
        findings.append(fault(text, "this drafter was trained for another target"))
    if (stored := draft.config.get("vocab_size")) != target.vocab_size:
        text = f"the drafter was made for a vocabulary of {stored} ids, the target has {target.vocab_size}"
        findings.append(fault(text, "this drafter was trained for another target or tokenizer"))
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
        ids = f"{offsets_W[0]}, {offsets_W[1]}, ... {offsets_W[-1]}"
        text = f"d2t holds the target's ids themselves ({ids}), not offsets: the server would add the draft id to each"
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
        text = f"the server allows {served} positions, the drafter's longest training row had {trained}"
        findings.append(warning(text, f"accept length falls beyond the trained length: {LONGER_ROWS}"))
    return findings


def some(names: Sequence[str], most: int = 4) -> str:
    """The first names, and how many more there are."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
