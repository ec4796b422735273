"""The labels by which acceptance is sliced: what is known of every token of an answer.

Shapes: T tokens of a row, M slots with a teacher, H hidden, V target vocabulary, P answers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from eagle3lab.analysis.slices import Attempts, Slice, slice_by
from eagle3lab.analysis.token_text import CLASSES, PARTS, answer_parts, token_classes, token_pieces
from eagle3lab.data.language import language_of

ENTROPY_EDGES = (0.05, 0.5, 1.0, 2.0, 4.0)  # bits
POSITION_EDGES = (16, 64, 256, 1024, 4096)  # tokens
CONTEXT_EDGES = (128, 512, 2048, 8192, 32768)  # tokens
OUTSIDE = "outside"  # of the answer: no draft names these tokens
CHUNK = 256  # slots whose logits exist at one time


def bin_names(edges: Sequence[float], unit: str) -> list[str]:
    """Names of the bins below, between and from the edges on: "below 16 tokens", "16 to 64 tokens", ..."""
    inner = [f"{a:g} to {b:g} {unit}" for a, b in zip(edges, edges[1:], strict=False)]
    return [f"below {edges[0]:g} {unit}", *inner, f"{edges[-1]:g} {unit} and more"]


def binned(values_T, edges: Sequence[float], unit: str) -> np.ndarray:
    """Name of each value's bin (a value at an edge is in the bin above it); OUTSIDE for NaN."""
    values_T, names = np.asarray(values_T, dtype=float), np.array([*bin_names(edges, unit), OUTSIDE], dtype=object)
    return names[np.where(np.isnan(values_T), len(edges) + 1, np.digitize(values_T, edges))]


@torch.no_grad()
def target_entropy(row, head_VH: torch.Tensor, chunk: int = CHUNK) -> np.ndarray:
    """Entropy in bits of the target's distribution at every token of the answers, float64 [T]; NaN elsewhere.

    row: `input_ids_T`, `last_slots` and `last_MH`, the post-norm last states; head_VH: the target's output head.
    """
    entropy_T = np.full(len(row.input_ids_T), np.nan)
    token_M = (row.last_slots + 1).tolist()
    for start in range(0, len(token_M), chunk):
        last_CH = row.last_MH[start : start + chunk].to(head_VH.dtype)
        log_p_CV = (last_CH @ head_VH.T).float().log_softmax(-1)
        nats_C = -(log_p_CV.exp() * log_p_CV).nan_to_num().sum(-1)
        entropy_T[token_M[start : start + chunk]] = nats_C.double().numpy(force=True) / np.log(2)
    return entropy_T


@dataclass(frozen=True)
class Dimension:
    """One way to slice: a label (or T labels) an answer, and the order in which labels are shown."""

    labels: list
    order: tuple[str, ...] = ()


def dimensions(rows: Iterable, tokenizer: Any = None, head_VH: torch.Tensor | None = None) -> dict[str, Dimension]:
    """All dimensions that can be told: set, position in the answer, context length; with a tokenizer also the
    language of the answer, its parts and the class of each token; with the target's head also its entropy. In the
    order of `rows` (AnswerRow)."""
    rows = list(rows)
    found = {"set": Dimension([row.set for row in rows])}
    if head_VH is not None:
        entropies = [binned(target_entropy(row, head_VH), ENTROPY_EDGES, "bits") for row in rows]
        found["target entropy"] = Dimension(entropies, tuple(bin_names(ENTROPY_EDGES, "bits")))
    if tokenizer is not None:
        found |= _text_dimensions(rows, tokenizer)
    for name, edges, origin in (
        ("position in the answer", POSITION_EDGES, lambda row: row.n_prompt),
        ("context length", CONTEXT_EDGES, lambda row: 0),
    ):
        places = [np.arange(len(row.input_ids_T)) - origin(row) for row in rows]
        labels = [binned(np.where(place < 0, np.nan, place), edges, "tokens") for place in places]
        found[name] = Dimension(labels, tuple(bin_names(edges, "tokens")))
    return found


def _text_dimensions(rows, tokenizer) -> dict[str, Dimension]:
    special = set(tokenizer.all_special_ids)
    languages, classes, parts = [], [], []
    for row in rows:
        ids = [int(i) for i in row.input_ids_T]
        pieces = token_pieces(tokenizer, ids[row.n_prompt :])
        languages.append(language_of("".join(pieces)))
        prompt = tokenizer.decode(ids[: row.n_prompt], skip_special_tokens=False)
        for labels, of_answer in (
            (classes, token_classes(ids[row.n_prompt :], pieces, special)),
            (parts, answer_parts(prompt, pieces)),
        ):
            labels.append(np.array([OUTSIDE] * row.n_prompt + of_answer, dtype=object))
    return {
        "language": Dimension(languages),
        "part of the answer": Dimension(parts, PARTS),
        "token class": Dimension(classes, CLASSES),
    }


def all_slices(a: Attempts, found: Mapping[str, Dimension], seed: int = 0) -> dict[str, list[Slice]]:
    """The slices of every dimension; the dimensions' answers are those of the attempts, in their order."""
    return {name: slice_by(a, dimension.labels, dimension.order, seed) for name, dimension in found.items()}
