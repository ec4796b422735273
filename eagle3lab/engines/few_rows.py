"""Matrix products of a few tokens in float32 on a CPU, where the usual route is several times slower than it need be.

Shapes: M tokens of a forward pass, N and K output and input size of a linear layer.

Decoding runs 1 token at a time and verification a handful. `torch.nn.functional.linear` computes x_MK times the
transpose of w_NK; for 1 < M < 8 MKL then takes longer than for M = 8 (SmolLM2-135M, 2 cores, all layers without the
head: 1 token 37 ms, 3 tokens 66 ms, 8 tokens 43 ms). The same product written as w_NK times x_KM takes 16 ms for 2
tokens, 22 for 3, 25 for 4, 37 for 8, and nothing is gained beyond. One token is run as two, since the matrix-vector
product takes 37 ms too. bfloat16 has no such gap: 21 to 22 ms from 1 to 8 tokens.
"""

import torch
from torch import nn

MOST_ROWS = 8


class FewRowsLinear(nn.Linear):
    """A linear layer whose products of at most MOST_ROWS rows are written the other way round."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [.., K] -> [.., N], equal to nn.Linear's up to float32 rounding."""
        x_MK = x.reshape(-1, x.shape[-1]).contiguous()  # another order in memory brings the slow route back
        rows = x_MK.shape[0]
        if not 0 < rows <= MOST_ROWS:
            return super().forward(x)
        if rows == 1:
            x_MK = x_MK.repeat(2, 1)
        out_MN = (self.weight @ x_MK.t()).t()[:rows].contiguous()
        if self.bias is not None:
            out_MN = out_MN + self.bias
        return out_MN.reshape(*x.shape[:-1], -1)


def speed_up_few_rows(model: nn.Module) -> None:
    """Lets a float32 model on a CPU use them: every plain nn.Linear becomes a FewRowsLinear of the same weights."""
    for module in model.modules():
        if type(module) is nn.Linear and module.weight.dtype == torch.float32 and module.weight.device.type == "cpu":
            module.__class__ = FewRowsLinear
