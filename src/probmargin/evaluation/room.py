"""How many images go through a network at once."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from probmargin.attacks.attack import logits_without_gradient
from probmargin.core.errors import UsageError
from probmargin.core.types import Classifier, Images, Logits

T = TypeVar("T")

_CPU_NUMBERS = 2**20
"""Pixel values that go through a network at once on a CPU."""
_CPU_EXAMPLES, _CUDA_EXAMPLES = 512, 1000
"""Examples that are attacked at once: more of them take memory and bring little speed."""
_BLOCK = 64
_LEAST_ROWS, _MOST_ROWS = 16, 4096
_PROBE_ROWS = 32


@dataclass
class Room:
    """How many images go through the network at once; halved, for good, where memory does not allow it."""

    rows: int
    examples: int
    """How many examples are attacked at once, however few images each of them costs."""
    block: int = field(init=False)
    """How many images go through the network where a verdict is made: always as many, since kernels differ by it."""

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise UsageError(f"batch_size must be 1 or more, not {self.rows}")
        self.block = min(_BLOCK, self.rows)

    def at_once(self, share: int = 1) -> int:
        """How many examples are attacked at once; each of them costs `share` images."""
        return max(1, min(self.rows // share, self.examples))

    def logits(self, call: Classifier, x: Images) -> Logits:
        """Without a gradient, in blocks of one size, the last filled with copies of its first image.

        What is said of an image does then not depend on how many are judged beside it; smaller blocks, for good, where
        memory does not allow them.
        """
        found: list[Logits] = []
        position = 0
        while position < len(x):
            part = x[position : position + self.block]
            filled = torch.cat([part, part[:1].expand(self.block - len(part), *part.shape[1:])])
            try:
                found.append(logits_without_gradient(call, filled)[: len(part)])
            except torch.OutOfMemoryError:
                if self.block == 1:
                    raise
                self.block //= 2
                torch.cuda.empty_cache()
                continue
            position += len(part)
        return torch.cat(found)

    def in_chunks(self, rows: torch.Tensor, work: Callable[[torch.Tensor], T], share: int = 1) -> Iterator[T]:
        """The work's results on consecutive pieces of `rows`; each of them costs `share` images."""
        position = 0
        while position < len(rows):
            part = rows[position : position + self.at_once(share)]
            try:
                made = work(part)
            except torch.OutOfMemoryError:
                if len(part) == 1:
                    raise
                self.rows = max(1, (len(part) * share) // 2)
                torch.cuda.empty_cache()
                continue
            position += len(part)
            yield made


def find_room(call: Classifier, x: Images, batch_size: int | None) -> Room:
    """As asked for; else about a million pixel values on a CPU, and on a GPU what half of its free memory takes."""
    if batch_size is not None:
        return Room(batch_size, batch_size)
    if not x.is_cuda:
        return Room(min(max(_CPU_NUMBERS // x[0].numel(), _LEAST_ROWS), _MOST_ROWS), _CPU_EXAMPLES)
    few = x[:_PROBE_ROWS].detach().requires_grad_()
    # The first pass is not measured: libraries that choose their kernels then take room they do not need later.
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats(x.device)
        before = torch.cuda.memory_allocated(x.device)
        torch.autograd.grad(call(few).sum(), few)
    # A search keeps a dozen tensors of the images' size beside what the network needs.
    needed = (torch.cuda.max_memory_allocated(x.device) - before) / len(few) + 16 * x[0].numel() * x.element_size()
    free, _ = torch.cuda.mem_get_info(x.device)
    return Room(int(min(max(0.5 * free / needed, 1), _MOST_ROWS)), _CUDA_EXAMPLES)
