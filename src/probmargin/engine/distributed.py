"""Several processes that train one model, started by torchrun."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from probmargin.core.errors import UsageError

T = TypeVar("T")
_LOST = ("gloo/", "NCCL", "by peer")
"""In the words of what connects processes."""


@dataclass(frozen=True)
class World:
    """This process among all processes of a run."""

    rank: int = 0
    size: int = 1

    @property
    def is_writer(self) -> bool:
        """Only one process writes files and prints."""
        return self.rank == 0

    def rows(self, count: int) -> slice:
        """This process's share of `count` rows; shares differ by one at most and keep the order.

        >>> [World(rank, 3).rows(10) for rank in range(3)]
        [slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)]
        """
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def reduce(self, total: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over all processes."""
        if self.size == 1:
            return total
        summed = total.detach().clone()
        dist.all_reduce(summed)
        return summed

    def wait(self) -> None:
        """Go on when every process has come here."""
        if self.size > 1:
            dist.barrier()

    def any(self, flag: bool) -> bool:
        """Did any process raise its flag? Goes through the host, so that no device has to wait."""
        if self.size == 1:
            return flag
        votes = torch.tensor(int(flag))
        dist.all_reduce(votes)
        return bool(votes > 0)

    def from_writer(self, make: Callable[[], T]) -> T:
        """What the writing process makes, in every process; where it fails, all end, and it alone says why."""
        if self.size == 1:
            return make()
        answer: list[Any] = [None, None]
        error: Exception | None = None
        if self.is_writer:
            try:
                answer = [make(), None]
            except Exception as caught:
                error, answer = caught, [None, 2 if isinstance(caught, UsageError) else 1]
        dist.broadcast_object_list(answer, src=0, device=torch.device("cpu"))
        if error is not None:
            raise error
        if answer[1] is not None:
            raise SystemExit(answer[1])
        made: T = answer[0]
        return made


def is_lost_process(error: RuntimeError) -> bool:
    """Whether an error is that of processes which do not reach each other any more; gloo's have no type of their own.

    >>> is_lost_process(RuntimeError("[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1"))
    True
    >>> is_lost_process(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    False
    """
    return isinstance(error, dist.DistError) or any(word in str(error) for word in _LOST)


@contextmanager
def process_group(device: torch.device) -> Iterator[World]:
    """Join the processes that torchrun started; alone where there are none."""
    if dist.is_available() and dist.is_initialized():
        yield World(dist.get_rank(), dist.get_world_size())
        return
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield World()
        return
    # Tensors on the host go through gloo even where devices talk by NCCL: votes must not wait for a device.
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(dist.get_rank(), dist.get_world_size())
        # The first process to end makes torchrun look at the others: all end together.
        dist.barrier()
    finally:
        dist.destroy_process_group()


def local_device(device: torch.device, world: World) -> torch.device:
    """The device of this process: one GPU each."""
    if world.size == 1 or device.type != "cuda" or device.index is not None:
        return device
    number = int(os.environ.get("LOCAL_RANK", "0"))
    if number >= torch.cuda.device_count():
        raise UsageError(
            f"process {number} has no GPU: start at most {torch.cuda.device_count()} with --nproc-per-node"
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)
