"""One file of a foreign dump, read and checked. What its shapes, dtypes and values do not settle is refused: states in
another order have the same number of values, and would be trained on as they come.

Shapes: T tokens, A aux layers, H hidden, L = A + 1 stored layers.
"""

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file

from eagle3lab.features.slots import spans_to_mask

SPECFORGE_KEYS = ("input_ids", "loss_mask", "hidden_state", "aux_hidden_state")
STATE_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# That many equal untrained tokens at the start are taken for padding on the left. Fewer cannot be told from a template
# that begins with a token twice (its own BOS behind the tokenizer's), and may not be cut: SpecForge 0.2.0 sends every
# token of a row through the target without a mask, so that all later states were computed with these as context.
LEFT_PADDING = 4


class ForeignError(ValueError):
    """A dump cannot be read or written; the message names the file or row, and what is wrong with it."""


class ForeignRow(NamedTuple):
    input_ids_T: torch.Tensor
    loss_mask_T: torch.Tensor  # bool
    aux_TAH: torch.Tensor
    last_TH: torch.Tensor  # post-norm


def read_specforge(path: Path, aux_layers: int, hidden_size: int) -> ForeignRow:
    """A .ckpt or .ckpt.gz, unpickled with weights_only. Raises ForeignError for anything but one row of these sizes.

    SpecForge stores no attention mask. Where a file has one, every token up to the last trained one must be in it: it
    does not say whether the target kept to it, and so whether the states behind are of a row with these or without.
    """
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        tensors = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file fails in many ways, and each is this file's own
        raise ForeignError(f"not a file of tensors ({type(error).__name__}: {str(error).splitlines()[0]})") from error
    tensors = _named(tensors, SPECFORGE_KEYS, "a SpecForge dump for EAGLE-3")
    ids_T = _token_ids("input_ids", tensors["input_ids"])
    T = ids_T.shape[0]
    mask_T = _shaped("loss_mask", tensors["loss_mask"], T)
    if not bool(((mask_T == 0) | (mask_T == 1)).all()):
        raise ForeignError("loss_mask has values other than 0 and 1")
    store = _store(aux_layers, hidden_size)
    last_TH = _states("hidden_state", tensors["hidden_state"], store, T, hidden_size)
    aux_TD = _states("aux_hidden_state", tensors["aux_hidden_state"], store, T, aux_layers * hidden_size)
    mask_T = mask_T.bool()
    if T >= LEFT_PADDING and bool((ids_T[:LEFT_PADDING] == ids_T[0]).all()) and not bool(mask_T[:LEFT_PADDING].any()):
        raise ForeignError(f"it starts with {LEFT_PADDING} times token {int(ids_T[0])}: padded on the left?")
    if torch.is_tensor(attention := tensors.get("attention_mask")):
        left_out_T = _shaped("attention_mask", attention, T) == 0
        if bool((left_out_T & mask_T.flip(0).cummax(0).values.flip(0)).any()):
            raise ForeignError("its attention_mask leaves out tokens before the last trained one: padded on the left?")
    return ForeignRow(ids_T, mask_T, aux_TD.view(T, aux_layers, hidden_size), last_TH)


def read_speculators(
    path: Path,
    aux_layers: int,
    norm_H: torch.Tensor,
    norm_eps: float,
    spans_of: Callable[[list[int]], list[list[int]]],
) -> ForeignRow:
    """A .safetensors file. norm_H, norm_eps: the target's final RMSNorm, applied to the last state. spans_of(token
    ids): what is trained. Raises ForeignError for anything but one row of these sizes."""
    try:
        tensors = load_file(path)
    except Exception as error:
        raise ForeignError(f"not a safetensors file ({type(error).__name__}: {error})") from error
    tensors = _named(tensors, ("token_ids", "hidden_states"), "a speculators dump")
    ids_T = _token_ids("token_ids", tensors["token_ids"])
    T, L, H = ids_T.shape[0], aux_layers + 1, norm_H.shape[0]
    states_TLH, scales = tensors["hidden_states"], tensors.get("hidden_states_scales")
    if (states_TLH.dtype == torch.float8_e4m3fn) != (scales is not None):
        raise ForeignError(f"hidden_states are {states_TLH.dtype}, with{'' if scales is not None else 'out'} scales")
    if scales is not None:
        if not scales.is_floating_point() or scales.numel() != T:
            raise ForeignError(f"hidden_states_scales are {_kind(scales)}: one float a token is expected, {T} in all")
        states_TLH = states_TLH.float() * scales.view(T, *[1] * (states_TLH.dim() - 1))
    states_TLH = _states("hidden_states", states_TLH, _store(aux_layers, H), T, L, H)
    spans = spans_of(ids_T.tolist())
    try:
        mask_T = spans_to_mask(spans, T)
    except TypeError as error:
        raise ForeignError(f"loss_spans_of gave {spans!r}, not a list of [start, end)") from error
    return ForeignRow(ids_T, mask_T, states_TLH[:, :-1], rms_norm(states_TLH[:, -1], norm_H, norm_eps))


def rms_norm(state_TH: torch.Tensor, norm_H: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm in float32, as Llama and its kin end with."""
    state_TH = state_TH.float()
    return state_TH * torch.rsqrt(state_TH.square().mean(-1, keepdim=True) + eps) * norm_H.float()


def _named(tensors, keys: tuple[str, ...], what: str) -> dict[str, torch.Tensor]:
    """The file's dict, with plain tensors under all of the keys."""
    tensors = tensors if isinstance(tensors, dict) else {}
    missing = [key for key in keys if not torch.is_tensor(tensors.get(key))]
    if missing:
        raise ForeignError(f"no tensor {', '.join(missing)}: is this {what}?")
    if odd := [key for key in keys if tensors[key].layout != torch.strided]:
        raise ForeignError(f"{', '.join(odd)}: a sparse tensor, which is not read")
    return tensors


def _token_ids(name: str, ids: torch.Tensor) -> torch.Tensor:
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ForeignError(f"{name} are {_kind(ids)}, not whole numbers")
    return _shaped(name, ids, ids.shape[-1] if ids.dim() else 1)


def _states(name: str, states: torch.Tensor, store: str, T: int, *sizes: int) -> torch.Tensor:
    if states.dtype not in STATE_DTYPES:
        raise ForeignError(f"{name} is {_kind(states)}: states of bfloat16, float16 or float32 are read")
    return _shaped(name, states, T, *sizes, store=store)


def _store(aux_layers: int, hidden_size: int) -> str:
    return f" of a store with {aux_layers} aux layers and hidden size {hidden_size}"


def _shaped(name: str, tensor: torch.Tensor, *shape: int, store: str = "") -> torch.Tensor:
    """The tensor in this shape, once dimensions of 1 before it are gone (a batch of one)."""
    found = tuple(tensor.shape)
    while tensor.dim() > len(shape) and tensor.shape[0] == 1:
        tensor = tensor[0]
    if tuple(tensor.shape) != shape:
        raise ForeignError(f"{name} has shape {found}, expected {shape}: one row of {shape[0]} tokens{store}")
    return tensor


def _kind(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"
