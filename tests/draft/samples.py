"""A tiny drafter and random feature rows, made from seeds."""

from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load_file

from eagle3lab.draft.config import DraftConfig
from eagle3lab.draft.model import Eagle3Draft
from eagle3lab.features.slots import teacher_slots

V, W, H, A, L = 40, 17, 16, 3, 8


def make_row(seed: int, length: int, spans, dtype=torch.float32):
    """A feature row with random tokens and states; `spans` are the generated parts."""
    generator = torch.Generator().manual_seed(seed)
    mask_T = torch.zeros(length, dtype=torch.bool)
    for start, end in spans:
        mask_T[start:end] = True
    slots = teacher_slots(mask_T)
    last_TH = torch.randn(length, H, generator=generator)
    return SimpleNamespace(
        id=f"row-{seed}",
        input_ids_T=torch.randint(0, V, (length,), generator=generator),
        loss_mask_T=mask_T,
        aux_TAH=torch.randn(length, A, H, generator=generator).to(dtype),
        last_slots=slots,
        last_MH=last_TH[slots].to(dtype),
    )


def agent_rows() -> list[SimpleNamespace]:
    """Short answers after much that is only read: few anchors. Two turns, one, and one of another length."""
    return [make_row(1, 60, [(40, 44), (50, 56)]), make_row(2, 37, [(30, 37)]), make_row(3, 90, [(80, 90)])]


def pickle_tensors(folder: Path) -> Path:
    """Lets the folder hold its tensors as EAGLE's authors publish them."""
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder


def make_draft(seed: int = 0, **changes) -> Eagle3Draft:
    """`changes` are fields of DraftConfig."""
    config = DraftConfig(
        **{
            "hidden_size": H,
            "intermediate_size": 24,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "vocab_size": V,
            "draft_vocab_size": W,
            "target_hidden_size": H,
            "aux_layers": (2, 4, 5),
            "target_num_layers": L,
            "rms_norm_eps": 1e-6,
        }
        | changes
    )
    generator = torch.Generator().manual_seed(seed)
    ids = config.vocab_size
    target_ids = torch.randperm(ids, generator=generator)[: config.draft_vocab_size].sort().values
    draft = Eagle3Draft(config, torch.randn(ids, config.hidden_size, generator=generator), target_ids)
    with torch.no_grad():
        for parameter in draft.parameters():  # larger than the usual start, so that every path matters
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * 0.3 if parameter.dim() == 2 else 1 + 0.2 * noise)
    return draft
