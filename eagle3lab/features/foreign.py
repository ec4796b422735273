"""Hidden states as other frameworks store them: reading and writing dumps of SpecForge and of speculators.

Shapes: T tokens, A aux layers, H hidden, L = A + 1 stored layers.

    SpecForge    <name>.ckpt or .ckpt.gz: input_ids [T], loss_mask [T], hidden_state [1, T, H] post-norm,
                 aux_hidden_state [1, T, A H]; rows may be padded on the right, without a mask
    speculators  hs_<i>.safetensors: token_ids [T], hidden_states [T, L, H], the last one PRE-norm; with
                 hidden_states_scales (float32, one a token) the states are e4m3; no loss mask

Neither names its target or its layers: the writer's fingerprint and aux_layers have to say what the dump was made with.
"""

import gzip
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file

from eagle3lab.features.dataset_folder import token_dataset
from eagle3lab.features.encode import FeatureRow
from eagle3lab.features.foreign_read import ForeignError, ForeignRow, read_specforge, read_speculators
from eagle3lab.features.layout import FeatureStoreError, told_when_full
from eagle3lab.features.store import FeatureWriter
from eagle3lab.workbench.files import atomic_folder, atomic_path

NORM_TOLERANCE = 0.1  # rounding of a teacher in fp8 stays below it; another model's norm does not


@dataclass
class ImportSummary:
    """rows + skipped + len(fallen) is the number of files. What stands behind the last trained token is cut."""

    rows: int = 0
    tokens: int = 0
    cut_tokens: int = 0
    skipped: int = 0  # in the store already
    fallen: list[dict] = field(default_factory=list)  # {"id", "file", "reason"}

    def reasons(self) -> Counter:
        """How many files fell for which reason."""
        return Counter(row["reason"] for row in self.fallen)


def import_specforge(folder: str | Path, writer: FeatureWriter) -> ImportSummary:
    """Adds every .ckpt and .ckpt.gz below `folder` to the writer; a row's id is its path without the ending.

    Files are unpickled with weights_only. What stands behind the last trained token is cut: nothing that is trained
    sees it, and padding stands there. A file that cannot be used falls, with its reason; ForeignError when none can.
    Padding on the left lets a row fall where it is told by its length (from four tokens on) or by an attention mask;
    one to three such tokens without a mask are kept, as the context that the target saw (foreign_read.py says why).
    """
    folder = Path(folder)
    files = sorted(path for path in folder.rglob("*") if path.name.endswith((".ckpt", ".ckpt.gz")))
    named = ((re.sub(r"\.ckpt(\.gz)?$", "", str(path.relative_to(folder))), path) for path in files)
    A, H = len(writer.manifest["aux_layers"]), writer.manifest["hidden_size"]
    return _import(folder, named, lambda _, path: read_specforge(path, A, H), writer)


def import_speculators(
    folder: str | Path,
    writer: FeatureWriter,
    norm_H: torch.Tensor,
    norm_eps: float,
    loss_spans_of: Callable[[int, list[int]], list[list[int]]],
) -> ImportSummary:
    """Adds every hs_<i>.safetensors of `folder` to the writer, under the id "hs_<i>".

    norm_H, norm_eps: the target's final RMSNorm, applied to the last state. loss_spans_of(i, token_ids): what row i
    trains; the dump does not say, and a ValueError lets the row fall. Otherwise as `import_specforge`.
    Raises ForeignError for a norm of another size.
    """
    folder, A, H = Path(folder), len(writer.manifest["aux_layers"]), writer.manifest["hidden_size"]
    if tuple(norm_H.shape) != (H,) or not bool(norm_H.isfinite().all()):
        raise ForeignError(f"norm_H of shape {tuple(norm_H.shape)} is not the final norm of a target with {H} channels")
    numbered = ((re.fullmatch(r"hs_(\d+)\.safetensors", path.name), path) for path in folder.glob("hs_*.safetensors"))
    files = sorted((int(match[1]), path) for match, path in numbered if match)

    def read(row_id, path):
        number = int(row_id.removeprefix("hs_"))
        return read_speculators(path, A, norm_H, norm_eps, lambda ids: loss_spans_of(number, ids))

    return _import(folder, ((f"hs_{number}", path) for number, path in files), read, writer)


def export_specforge(rows: Iterable[FeatureRow], folder: str | Path, compress: bool = False) -> int:
    """Writes rows as SpecForge's files (named by row id, with "/" as folders); returns how many.

    SpecForge trains slot t against the state of slot t+1. Where the store does not have that state, the loss mask is
    cleared, so that it never learns from the zeros that stand there. Raises ForeignError for a top-k teacher.
    """
    count = 0
    for row in rows:
        last_TH, stored_T = _last_states(row, "SpecForge")
        tensors = {
            "input_ids": row.input_ids_T,
            "loss_mask": (row.loss_mask_T & torch.cat([stored_T[1:], stored_T.new_zeros(1)])).long(),
            "hidden_state": last_TH[None],
            "aux_hidden_state": row.aux_TAH.flatten(1)[None],
        }
        path = Path(folder) / f"{row.id}.ckpt{'.gz' * compress}"
        if not path.resolve().is_relative_to(Path(folder).resolve()):
            raise ForeignError(f"row id {row.id!r} leads out of {folder}")
        with (
            told_when_full(Path(folder)),
            atomic_path(path) as temporary,
            (gzip.open if compress else open)(temporary, "wb") as file,
        ):
            torch.save(tensors, file)
        count += 1
    return count


def export_speculators(rows: Iterable[FeatureRow], folder: str | Path, norm_H: torch.Tensor, norm_eps: float) -> int:
    """Writes rows as a new folder that `speculators train --data-path` takes, whole or not at all; returns how many.

    The folder: hidden_states/hs_<i>.safetensors; the dataset of ids and loss masks (and of the rows' ids, as column
    "id"), whose row i is hs_<i>; token_freq.pt, counts of the answers' ids, for its --draft-vocab-size.

    norm_H, norm_eps: the target's final RMSNorm. speculators wants the last state before that norm, which it applies
    while it trains; the store has the state after it, whose length is lost. Written is that state divided by norm_H: it
    has the direction, and its root mean square is 1, so that the norm gives the same teacher up to rounding and eps.
    speculators trains slot t-1 against the state of slot t where the mask of token t is set. Where the store does not
    have that state (at the last token of an answer, and in prompts), zeros are written and the mask is cleared.
    Raises ForeignError for a top-k teacher, a norm with zeros (what it blots out cannot be had back) or of another
    model, no rows, and a folder that exists.
    """
    folder, count, frequency = Path(folder), 0, Counter()
    if folder.exists():
        raise ForeignError(f"{folder} exists: name a new folder, or remove it first")
    norm_H = norm_H.detach().float().cpu()
    if bad := int((~norm_H.isfinite() | (norm_H.abs() < torch.finfo(norm_H.dtype).tiny)).sum()):
        raise ForeignError(f"{bad} weights of the final norm are zero or not finite: states cannot be divided by it")
    with told_when_full(folder), atomic_folder(folder) as part:
        (part / "hidden_states").mkdir()
        with token_dataset(part) as dataset:
            for row in rows:
                last_TH, stored_T = _last_states(row, "speculators")
                before_TH = _before_norm(row.id, last_TH.float(), stored_T, norm_H, norm_eps).to(row.aux_TAH.dtype)
                states_TLH = torch.cat([row.aux_TAH, before_TH[:, None]], dim=1)
                tensors = {"token_ids": row.input_ids_T, "hidden_states": states_TLH}
                save_file(tensors, part / "hidden_states" / f"hs_{count}.safetensors")
                dataset.add(row.id, row.input_ids_T, row.loss_mask_T & stored_T)
                frequency.update(row.input_ids_T[row.loss_mask_T].tolist())  # ends of answers too: they are proposed
                count += 1
        if not count:
            raise ForeignError(f"no rows to write to {folder}")
        torch.save(dict(frequency), part / "token_freq.pt")
    return count


def _last_states(row: FeatureRow, framework: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The teacher's states [T, H], zeros where none is stored, and where one is, bool [T]."""
    if row.last_MH is None:
        raise ForeignError(
            f"row {row.id!r} has a top-k teacher; {framework} needs the last hidden state: extract with a codec that "
            "keeps it, such as 'fp8'"
        )
    T, H = row.input_ids_T.shape[0], row.last_MH.shape[1]
    last_TH, stored_T = torch.zeros(T, H, dtype=row.last_MH.dtype), torch.zeros(T, dtype=torch.bool)
    last_TH[row.last_slots], stored_T[row.last_slots] = row.last_MH, True
    return last_TH, stored_T


def _before_norm(row_id: str, last_TH: torch.Tensor, stored_T: torch.Tensor, norm_H, eps: float) -> torch.Tensor:
    """States that RMSNorm turns into `last_TH`; proven, as only states of this very norm have them."""
    if last_TH.shape[1] != norm_H.shape[0]:
        raise ForeignError(f"row {row_id!r} has states of {last_TH.shape[1]}, the final norm is of {norm_H.shape[0]}")
    before_TH = last_TH / norm_H
    length_T = (before_TH.square().mean(-1) + eps).sqrt()[stored_T]  # the norm divides by it: 1 changes nothing
    if bool(((length_T - 1).abs() > NORM_TOLERANCE).any()):
        worst = length_T[(length_T - 1).abs().argmax()]
        raise ForeignError(
            f"row {row_id!r}: a last state divided by the final norm has a root mean square of {worst:.3g}, not 1: it "
            "was stored after another norm, or rounding took channels that this norm makes very small"
        )
    return before_TH


def _import(
    folder: Path,
    named: Iterable[tuple[str, Path]],
    read: Callable[[str, Path], ForeignRow],
    writer: FeatureWriter,
) -> ImportSummary:
    summary, stored, taken, files = ImportSummary(), frozenset(writer.done_ids), {}, 0
    for row_id, path in named:
        files += 1
        if row_id in stored:
            summary.skipped += 1
        elif row_id in taken:
            twice = f"{taken[row_id].name} has the same id: it stands twice in this dump"
            summary.fallen.append({"id": row_id, "file": str(path), "reason": twice})
        elif _take(row_id, path, read, writer, summary):
            taken[row_id] = path
    if not files:
        raise ForeignError(f"{folder} holds no files of this layout")
    if not summary.rows and not summary.skipped:
        raise ForeignError(f"{folder}: none of {files} files can be used; the first: {summary.fallen[0]['reason']}")
    return summary


def _take(row_id: str, path: Path, read, writer: FeatureWriter, summary: ImportSummary) -> bool:
    """Adds one file's row to the store (True), or to those that fell."""
    try:
        row = read(row_id, path)
        spans = list(mask_to_spans(row.loss_mask_T))
        if not spans:
            raise ForeignError("nothing is trained: the loss mask is all zero")
        end = spans[-1][1]
        writer.add(row_id, row.input_ids_T[:end], spans, row.aux_TAH[:end], row.last_TH[:end])
    except FeatureStoreError:  # the store's trouble, such as a full disk, not this file's
        raise
    except ValueError as error:  # ForeignError, and what the writer refuses
        summary.fallen.append({"id": row_id, "file": str(path), "reason": str(error)})
        return False
    summary.rows, summary.tokens = summary.rows + 1, summary.tokens + end
    summary.cut_tokens += row.input_ids_T.shape[0] - end
    return True


def mask_to_spans(mask_T: torch.Tensor) -> Iterator[list[int]]:
    """The runs of a mask as [start, end), in order: the inverse of spans_to_mask."""
    edges = (
        torch.diff(mask_T.int(), prepend=torch.zeros(1).int(), append=torch.zeros(1).int()).nonzero().flatten().tolist()
    )
    return ([start, end] for start, end in zip(edges[::2], edges[1::2], strict=True))
