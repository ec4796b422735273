"""The training recipe: every knob of the optimisation in one place, its schedule, and its optimizers.

Shapes: K TTT steps.
"""

import math
from dataclasses import asdict, dataclass, fields

import torch

from eagle3lab.draft.batch import MASKS


@dataclass(frozen=True)
class Recipe:
    """How a drafter is trained. Learning rates are the peaks of a warm-up + cosine schedule."""

    ttt_steps: int = 3
    step_decay: float = 0.8  # weight of TTT step i in the loss: step_decay ** i
    loss_mask_kind: str = "strict"
    denominator: str = "valid"  # "valid": mean over trained slots; "all": mean over every slot of the batch
    drop_oov: bool = True  # leave out slots whose token is not in the draft vocabulary
    lk_weight: float = 0.0
    optimizer: str = "muon"  # "muon": Muon on the block's matrices, AdamW on head and norms; "adamw": AdamW on all
    lr: float = 3e-3
    head_lr: float = 3e-3
    weight_decay: float = 0.0
    warmup_share: float = 0.05
    final_lr_share: float = 0.02
    clip_norm: float = 1.0
    epochs: int = 1
    batch_tokens: int = 512  # slots of one micro-batch, padding included
    accumulate: int = 1  # micro-batches of one optimizer step
    compute_dtype: str = "bfloat16"
    seed: int = 0

    def __post_init__(self):
        if self.loss_mask_kind not in MASKS:
            raise ValueError(f"loss_mask_kind={self.loss_mask_kind!r} is not one of {', '.join(MASKS)}")
        for name, allowed in (("denominator", ("valid", "all")), ("optimizer", ("muon", "adamw"))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of {', '.join(allowed)}")
        for name in ("ttt_steps", "epochs", "batch_tokens", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}, at least 1 is needed")
        if not 0 <= self.lk_weight <= 1:
            raise ValueError(f"lk_weight={self.lk_weight} is not in 0..1")

    @classmethod
    def of(cls, parameters, **changes) -> "Recipe":
        """The recipe in a notebook's parameters: every knob is a parameter of the same name."""
        return cls(**{field.name: getattr(parameters, field.name) for field in fields(cls)} | changes)

    def step_weights(self) -> torch.Tensor:
        """float32 [K]."""
        return self.step_decay ** torch.arange(self.ttt_steps, dtype=torch.float32)

    def to_dict(self) -> dict:
        return asdict(self)


def schedule(step: int, total: int, recipe: Recipe) -> float:
    """Factor on the learning rates at optimizer step `step` (0-based): linear warm-up, then cosine."""
    warmup = max(1, round(recipe.warmup_share * total))
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, total - warmup)
    return recipe.final_lr_share + (1 - recipe.final_lr_share) * 0.5 * (1 + math.cos(math.pi * progress))


def build_optimizers(draft, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Optimizers over the float32 weights; each group remembers its peak in `peak_lr`.

    Muon (torch.optim.Muon, update scaled to AdamW's RMS) takes the matrices inside the block and `fc`; the head and
    the norms stay with AdamW, as Muon's authors advise for input and output layers.
    """
    block = [p for name, p in draft.named_parameters() if p.dim() == 2 and not name.startswith("lm_head")]
    others = [p for name, p in draft.named_parameters() if p.dim() != 2 or name.startswith("lm_head")]

    def adamw(parameters, lr):
        return torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.95), weight_decay=recipe.weight_decay, fused=True)

    if recipe.optimizer == "muon":
        muon = torch.optim.Muon(block, lr=recipe.lr, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw")
        optimizers = [muon, adamw(others, recipe.head_lr)]
    else:
        optimizers = [adamw(block, recipe.lr), adamw(others, recipe.head_lr)]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers
