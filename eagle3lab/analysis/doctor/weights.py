"""Checks of what a drafter's tensors hold: anybody's folder, read without building the network.

Shapes: V target vocabulary, W draft vocabulary, H draft hidden, S sampled rows.
"""

from typing import Any

import numpy as np
import torch

from eagle3lab.analysis.doctor.report import Check, judged
from eagle3lab.draft.stored import StoredTensors
from eagle3lab.draft.vocab import VocabMap
from eagle3lab.engines.servers.model_files import DraftFiles
from eagle3lab.engines.sglang.draft_tensors import served_name

SAMPLE = 400  # rows of a head or an embedding whose likeness is compared
ALIKE = 0.1  # correlation of likenesses, above which rows stand for the same tokens
SAME_ROW = 0.99  # cosine of two rows that are the same but for rounding
EXPORT = "export the drafter again, or mend its folder"


def check_weights(draft: DraftFiles, embed_VG: torch.Tensor | None, head_VG: torch.Tensor | None) -> list[Check]:
    """All checks of a drafter's tensors. embed_VG, head_VG: the target's embedding and output head, where they are
    known."""
    tensors = _Tensors(draft)
    return [check_numbers(tensors), check_head(draft, tensors, head_VG), check_embedding(draft, tensors, embed_VG)]


class _Tensors:
    """Tensors of a folder by the name the server reads them under."""

    def __init__(self, draft: DraftFiles):
        self._stored = StoredTensors(draft.folder)
        self._names = {served_name(name): name for name in self._stored}

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __iter__(self):
        return iter(self._names)

    def read(self, name: str) -> torch.Tensor:
        return self._stored[self._names[name]]


def check_numbers(tensors: _Tensors) -> Check:
    """No NaN, no infinity, no matrix of zeros."""
    bad, count = [], 0
    for name in tensors:
        tensor, count = tensors.read(name), count + 1
        if not tensor.is_floating_point():
            continue
        if not bool(torch.isfinite(tensor.float()).all()):
            bad.append(f"{name} not finite")
        elif tensor.dim() == 2 and not bool(tensor.any()):
            bad.append(f"{name} all zero")
    found = "; ".join(bad[:3]) or f"{count} tensors"
    return judged("draft weights", found, "finite, no matrix of zeros", "fault" if bad else "ok", EXPORT)


def check_head(draft: DraftFiles, tensors: _Tensors, head_VG: torch.Tensor | None) -> Check:
    """lm_head rows stand for the tokens that d2t gives them, and were trained.

    Rows of tokens that mean alike are alike, in the drafter's head as in the target's, whatever the basis: which pairs
    of rows are alike is compared with the target's rows of the same tokens. In another order, or untrained, they are
    not; one place off they are a little, so the places beside are compared too.
    """
    name, expected = "draft head rows", f"alike where the target's are (correlation above {ALIKE})"
    if head_VG is None or "lm_head.weight" not in tensors:
        return Check(name, "no head to compare", expected, "not checked", "give the target, and a drafter with a head")
    head_WH = tensors.read("lm_head.weight").float()
    ids_W = target_ids(draft, len(head_WH))
    if ids_W is None or int(ids_W.max()) >= len(head_VG) or int(ids_W.min()) < 0:
        return Check(name, "d2t leads nowhere", expected, "not checked", "mend d2t first")
    own_WG = head_VG[ids_W].float()
    if own_WG.shape == head_WH.shape and torch.equal(own_WG.to(torch.bfloat16), head_WH.to(torch.bfloat16)):
        remedy = "was the head overwritten by the target's, or never trained? export the trained one"
        return Check(name, "equal to the target's rows, to the bit", expected, "warning", remedy)
    like, beside = likeness(head_WH, own_WG), max(likeness(head_WH.roll(by, 0), own_WG) for by in (-1, 1))
    remedy = "lm_head rows are in another order than d2t, or the head is untrained: " + EXPORT
    found = f"correlation {like:.2f}" + (f", one place off {beside:.2f}" if beside >= like > ALIKE else "")
    return judged(name, found, expected, "ok" if like > max(ALIKE, beside) else "fault", remedy)


def check_embedding(draft: DraftFiles, tensors: _Tensors, embed_VG: torch.Tensor | None) -> Check:
    """A stored embedding is the target's (some engines load it), or alike to it where the width differs."""
    name, expected = "draft embedding", "none stored, or the target's"
    if "embed_tokens.weight" not in tensors:
        return Check(name, "none stored: the server takes the target's", expected, "ok")
    if embed_VG is None:
        return Check(name, "stored", expected, "not checked", "give the target")
    stored_VH = tensors.read("embed_tokens.weight").float()
    if len(stored_VH) != len(embed_VG):
        return Check(name, f"{len(stored_VH)} rows, the target has {len(embed_VG)}", expected, "fault", EXPORT)
    remedy = "leave the embedding out of the folder, or store the target's"
    if stored_VH.shape == embed_VG.shape:
        rows_S = _spread(len(stored_VH))
        cosine_S = torch.cosine_similarity(stored_VH[rows_S], embed_VG[rows_S].float())
        same = float(cosine_S.median())
        return judged(
            name, f"cosine {same:.2f} with the target's", expected, "ok" if same > SAME_ROW else "fault", remedy
        )
    like = likeness(stored_VH, embed_VG.float())
    found = f"of another width, correlation {like:.2f} with the target's"
    return judged(name, found, expected, "ok" if like > ALIKE else "fault", remedy)


def target_ids(draft: DraftFiles, rows: int) -> torch.Tensor | None:
    """Target ids of the head's rows by d2t; by number where there is no map and the vocabulary is the target's."""
    if draft.d2t_W is not None:
        offsets_W = torch.from_numpy(draft.d2t_W.astype(np.int64).reshape(-1))
        return offsets_W + torch.arange(len(offsets_W)) if len(offsets_W) == rows else None
    return torch.arange(rows)


def likeness(left_WH: torch.Tensor, right_WG: torch.Tensor) -> float:
    """Do the same pairs of rows lie near each other: correlation of the two matrices of cosines, over sampled rows."""
    rows_S = _spread(len(left_WH))
    near = []
    for matrix in (left_WH, right_WG):
        part_SH = matrix[rows_S] - matrix[rows_S].mean(0)
        part_SH = torch.nn.functional.normalize(part_SH, dim=1)
        cosine_SS = part_SH @ part_SH.T
        near.append(cosine_SS[torch.triu_indices(len(part_SH), len(part_SH), 1).unbind()])
    return float(torch.corrcoef(torch.stack(near))[0, 1].nan_to_num())


def _spread(count: int) -> torch.Tensor:
    return torch.arange(count)[:: max(1, count // SAMPLE)]


def check_rope(draft: DraftFiles) -> Check:
    """RoPE of config.json is that of the training, where the folder says what that was."""
    name, config = "draft RoPE", draft.config
    parameters = config.get("rope_parameters") or {}
    theta = config.get("rope_theta") or parameters.get("rope_theta")
    scaling = config.get("rope_scaling") or {k: v for k, v in parameters.items() if k != "rope_theta"}
    kind = (scaling or {}).get("rope_type") or (scaling or {}).get("type") or "default"
    found = f"theta {theta:,.0f}, {kind}" if theta else f"no theta, {kind}: engines take 10,000"
    trained: dict[str, Any] = draft.training.get("draft_config", {})
    if "rope_theta" not in trained:
        remedy = "compare with the training's own config, or try it: a wrong theta shows in simulated against served"
        return Check(name, found, "as trained", "not checked", remedy)
    wanted = "llama3" if trained.get("rope_llama3") else "default"
    expected = f"theta {trained['rope_theta']:,.0f}, {wanted}"
    right = (theta or 10_000.0) == trained["rope_theta"] and kind == wanted
    return judged(name, found, expected, "ok" if right else "fault", EXPORT)


def check_same_map(draft: DraftFiles, vocab: VocabMap | None) -> Check:
    """The drafter's vocabulary is that of the map it should have been trained with."""
    name, expected = "draft vocabulary as extracted", "the ids of the vocabulary map"
    if vocab is None:
        return Check(name, "no map given", expected, "not checked", "give the vocabulary map")
    rows = len(draft.d2t_W.reshape(-1)) if draft.d2t_W is not None else draft.config.get("vocab_size", 0)
    same = torch.equal(target_ids(draft, rows), vocab.target_ids_W)
    remedy = "the drafter and the map are of different extractions: train again, or give the map it was trained with"
    return judged(name, "the same" if same else "other ids", expected, "ok" if same else "fault", remedy)
