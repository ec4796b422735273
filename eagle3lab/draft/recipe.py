"""The training recipe: every knob of the optimisation in one place, its schedule, and its optimizers.

Shapes: K TTT steps.
"""

import math
from dataclasses import asdict, dataclass, fields

import torch

from eagle3lab.draft.batch import MASKS
from eagle3lab.draft.muon import Float32Muon
from eagle3lab.features.precision import resolve_dtype
from eagle3lab.workbench.ranges import outside

LK_FORMS = ("linear", "log")
LONG_ROWS = ("windows", "drop")


@dataclass(frozen=True)
class Recipe:
    """How a drafter is trained. Learning rates are the peaks of a warm-up + cosine schedule.

    Raises ValueError, with the name of the knob, for a value that cannot be meant.
    """

    ttt_steps: int = 3
    step_decay: float = 0.8  # weight of TTT step i in the loss: step_decay ** i
    step_weights: tuple[float, ...] | None = None  # or the weights themselves, one for each TTT step
    loss_mask_kind: str = "strict"
    denominator: str = "valid"  # "valid": mean over trained slots; "all": mean over every slot of the batch
    drop_oov: bool = True  # leave out slots whose token is not in the draft vocabulary
    lk_weight: float = 0.0  # share of the LK loss in the loss; the rest is soft cross-entropy
    lk_form: str = "linear"  # LK loss from the acceptance a = sum min(p, q): "linear" 1 - a, "log" -log a
    warm_start: tuple[str, ...] = ("lm_head", "norm")  # what starts from the target, see draft/start.py
    optimizer: str = "muon"  # "muon": Muon on the block's matrices, AdamW on head and norms; "adamw": AdamW on all
    lr: float = 3e-3
    head_lr: float = 3e-3
    weight_decay: float = 0.0
    warmup_share: float = 0.05
    final_lr_share: float = 0.02
    clip_norm: float = 1.0
    epochs: int = 1
    batch_tokens: int = 512  # slots of one micro-batch, padding included
    accumulate: int = 1  # micro-batches of one optimizer step, over all processes together
    max_length: int | None = None  # rows longer than this are cut or dropped; None = rows of any length are kept whole
    long_rows: str = "windows"  # "windows": cut so that every slot is trained once; "drop": left out, and counted
    window_tokens: int | None = None  # rows are shuffled within whole shards of so many tokens; None = all rows at once
    explode_factor: float | None = 3.0  # stop when a logged loss exceeds this many times the first one; None = never
    compute_dtype: str = "auto"  # of the matrix products; the field holds what "auto" stands for on this machine
    seed: int = 0

    def __post_init__(self):
        for name in ("step_weights", "warm_start"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(getattr(self, name)))
        choices = {
            "loss_mask_kind": MASKS,
            "denominator": ("valid", "all"),
            "lk_form": LK_FORMS,
            "optimizer": ("muon", "adamw"),
            "long_rows": LONG_ROWS,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of {', '.join(allowed)}")
        object.__setattr__(self, "compute_dtype", resolve_dtype(self.compute_dtype, name="compute_dtype"))
        if broken := outside(vars(self)):
            raise ValueError("; ".join(broken))
        if self.step_weights is not None and len(self.step_weights) != self.ttt_steps:
            raise ValueError(f"step_weights={list(self.step_weights)} must be {self.ttt_steps} weights (ttt_steps)")
        if self.max_length is not None and self.max_length < self.ttt_steps + 2:
            raise ValueError(
                f"max_length={self.max_length} is too short: a slot and its {self.ttt_steps} TTT steps need "
                f"{self.ttt_steps + 2} tokens"
            )

    @classmethod
    def of(cls, parameters) -> "Recipe":
        """The recipe in a notebook's parameters: a knob is a parameter of the same name; others keep their default."""
        named = [field.name for field in fields(cls) if hasattr(parameters, field.name)]
        return cls(**{name: getattr(parameters, name) for name in named})

    def weights_K(self) -> torch.Tensor:
        """Weight of each TTT step in the loss, float32 [K]."""
        if self.step_weights is not None:
            return torch.tensor(self.step_weights, dtype=torch.float32)
        return self.step_decay ** torch.arange(self.ttt_steps, dtype=torch.float32)

    def to_dict(self) -> dict:
        """JSON values; window_tokens is left out when off: trainings from before it go on."""
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {name: value for name, value in values.items() if value is not None or name != "window_tokens"}


def schedule(step: int, total: int, recipe: Recipe) -> float:
    """Factor on the learning rates at optimizer step `step` (0-based): linear warm-up, then cosine."""
    warmup = max(1, round(recipe.warmup_share * total))
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, total - warmup)
    return recipe.final_lr_share + (1 - recipe.final_lr_share) * 0.5 * (1 + math.cos(math.pi * progress))


def build_optimizers(draft, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Optimizers over the float32 weights; each group remembers its peak in `peak_lr`.

    Muon (torch.optim.Muon, update scaled to AdamW's RMS; its products in the recipe's precision) takes the matrices
    inside the block and `fc`; the head and the norms stay with AdamW, as Muon's authors advise for input and output
    layers.
    """
    block = [p for name, p in draft.named_parameters() if p.dim() == 2 and not name.startswith("lm_head")]
    others = [p for name, p in draft.named_parameters() if p.dim() != 2 or name.startswith("lm_head")]

    def adamw(parameters, lr):
        return torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.95), weight_decay=recipe.weight_decay, fused=True)

    if recipe.optimizer == "muon":
        kind = Float32Muon if recipe.compute_dtype == "float32" else torch.optim.Muon
        muon = kind(block, lr=recipe.lr, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw")
        optimizers = [muon, adamw(others, recipe.head_lr)]
    else:
        optimizers = [adamw(block, recipe.lr), adamw(others, recipe.head_lr)]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


def moments(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    """What one of these optimizers remembers of each weight once it has moved it: of the weight's shape, but for the
    number of its steps, `step`, which has none."""
    return ("exp_avg", "exp_avg_sq", "step") if isinstance(optimizer, torch.optim.AdamW) else ("momentum_buffer",)
