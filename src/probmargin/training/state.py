"""Everything a run must remember to go on as if it had never stopped."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from probmargin.engine.checkpoints import Checkpoint, joined
from probmargin.methods.method import Method
from probmargin.training.optimizer import Memory, make_optimizer
from probmargin.training.perturbation import MovingAverage

NUM_SUMS = 8
_MANY = 10**9
"""Steps after which an average keeps its full decay, whatever it is."""


@dataclass
class TrainState:
    """Where a run stands: tensors, and how far it has come."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: MovingAverage | None
    epoch: int = 0
    """Epochs behind us; with `batch` > 0, the epoch (from 0) that was under way."""
    batch: int = 0
    """Batches of that epoch behind us."""
    sums: torch.Tensor | None = None
    """What the epoch under way has added up."""
    examples: torch.Tensor | None = None
    """What each example did in the epoch under way; None where nobody asks."""
    best: dict[str, Any] | None = None
    """The best epoch on the held-out images so far."""
    top_accuracy: float = 0.0
    """The highest accuracy on an epoch's training batches so far."""
    seconds: float = 0.0
    """Time spent training, over all starts."""
    images: int = 0
    """Images trained on, over all starts."""

    @classmethod
    def fresh(cls, model: nn.Module, method: Method) -> "TrainState":
        """The state before the first step."""
        average = MovingAverage(model, method.ema) if method.ema else None
        return cls(model=model, optimizer=make_optimizer(model, method), average=average)

    @property
    def name(self) -> str:
        """The file name of this state: epochs and, within one, batches."""
        return f"state-{self.epoch:04d}" if self.batch == 0 else f"state-{self.epoch:04d}-{self.batch:05d}"

    @property
    def memory(self) -> Memory:
        """What the optimizer remembers."""
        return Memory(self.model, self.optimizer)

    def before_step(self, lr: float) -> None:
        """Use this learning rate, and the average's share of a step, from the next step on."""
        if self.average:
            self.average.prepare()
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def after_step(self) -> None:
        """Count a step that was taken."""
        if self.average:
            self.average.steps += 1

    def checkpoint(self, facts: dict[str, Any]) -> Checkpoint:
        """The state as tensors and plain facts."""
        average = {"ema": self.average.tensors} if self.average else {}
        under_way = {"epoch": self.sums, "examples": self.examples} if self.batch else {}
        sums = {"sums": {name: tensor for name, tensor in under_way.items() if tensor is not None}}
        tensors = joined(model=dict(self.model.state_dict()), momentum=self.memory.named(), **average, **sums)
        place = {"epoch": self.epoch, "batch": self.batch, "seconds": self.seconds, "images": self.images}
        counts = {"average_steps": self.average.steps} if self.average else {}
        return Checkpoint(tensors, {**facts, **place, **counts, "best": self.best, "top_accuracy": self.top_accuracy})

    def restore(self, checkpoint: Checkpoint) -> None:
        """Become the saved state."""
        self.model.load_state_dict(checkpoint.part("model"))
        self.memory.restore(checkpoint.part("momentum"))
        if self.average:
            for name, tensor in checkpoint.part("ema").items():
                self.average.tensors[name].copy_(tensor)
            # States of earlier versions do not tell: their average had its full decay from the first step.
            self.average.steps = checkpoint.facts.get("average_steps", _MANY)
        sums = checkpoint.part("sums").get("epoch")
        device = next(self.model.parameters()).device
        self.sums = None if sums is None else sums.to(device)
        examples = checkpoint.part("sums").get("examples")
        if self.examples is not None and examples is not None:
            # States of earlier versions hold fewer rows.
            self.examples.fill_(torch.nan)
            self.examples[: len(examples)].copy_(examples)
        self.best, self.top_accuracy = checkpoint.facts.get("best"), checkpoint.facts.get("top_accuracy", 0.0)
        self.epoch, self.batch = checkpoint.facts["epoch"], checkpoint.facts["batch"]
        self.seconds, self.images = checkpoint.facts["seconds"], checkpoint.facts["images"]

    def begin_epoch(self, epoch: int) -> None:
        """Stand before the first batch of an epoch, with nothing added up."""
        self.epoch = epoch
        self.sums = torch.zeros(NUM_SUMS, dtype=torch.float64, device=next(self.model.parameters()).device)
        if self.examples is not None:
            self.examples.zero_()

    def forget_sums(self) -> None:
        """Leave what an epoch under way has added up to another process."""
        for tensor in (self.sums, self.examples):
            if tensor is not None:
                tensor.zero_()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Run the block with the moving average in the model's place, where the recipe keeps one."""
        if self.average is None:
            yield
            return
        own = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        self._copy(self.average.tensors)
        try:
            yield
        finally:
            self._copy(own)

    @torch.no_grad()
    def _copy(self, tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in self.model.state_dict().items():
            tensor.copy_(tensors[name])
