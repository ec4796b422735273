"""Hidden states that other frameworks stored: reading SpecForge and speculators dumps, writing SpecForge's.

Shapes: T tokens, A aux layers, H hidden, L = A + 1 stored layers.

    SpecForge    <name>.ckpt or .ckpt.gz: input_ids [T], loss_mask [T], hidden_state [1, T, H] post-norm,
                 aux_hidden_state [1, T, A H]; rows may be padded on the right, without a mask
    speculators  hs_<i>.safetensors: token_ids [T], hidden_states [T, L, H], the last one PRE-norm; with
                 hidden_states_scales (float32, one a token) the states are e4m3; no loss mask

Neither names its target or its layers: the writer's fingerprint and aux_layers have to say what the dump was made with.
"""

import gzip
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file

from eagle3lab.features.encode import FeatureRow
from eagle3lab.features.slots import spans_to_mask
from eagle3lab.features.store import FeatureWriter
from eagle3lab.workbench.files import atomic_path

SPECFORGE_KEYS = ("input_ids", "loss_mask", "hidden_state", "aux_hidden_state")
LEFT_PADDING = 4  # that many equal untrained tokens at the start are taken for padding on the left


class ForeignError(ValueError):
    """A dump cannot be read; the message names the file and what is wrong with it."""


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


class _Row(NamedTuple):
    input_ids_T: torch.Tensor
    loss_mask_T: torch.Tensor  # bool
    aux_TAH: torch.Tensor
    last_TH: torch.Tensor  # post-norm


def import_specforge(folder: str | Path, writer: FeatureWriter) -> ImportSummary:
    """Adds every .ckpt and .ckpt.gz below `folder` to the writer; a row's id is its path without the ending.

    Files are unpickled with weights_only. What stands behind the last trained token is cut: nothing that is trained
    sees it, and padding stands there. A file that cannot be used falls, with its reason; ForeignError when none can.
    """
    folder = Path(folder)
    files = sorted(path for path in folder.rglob("*") if path.name.endswith((".ckpt", ".ckpt.gz")))
    named = ((re.sub(r"\.ckpt(\.gz)?$", "", str(path.relative_to(folder))), path) for path in files)
    return _import(folder, named, lambda _, path: _read_specforge(path, writer), writer)


def import_speculators(
    folder: str | Path,
    writer: FeatureWriter,
    norm_H: torch.Tensor,
    norm_eps: float,
    loss_spans_of: Callable[[int, list[int]], list[list[int]]],
) -> ImportSummary:
    """Adds every hs_<i>.safetensors of `folder` to the writer, under the id "hs_<i>".

    norm_H, norm_eps: the target's final RMSNorm, applied to the last state. loss_spans_of(i, token_ids): what row i
    trains; the dump does not say. Otherwise as `import_specforge`.
    """
    folder = Path(folder)
    numbered = ((re.fullmatch(r"hs_(\d+)\.safetensors", path.name), path) for path in folder.glob("hs_*.safetensors"))
    files = sorted((int(match[1]), path) for match, path in numbered if match)

    def read(row_id, path):
        return _read_speculators(int(row_id[3:]), path, writer, norm_H, norm_eps, loss_spans_of)

    return _import(folder, ((f"hs_{number}", path) for number, path in files), read, writer)


def export_specforge(rows: Iterable[FeatureRow], folder: str | Path, compress: bool = False) -> int:
    """Writes rows as SpecForge's files (named by row id, with "/" as folders); returns how many.

    SpecForge trains slot t against the state of slot t+1. Where the store does not have that state, the loss mask is
    cleared, so that it never learns from the zeros that stand there. Raises ForeignError for a top-k teacher.
    """
    count = 0
    for row in rows:
        if row.last_MH is None:
            raise ForeignError(f"row {row.id!r} has a top-k teacher; SpecForge needs the last hidden state")
        T, H = row.input_ids_T.shape[0], row.last_MH.shape[1]
        last_TH, stored_T = torch.zeros(T, H, dtype=row.last_MH.dtype), torch.zeros(T + 1, dtype=torch.bool)
        last_TH[row.last_slots], stored_T[row.last_slots] = row.last_MH, True
        tensors = {
            "input_ids": row.input_ids_T,
            "loss_mask": (row.loss_mask_T & stored_T[1:]).long(),
            "hidden_state": last_TH[None],
            "aux_hidden_state": row.aux_TAH.flatten(1)[None],
        }
        path = Path(folder) / f"{row.id}.ckpt{'.gz' * compress}"
        if not path.resolve().is_relative_to(Path(folder).resolve()):
            raise ForeignError(f"row id {row.id!r} leads out of {folder}")
        with atomic_path(path) as temporary, (gzip.open if compress else open)(temporary, "wb") as file:
            torch.save(tensors, file)
        count += 1
    return count


def rms_norm(state_TH: torch.Tensor, norm_H: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm in float32, as Llama and its kin end with."""
    state_TH = state_TH.float()
    return state_TH * torch.rsqrt(state_TH.square().mean(-1, keepdim=True) + eps) * norm_H.float()


def _import(folder: Path, named: Iterable[tuple[str, Path]], read, writer: FeatureWriter) -> ImportSummary:
    summary, files = ImportSummary(), 0
    for row_id, path in named:
        files += 1
        if row_id in writer.done_ids:
            summary.skipped += 1
            continue
        try:
            row = read(row_id, path)
            spans = list(mask_to_spans(row.loss_mask_T))
            if not spans:
                raise ForeignError("nothing is trained: the loss mask is all zero")
            end = spans[-1][1]
            writer.add(row_id, row.input_ids_T[:end], spans, row.aux_TAH[:end], row.last_TH[:end])
        except ValueError as error:  # ForeignError, and what the writer refuses
            summary.fallen.append({"id": row_id, "file": str(path), "reason": str(error)})
            continue
        summary.rows, summary.tokens = summary.rows + 1, summary.tokens + end
        summary.cut_tokens += row.input_ids_T.shape[0] - end
    if not files:
        raise ForeignError(f"{folder} holds no files of this layout")
    if not summary.rows and not summary.skipped:
        raise ForeignError(f"{folder}: none of {files} files can be used; the first: {summary.fallen[0]['reason']}")
    return summary


def mask_to_spans(mask_T: torch.Tensor) -> Iterator[list[int]]:
    """The runs of a mask as [start, end), in order: the inverse of spans_to_mask."""
    edges = (
        torch.diff(mask_T.int(), prepend=torch.zeros(1).int(), append=torch.zeros(1).int()).nonzero().flatten().tolist()
    )
    return ([start, end] for start, end in zip(edges[::2], edges[1::2], strict=True))


def _read_specforge(path: Path, writer: FeatureWriter) -> _Row:
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        tensors = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file fails in many ways, and each is this file's own
        raise ForeignError(f"not a file of tensors ({type(error).__name__}: {str(error).splitlines()[0]})") from error
    missing = [key for key in SPECFORGE_KEYS if not (isinstance(tensors, dict) and torch.is_tensor(tensors.get(key)))]
    if missing:
        raise ForeignError(f"no tensor {', '.join(missing)}: is this a SpecForge dump for EAGLE-3?")
    ids_T, mask_T = tensors["input_ids"].flatten(), tensors["loss_mask"].flatten().bool()
    T, A, H = ids_T.shape[0], len(writer.manifest["aux_layers"]), writer.manifest["hidden_size"]
    wanted = {"loss_mask": T, "hidden_state": T * H, "aux_hidden_state": T * A * H}
    for key, size in wanted.items():
        if tensors[key].numel() != size:
            raise ForeignError(
                f"{key} has shape {tuple(tensors[key].shape)}, which is not {T} tokens of a store with {A} aux layers "
                f"and hidden size {H}"
            )
    if T >= LEFT_PADDING and bool((ids_T[:LEFT_PADDING] == ids_T[0]).all()) and not bool(mask_T[:LEFT_PADDING].any()):
        raise ForeignError(f"it starts with {LEFT_PADDING} times token {int(ids_T[0])}: padded on the left?")
    return _Row(ids_T, mask_T, tensors["aux_hidden_state"].view(T, A, H), tensors["hidden_state"].view(T, H))


def _read_speculators(number: int, path: Path, writer: FeatureWriter, norm_H, norm_eps, loss_spans_of) -> _Row:
    try:
        tensors = load_file(path)
    except Exception as error:
        raise ForeignError(f"not a safetensors file ({type(error).__name__}: {error})") from error
    missing = [key for key in ("token_ids", "hidden_states") if key not in tensors]
    if missing:
        raise ForeignError(f"no tensor {', '.join(missing)}: is this a speculators dump?")
    ids_T, states_TLH = tensors["token_ids"].flatten(), tensors["hidden_states"]
    T, L, H = ids_T.shape[0], len(writer.manifest["aux_layers"]) + 1, writer.manifest["hidden_size"]
    if tuple(states_TLH.shape) != (T, L, H):
        raise ForeignError(f"hidden_states has shape {tuple(states_TLH.shape)}, expected {(T, L, H)}")
    scales = tensors.get("hidden_states_scales")
    if (states_TLH.dtype == torch.float8_e4m3fn) != (scales is not None):
        raise ForeignError(f"hidden_states are {states_TLH.dtype}, with{'' if scales is not None else 'out'} scales")
    if scales is not None:
        states_TLH = states_TLH.float() * scales.view(T, 1, 1)
    mask_T = spans_to_mask(loss_spans_of(number, ids_T.tolist()), T)
    return _Row(ids_T, mask_T, states_TLH[:, :-1], rms_norm(states_TLH[:, -1], norm_H, norm_eps))
