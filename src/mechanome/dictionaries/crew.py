"""Processes that fit together: each takes a part of every batch, and all end each step with the same weights.

What a batch decides as a whole (means, the largest values, which latents fired) is decided over all parts, so that two
processes do what one would with the whole batch. Alone, every method here is the identity.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from mechanome.core.errors import BadInput


@dataclass(frozen=True)
class Crew:
    """This process among those that fit together.

    Args:
        rank: which one, from 0.
        size: how many.
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def launched(cls) -> Crew:
        """The processes that `torchrun` started; joins them (gloo on CPUs, nccl on GPUs).

        Raises:
            BadInput: not started by `torchrun`.
        """
        if not dist.is_initialized():
            if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
                fix = "start with `torchrun --nproc-per-node 2 script.py`, or parallel=False"
                raise BadInput("parallel fit", "this process is not one of several", fix)
            dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def alone(self) -> bool:
        """Whether there is no other."""
        return self.size == 1

    def share(self, rows: int) -> slice:
        """This process's rows of a batch."""
        return slice(rows * self.rank // self.size, rows * (self.rank + 1) // self.size)

    def total(self, values: Tensor) -> Tensor:
        """Sum over processes, without gradient."""
        if self.alone:
            return values
        values = values.detach().clone()
        dist.all_reduce(values)
        return values

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by their sums over processes."""
        if not self.alone:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def agree(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by those of the first process."""
        if not self.alone:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def gather(self, values: Tensor) -> list[Tensor]:
        """The lists `[n]` of all processes, of any lengths, in order of rank."""
        if self.alone:
            return [values]
        sizes = [torch.zeros(1, dtype=torch.int64, device=values.device) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(values)], device=values.device))
        longest = max(int(n) for n in sizes)
        padded = torch.cat([values, values.new_zeros(longest - len(values))])
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded)
        return [part[: int(n)] for part, n in zip(parts, sizes)]


ALONE = Crew()
"""A process by itself."""
