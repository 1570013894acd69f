"""Everything a run must remember to go on as if it had never stopped."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from probmargin.core.errors import UsageError
from probmargin.engine.checkpoints import Checkpoint, joined
from probmargin.methods.method import Method
from probmargin.training.perturbation import MovingAverage

NUM_SUMS = 6


def make_optimizer(model: nn.Module, method: Method) -> torch.optim.SGD:
    """Stochastic gradient descent over the parameters that are trained; decay on all of them."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise UsageError("the model has no parameter that can be trained: every one is frozen")
    return torch.optim.SGD(
        trained,
        lr=method.lr,
        momentum=method.momentum,
        weight_decay=method.weight_decay,
        nesterov=method.nesterov,
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
        """The file name of this state; names sort in the order of training."""
        return f"state-{self.epoch:04d}" if self.batch == 0 else f"state-{self.epoch:04d}-{self.batch:05d}"

    def _momentum(self) -> dict[str, torch.Tensor]:
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        buffers = {}
        for parameter, entry in self.optimizer.state.items():
            if entry.get("momentum_buffer") is not None:
                buffers[names[id(parameter)]] = entry["momentum_buffer"]
        return buffers

    def set_lr(self, lr: float) -> None:
        """Use this learning rate from the next step on."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def forget_momentum(self) -> None:
        """Leave the optimizer as if it had taken no step."""
        self.optimizer.state.clear()

    def checkpoint(self, facts: dict[str, Any]) -> Checkpoint:
        """The state as tensors and plain facts."""
        average = {"ema": self.average.tensors} if self.average else {}
        sums = {"sums": {"epoch": self.sums}} if self.sums is not None else {}
        tensors = joined(model=dict(self.model.state_dict()), momentum=self._momentum(), **average, **sums)
        place = {"epoch": self.epoch, "batch": self.batch, "seconds": self.seconds, "images": self.images}
        return Checkpoint(tensors, {**facts, **place})

    def restore(self, checkpoint: Checkpoint) -> None:
        """Become the saved state."""
        self.model.load_state_dict(checkpoint.part("model"))
        parameters = dict(self.model.named_parameters())
        self.optimizer.state.clear()
        for name, buffer in checkpoint.part("momentum").items():
            parameter = parameters[name]
            self.optimizer.state[parameter]["momentum_buffer"] = buffer.to(parameter.device).clone()
        if self.average:
            for name, tensor in checkpoint.part("ema").items():
                self.average.tensors[name].copy_(tensor)
        sums = checkpoint.part("sums").get("epoch")
        device = next(self.model.parameters()).device
        self.sums = None if sums is None else sums.to(device)
        self.epoch, self.batch = checkpoint.facts["epoch"], checkpoint.facts["batch"]
        self.seconds, self.images = checkpoint.facts["seconds"], checkpoint.facts["images"]
