"""Muon with its products in float32, for CPUs that compute in it.

Shapes: M, N a weight's sides, M <= N after transposing.
"""

import math

import torch


class Float32Muon(torch.optim.Muon):
    """torch.optim.Muon, scaled to AdamW's RMS, but for its Newton-Schulz products, which are always bfloat16 there: a
    CPU without instructions for it takes five times as long for them, and longer than for all the rest of a step."""

    @torch.no_grad()
    def step(self, closure=None):
        """One step; returns what `closure` gives."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params, grads, buffers = [], [], []
            self._init_group(group, params, grads, buffers)
            for weight, grad, buffer in zip(params, grads, buffers, strict=True):
                buffer.lerp_(grad, 1 - group["momentum"])
                update = grad.lerp(buffer, group["momentum"]) if group["nesterov"] else buffer
                update = newton_schulz(update, group["ns_coefficients"], group["ns_steps"], group["eps"])
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(update, alpha=-group["lr"] * 0.2 * math.sqrt(max(weight.shape)))
        return loss


def newton_schulz(update, coefficients, steps: int, eps: float):
    """The update with its singular values brought near one, in its own precision, same shape.

    X <- a X + (b X X^T + c (X X^T)^2) X, from X of norm one (Jordan et al., Muon, 2024).
    """
    a, b, c = coefficients
    x_MN = update.T if update.shape[0] > update.shape[1] else update
    x_MN = x_MN / x_MN.norm().clamp(min=eps)
    for _ in range(steps):
        gram_MM = x_MN @ x_MN.T
        x_MN = torch.addmm(x_MN, torch.addmm(gram_MM, gram_MM, gram_MM, beta=b, alpha=c), x_MN, beta=a)
    return x_MN.T if update.shape[0] > update.shape[1] else x_MN
