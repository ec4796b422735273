"""The processes that train together: each works on its share of every optimizer step, then gradients are summed.

That is data parallelism by hand: torch's DistributedDataParallel wants the same number of backward passes in every
process, which the last step of an epoch does not have. Sums over processes go through torch.distributed (gloo for CPU
tensors, nccl for GPU tensors), so all processes hold the same gradients and make the same update.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Team:
    """`size` processes, of which this is number `rank`. The default is a process on its own."""

    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls) -> "Team":
        """The team that torch.distributed.run started (its environment variables); without it, a process alone."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls()
        if not dist.is_initialized():
            dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        return cls(dist.get_rank(), dist.get_world_size())

    def leave(self) -> None:
        """Ends the group."""
        if self.size > 1:
            dist.destroy_process_group()

    @property
    def leads(self) -> bool:
        """Does this process write the files."""
        return self.rank == 0

    def share(self, items: Sequence) -> Sequence:
        """This process's part of the items: every `size`-th one."""
        return items[self.rank :: self.size]

    def sum(self, *tensors: torch.Tensor) -> None:
        """Replaces each tensor by its sum over the team, in place. Every process must call it, with equal shapes."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)


ALONE = Team()
