"""Everything a run must remember to go on as if it had never stopped."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from probmargin.engine.checkpoints import Checkpoint, joined
from probmargin.methods.method import Method
from probmargin.models.checks import trained_parameters
from probmargin.training.perturbation import MovingAverage

NUM_SUMS = 8
_MANY = 10**9
"""Steps after which an average keeps its full decay, whatever it is."""


def make_optimizer(model: nn.Module, method: Method) -> torch.optim.SGD:
    """Stochastic gradient descent over the parameters that are trained; decay on all of them."""
    trained = trained_parameters(model)
    on_cuda = trained[0].is_cuda
    return torch.optim.SGD(
        trained,
        # A tensor, so that a captured step sees every change of the rate.
        lr=torch.tensor(method.lr, device=trained[0].device) if on_cuda else method.lr,
        momentum=method.momentum,
        weight_decay=method.weight_decay,
        nesterov=method.nesterov,
        fused=on_cuda,
    )


@dataclass
class TrainState:
    """Where a run stands: tensors, and how far it has come."""

    model: nn.Module
    optimizer: torch.optim.SGD
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

    def _momentum(self) -> dict[str, torch.Tensor]:
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        buffers = {}
        for parameter, entry in self.optimizer.state.items():
            if entry.get("momentum_buffer") is not None:
                buffers[names[id(parameter)]] = entry["momentum_buffer"]
        return buffers

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

    def fill_momentum(self) -> None:
        """Give every parameter a momentum laid out as it is, zero where it had none: the next step stays the same."""
        for parameter in self.optimizer.param_groups[0]["params"]:
            found = self.optimizer.state[parameter].get("momentum_buffer")
            fitting = torch.zeros_like(parameter)
            self.optimizer.state[parameter]["momentum_buffer"] = fitting if found is None else fitting.copy_(found)

    def forget_momentum(self) -> None:
        """Leave the optimizer as if it had taken no step; in place, where a captured step looks for it."""
        for entry in self.optimizer.state.values():
            entry["momentum_buffer"].zero_()

    def checkpoint(self, facts: dict[str, Any]) -> Checkpoint:
        """The state as tensors and plain facts."""
        average = {"ema": self.average.tensors} if self.average else {}
        under_way = {"epoch": self.sums, "examples": self.examples} if self.batch else {}
        sums = {"sums": {name: tensor for name, tensor in under_way.items() if tensor is not None}}
        tensors = joined(model=dict(self.model.state_dict()), momentum=self._momentum(), **average, **sums)
        place = {"epoch": self.epoch, "batch": self.batch, "seconds": self.seconds, "images": self.images}
        counts = {"average_steps": self.average.steps} if self.average else {}
        return Checkpoint(tensors, {**facts, **place, **counts, "best": self.best, "top_accuracy": self.top_accuracy})

    def restore(self, checkpoint: Checkpoint) -> None:
        """Become the saved state."""
        self.model.load_state_dict(checkpoint.part("model"))
        parameters = dict(self.model.named_parameters())
        self.optimizer.state.clear()
        for name, buffer in checkpoint.part("momentum").items():
            parameter = parameters[name]
            self.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter).copy_(buffer)
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
            self.examples.copy_(examples)
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
