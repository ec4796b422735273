"""The optimizer step with weights, gradients and moments split over the team (torch's FSDP2), for large drafters.

Shapes: K TTT steps, V target vocabulary, H hidden.

Every backward pass exchanges gradients, so every process must make the same number of them: one that has a micro-batch
less runs an idle one with zero weights. Muon's products run on the split matrices as they are.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from eagle3lab.draft.batch import TTTBatch
from eagle3lab.draft.recipe import Recipe, build_optimizers
from eagle3lab.draft.step import OptimizerStep, StepLoss
from eagle3lab.draft.team import Team


class ShardedStep(OptimizerStep):
    """As OptimizerStep; afterwards the drafter's parameters are parts (DTensor), whole again only inside its loss."""

    def __init__(self, draft, target_head_VH: torch.Tensor, recipe: Recipe, team: Team):
        self.draft = self.work = draft
        self.recipe, self.team = recipe, team
        self.device = draft.target_ids_W.device
        self.loss = StepLoss(draft, target_head_VH, recipe)
        self.gradient_scale = float(team.size)  # FSDP2 takes the mean over the processes
        precision = MixedPrecisionPolicy(
            param_dtype=getattr(torch, recipe.compute_dtype), reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        fully_shard(self.loss, mesh=init_device_mesh(self.device.type, (team.size,)), mp_policy=precision)
        self.optimizers = build_optimizers(draft, recipe)

    def clip(self) -> float:
        norm = torch.nn.utils.clip_grad_norm_(self.draft.parameters(), self.recipe.clip_norm)
        return float(norm.full_tensor())

    @contextmanager
    def whole_draft(self) -> Iterator[nn.Module]:
        self.loss.unshard()
        try:
            yield self.draft
        finally:
            self.loss.reshard()

    def _collect(self) -> None:
        pass  # gradients are in the float32 parts already

    def _sum_gradients(self, idle: TTTBatch | None, denominator_K: torch.Tensor) -> None:
        if idle is not None:
            silent = replace(idle, weight_KN=torch.zeros_like(idle.weight_KN)).to(self.device)
            self.loss(silent, denominator_K, False)[0].backward()
