"""One optimizer step: gradients of its micro-batches, summed over the team, clipped, applied.

Shapes: K TTT steps, N anchors, S slots, W draft vocabulary, V target vocabulary, H hidden.

The weights are float32; a working copy in the compute dtype is refreshed once per optimizer step, so no call pays for a
cast (autocast would cast every weight at every TTT step). Gradients of several micro-batches are added up in float32.
Every process holds all weights here; `sharded.py` splits them.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from eagle3lab.draft.batch import TTTBatch
from eagle3lab.draft.recipe import Recipe, build_optimizers
from eagle3lab.draft.team import Team
from eagle3lab.draft.ttt import label_ids, ttt_loss
from eagle3lab.draft.vocab import VocabMap


@dataclass
class StepSums:
    """Over all micro-batches of all processes. Only slots and trained_K count where nothing was measured."""

    loss: float
    slots: int
    trained_K: torch.Tensor  # trained slots of each step
    right_K: torch.Tensor  # and of these, the draft's argmax was the true token
    in_vocabulary: float  # share of step-0 slots whose true token the draft vocabulary holds


class StepLoss(nn.Module):
    """`ttt_loss` of a drafter against a target's head, with what does not change from batch to batch."""

    def __init__(self, draft, target_head_VH: torch.Tensor, recipe: Recipe):
        super().__init__()
        ids_W, device = draft.target_ids_W, draft.target_ids_W.device
        dtype = getattr(torch, recipe.compute_dtype)
        self.draft, self.recipe = draft, recipe
        self.teacher_head_WH = target_head_VH[ids_W.to(target_head_VH.device)].to(device, dtype).contiguous()
        self.draft_id_V = VocabMap(ids_W.cpu(), draft.config.vocab_size).draft_ids().to(device)

    def forward(self, batch: TTTBatch, denominator_K: torch.Tensor, measure: bool):
        return ttt_loss(self.draft, batch, self.teacher_head_WH, self.draft_id_V, self.recipe, denominator_K, measure)


class OptimizerStep:
    """Holds the working copy, the teacher's head and the optimizers of one drafter.

    draft: float32 weights, changed in place by `apply`. target_head_VH: the target's output matrix.
    """

    gradient_scale = 1.0  # what a backward pass must be multiplied by, so that the team's gradients add up

    def __init__(self, draft, target_head_VH: torch.Tensor, recipe: Recipe, team: Team):
        self.draft, self.recipe, self.team = draft, recipe, team
        self.device = draft.target_ids_W.device
        dtype = getattr(torch, recipe.compute_dtype)
        self.work = draft if dtype == torch.float32 else copy.deepcopy(draft).to(dtype)
        self.loss = StepLoss(self.work, target_head_VH, recipe)
        self.optimizers = build_optimizers(draft, recipe)

    def gradients(self, batches: Sequence[TTTBatch], measure: bool, idle: TTTBatch | None = None) -> StepSums:
        """Leaves the gradient of the step's loss in the float32 weights.

        batches: this process's micro-batches. idle: any batch, where this process has one micro-batch less than others.
        """
        K = self.recipe.ttt_steps
        trained_K = sum((batch.weight_KN.sum(1) for batch in batches), torch.zeros(K))
        slots = torch.tensor(float(sum(batch.row_S.numel() for batch in batches)))
        self.team.sum(trained_K, slots)
        denominator_K = trained_K.clamp(min=1) if self.recipe.denominator == "valid" else slots.repeat(K)
        denominator_K = denominator_K.to(self.device)
        loss_sum, right_K = torch.zeros((), dtype=torch.float64), torch.zeros(K)
        named = torch.zeros(())  # step-0 slots whose true token the draft vocabulary holds
        for batch in batches:
            batch = batch.to(self.device)
            loss, correct_KN = self.loss(batch, denominator_K, measure)
            (loss * self.gradient_scale).backward()
            self._collect()
            loss_sum += loss.item()
            right_K += correct_KN.sum(1).cpu()
            if measure:
                named += ((label_ids(batch, self.loss.draft_id_V)[0] >= 0) * batch.weight_KN[0]).sum().cpu()
        self._sum_gradients(idle, denominator_K)
        self.team.sum(loss_sum, right_K, named)
        share = float(named / trained_K[0].clamp(min=1))
        return StepSums(loss_sum.item(), int(slots), trained_K, right_K, share)

    def clip(self) -> float:
        """Scales the gradient to at most `clip_norm`; returns its norm before that."""
        return float(torch.nn.utils.clip_grad_norm_(self.draft.parameters(), self.recipe.clip_norm))

    def apply(self, factor: float) -> None:
        """Updates the weights with `factor` times the peak learning rates."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak_lr"] * factor
            optimizer.step()
        self.forget()
        self.refresh()

    def forget(self) -> None:
        """Drops the gradients."""
        for parameter in self.draft.parameters():
            parameter.grad = None

    @torch.no_grad()
    def refresh(self) -> None:
        """Copies the weights into the working copy."""
        if self.work is not self.draft:
            for parameter, working in zip(self.draft.parameters(), self.work.parameters(), strict=True):
                working.copy_(parameter)

    @contextmanager
    def whole_draft(self) -> Iterator[nn.Module]:
        """The drafter in the compute dtype, to run outside of training."""
        yield self.work

    def _collect(self) -> None:
        """Moves the working copy's gradients into the float32 weights."""
        if self.work is self.draft:
            return
        for parameter, working in zip(self.draft.parameters(), self.work.parameters(), strict=True):
            gradient, working.grad = working.grad.float(), None
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)

    def _sum_gradients(self, idle: TTTBatch | None, denominator_K: torch.Tensor) -> None:
        """Adds the gradients of the whole team up."""
        if self.team.size == 1:
            return
        for parameter in self.draft.parameters():
            if parameter.grad is None:  # this process had no micro-batch
                parameter.grad = torch.zeros_like(parameter)
            self.team.sum(parameter.grad)
