"""The untrained drafter of a target: its sizes, its random matrices, and what it takes over from the target.

Shapes: V target vocabulary, W draft vocabulary, H draft hidden, G target hidden, A aux layers.
"""

from pathlib import Path
from types import SimpleNamespace

import torch
from transformers import CONFIG_MAPPING

from eagle3lab.data.targets import target_config
from eagle3lab.draft.config import DraftConfig
from eagle3lab.draft.model import Eagle3Draft
from eagle3lab.draft.target_weights import LAYER, TargetWeights, read_target_layer
from eagle3lab.draft.vocab import VocabError, VocabMap

WARM_STARTS = ("lm_head", "norm", "fc", "layer")  # what a drafter can take over; see `warm_start`

WRITTEN = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size", "rms_norm_eps",
    "max_position_embeddings",
)  # fmt: skip


class WarmStartError(ValueError):
    """A target whose weights do not fit the drafter that shall start from them."""


def new_draft(
    target_folder: str | Path,
    aux_layers,
    vocab: VocabMap,
    weights: TargetWeights,
    seed: int,
    parts=("lm_head", "norm"),
    **sizes,
) -> Eagle3Draft:
    """An untrained drafter of a target: random matrices of that seed, and `parts` of WARM_STARTS from the target.

    `sizes` are fields of DraftConfig that shall differ from the target's (None: they do not). Where the width differs,
    the drafter gets an embedding of its own, see `own_embedding`. Raises VocabError for the vocabulary map of another
    target, ValueError for sizes that do not fit together, and what `warm_start` raises.
    """
    sizes_of_target = read_sizes(target_folder)
    if vocab.vocab_size != sizes_of_target.vocab_size:
        raise VocabError(
            f"the vocabulary map is for {vocab.vocab_size} ids, {target_folder} has {sizes_of_target.vocab_size}: "
            "it was made for another target; build it again from this target's corpus"
        )
    config = DraftConfig.for_target(sizes_of_target, tuple(aux_layers), vocab.size, **sizes)
    embed_VH = own_embedding(weights.embed_VH, config.hidden_size) if config.owns_embedding else weights.embed_VH
    draft = Eagle3Draft(config, embed_VH, vocab.target_ids_W)
    draft.reset(torch.Generator().manual_seed(seed))
    layer = read_target_layer(target_folder, sizes_of_target.num_hidden_layers - 1) if "layer" in parts else None
    warm_start(draft, weights, parts, layer)
    return draft


def read_sizes(folder: str | Path) -> object:
    """What config.json says of the target, as attributes; of a target that sees too, of its language part
    (`text_config`). Code that lies in the folder is not run: a kind that transformers does not know is taken as it is
    written. `architectures` are the whole target's. Raises ValueError naming the size that is missing.
    """
    written = target_config(folder)
    text = written.get("text_config") or written
    if text.get("model_type") in CONFIG_MAPPING:
        sizes = CONFIG_MAPPING[text["model_type"]].from_dict(text)
    else:
        if missing := [name for name in WRITTEN if name not in text]:
            raise ValueError(f"{Path(folder) / 'config.json'} does not say {', '.join(missing)} of the language model")
        sizes = SimpleNamespace(**{"num_key_value_heads": text["num_attention_heads"], **text})
    sizes.architectures = written.get("architectures")
    return sizes


@torch.no_grad()
def warm_start(draft: Eagle3Draft, weights: TargetWeights, parts, layer: dict | None = None) -> None:
    """Takes parts of the target over, in place:

    lm_head, norm   the target's head rows of the draft vocabulary and its final norm, where the widths agree
    fc              the last aux state (normed, with fc_norm) is passed through: identity there, zero for the others
    layer           the block from the target's last layer (`layer`, see read_target_layer); it reads the feature, the
                    half that reads the embedding stays random

    fc and layer, together with a muted block, were tried and lost (dev/LOG.md); they are here to be tried again.
    Raises WarmStartError where fc or layer does not fit, and ValueError for an unknown part.
    """
    if unknown := [part for part in parts if part not in WARM_STARTS]:
        raise ValueError(f"warm_start={unknown} is not among {', '.join(WARM_STARTS)}")
    c = draft.config
    H, G = c.hidden_size, c.target_hidden_size
    if "lm_head" in parts and H == G:
        draft.lm_head.weight.copy_(weights.head_VH[draft.target_ids_W])
    if "norm" in parts and H == G:
        draft.norm.weight.copy_(weights.norm_H)
    if "fc" in parts:
        if H != G:
            raise WarmStartError(f"warm start of fc: the drafter is {H} wide, the target {G}; leave 'fc' out")
        draft.fc.weight.zero_()
        draft.fc.weight[:, -G:].copy_(torch.eye(G))
    if "layer" in parts:
        _take_layer(draft.midlayer, layer)


def _take_layer(block, layer: dict) -> None:
    for theirs in LAYER:
        ours = "hidden_norm" if theirs == "input_layernorm" else theirs
        weight = block.get_parameter(f"{ours}.weight")
        # q, k and v read cat(embedding, feature): the target's layer knows the second half
        part = weight[:, weight.shape[1] // 2 :] if theirs.endswith(("q_proj", "k_proj", "v_proj")) else weight
        if part.shape != layer[theirs].shape:
            raise WarmStartError(
                f"warm start of the block: {theirs} is {tuple(layer[theirs].shape)} in the target and "
                f"{tuple(part.shape)} here; leave 'layer' out, or keep the target's width and heads"
            )
        part.copy_(layer[theirs])


def own_embedding(embed_VG: torch.Tensor, hidden_size: int) -> torch.Tensor:
    """A frozen embedding [V, H] made of the target's [V, G]: its first H principal directions, or zeros appended.

    Signs are fixed (the largest entry of each direction is positive), so that every machine gives the same.
    """
    G = embed_VG.shape[1]
    if hidden_size > G:
        return torch.nn.functional.pad(embed_VG, (0, hidden_size - G))
    directions_GG = torch.linalg.eigh((embed_VG.T @ embed_VG).double()).eigenvectors.flip(1)
    top_GH = directions_GG[:, :hidden_size]
    signs_H = top_GH.gather(0, top_GH.abs().argmax(0, keepdim=True)).sign()
    return embed_VG @ (top_GH * signs_H).float()
