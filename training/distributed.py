"""Several processes as one: started by torchrun, they average gradients and agree on when to stop.

Gradients are averaged in one flat buffer after the backward pass instead of by DistributedDataParallel: that also
holds for the double backward of a gradient penalty, for accumulation and for a discriminator that is used several
times a step, and a number that is not finite in one process reaches all, so that all skip the same step.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Group:
    """The processes of a run.

    Attributes:
        rank: this process, from 0; the first one validates and writes.
        world: number of processes.
    """

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    def average_gradients(self, parameters: Iterable[nn.Parameter], loss: Tensor) -> Tensor:
        """Replaces every gradient by its mean over the processes.

        Args:
            parameters: those with a gradient; the same ones in every process.
            loss: this process's loss, a scalar.

        Returns:
            The mean loss.
        """
        if self.world == 1:
            return loss
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([loss.reshape(1).float(), *(g.flatten().float() for g in gradients)])
        dist.all_reduce(flat)
        flat /= self.world
        offset = 1
        for gradient in gradients:
            gradient.copy_(flat[offset : offset + gradient.numel()].view_as(gradient))
            offset += gradient.numel()
        return flat[0]

    def largest(self, values: list[float], device: torch.device) -> list[float]:
        """The largest of each value over the processes."""
        if self.world == 1:
            return values
        shared = torch.tensor(values, dtype=torch.float64, device=device)
        dist.all_reduce(shared, dist.ReduceOp.MAX)
        return shared.tolist()

    def wait(self) -> None:
        """Returns when every process is here."""
        if self.world > 1:
            dist.barrier()

    def leave(self) -> None:
        """Ends the group."""
        if self.world > 1:
            dist.destroy_process_group()


def launched() -> bool:
    """Whether torchrun started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def local_device(device: torch.device) -> torch.device:
    """This process's own GPU where torchrun started several on one machine."""
    if launched() and device.type == "cuda" and device.index is None:
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return device


def join(device: torch.device) -> Group:
    """Joins the processes that torchrun started, over nccl on GPUs and gloo elsewhere; alone without torchrun."""
    if not launched() or int(os.environ["WORLD_SIZE"]) == 1:
        return Group()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Group(rank=dist.get_rank(), world=dist.get_world_size())
