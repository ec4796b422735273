"""Faults to plant in a good drafter's folder, or between it and its server, and the suspect that must rank first.

A server takes half a minute to start, so only faults that it makes of its flags, of config.json or of the vocabulary
map at its start get one of their own. The others need none, see `Fault`.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file, save_file

from eagle3lab.analysis.parity import Parity
from eagle3lab.draft.checkpoint import read_draft_config

Plant = Callable[[Path], None]
Tensors = dict[str, torch.Tensor]
NORM = "midlayer.hidden_norm.weight"


@dataclass(frozen=True)
class Fault:
    """One kind of fault. way:

    start    a server of its own is started, with the folder that `plant` changed
    swapped  the running server reads the tensors of that folder
    sent     the good server gets other prompt tokens
    here     the good server's answers are compared with a simulation whose own states are one token early

    cause: of `suspects.REMEDIES`. words: part of the suspect's name. algorithm: the server's flag, None: the right one.
    """

    way: Literal["start", "swapped", "sent", "here"]
    cause: str
    words: str = ""
    plant: Plant = lambda folder: None
    algorithm: str | None = None

    def ranks_first(self, found: Parity) -> bool:
        """Is the first cause this one, by its kind and by its name."""
        return any(cause.cause == self.cause and self.words in cause.name for cause in found.causes[:1])


def faults(good: str | Path) -> dict[str, Fault]:
    """All kinds for a drafter folder of this project. ValueError for one of the full vocabulary: it has no d2t."""
    config = read_draft_config(good)
    if config.full_vocabulary:
        raise ValueError(f"{good} drafts the whole vocabulary: faults of d2t need a drafter that has one")
    theta = 500_000.0 if config.rope_theta != 500_000.0 else 1_000_000.0
    return {
        "flag EAGLE": Fault("start", "flag", "EAGLE instead of EAGLE3", algorithm="EAGLE"),
        "layers off by one": Fault("start", "layers", "one layer later", _ids_as_hs(config.aux_layers)),
        "d2t absolute": Fault("start", "vocabulary map", "target ids", _tensors(_absolute)),
        "d2t missing": Fault("start", "vocabulary map", "no d2t", _tensors(_without_d2t)),
        "RoPE theta": Fault("start", "rope", f"theta {theta:,.0f}", _config(rope_theta=theta)),
        "norm_output": Fault("start", "norm", "norm_output", _config(norm_output=not config.norm_output)),
        "lm_head permuted": Fault("swapped", "vocabulary map", "another order", _tensors(_other_order)),
        "hidden_norm missing": Fault("swapped", "norm", "hidden_norm", _tensors(_without_norm)),
        "layer named for another engine": Fault("swapped", "tensors", "", _tensors(_unread_layer)),
        "other template": Fault("sent", "template"),
        "position off by one": Fault("here", "position", "states one token late"),
    }


def _config(**changes) -> Plant:
    def plant(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return plant


def _ids_as_hs(aux_layers: Sequence[int]) -> Plant:
    """hs indices written as SGLang's ids: its id k is hs[k + 1] of a Llama."""
    return _config(eagle_config={"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [*aux_layers]})


def _tensors(change: Callable[[Tensors], Tensors]) -> Plant:
    def plant(folder):
        path = folder / "model.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in change(load_file(path)).items()}, path)

    return plant


def _absolute(t: Tensors) -> Tensors:
    places_W = torch.arange(len(t["d2t"]))
    # the server adds the draft id to each; it would fail on an id beyond the vocabulary
    read_W = (t["d2t"] + 2 * places_W).clamp(max=len(t["t2d"]) - 1)
    return t | {"d2t": read_W - places_W}


def _without_d2t(t: Tensors) -> Tensors:
    return {name: tensor for name, tensor in t.items() if name != "d2t"}


def _other_order(t: Tensors) -> Tensors:
    return t | {"lm_head.weight": t["lm_head.weight"].roll(7, 0)}


def _without_norm(t: Tensors) -> Tensors:
    """As a server has it whose folder lacks the tensor: a norm begins with ones."""
    return t | {NORM: torch.ones_like(t[NORM])}


def _unread_layer(t: Tensors) -> Tensors:
    """As a server has it whose folder names the layer for another engine: memory that nobody wrote, or zeros."""
    generator = torch.Generator().manual_seed(77)
    matrices = {n: x for n, x in t.items() if ".self_attn" in n or ".mlp" in n}
    wrong = {n: (0.02 * torch.randn(x.shape, generator=generator)).to(x.dtype) for n, x in matrices.items()}
    return t | wrong | {n: torch.ones_like(x) for n, x in t.items() if n.startswith("midlayer.") and x.dim() == 1}
