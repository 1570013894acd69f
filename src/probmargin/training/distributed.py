"""A network trained by several processes."""

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from probmargin.core.errors import UsageError
from probmargin.core.types import Images, Logits
from probmargin.engine.devices import Precision
from probmargin.engine.distributed import World
from probmargin.models.checks import leaves_parameters_out
from probmargin.training.network import Network


class DistributedNetwork(Network):
    """Loss passes go through torch's DistributedDataParallel; attacks use the model itself.

    Batch norm normalises with each process's own images, unless its layers are SyncBatchNorm. Its running statistics
    are averaged over the processes after every step, so that all attack, evaluate and save one model.
    """

    def __init__(
        self, model: nn.Module, precision: Precision, world: World, image_shape: tuple[int, ...] | None = None
    ) -> None:
        super().__init__(model, precision)
        self.world = world
        # Looking for parameters that a pass leaves out costs time: only where one is known to be.
        own = image_shape is not None and leaves_parameters_out(model, image_shape, type(model).__name__)
        self._wrapped = DistributedDataParallel(model, find_unused_parameters=world.any(own))
        # Buffers are not broadcast: a second forward pass before the backward pass would find them changed. The
        # constructor's own argument for this has another name from torch 2.13 on.
        self._wrapped.require_forward_param_sync = False
        norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and not isinstance(m, nn.SyncBatchNorm)]
        pairs = [(module.running_mean, module.running_var) for module in norms]
        self._statistics = [tensor for pair in pairs for tensor in pair if tensor is not None]

    def forward(self, x: Images) -> Logits:
        """Training-mode pass with gradient; moves batch-norm statistics."""
        try:
            return self._in_precision(self._wrapped)(x)
        except RuntimeError as error:
            if "Expected to have finished reduction" not in str(error):
                raise
            raise UsageError(
                f"model {type(self.model).__name__} leaves a parameter out of some passes, as layers dropped at random "
                "do; give every parameter a part in each pass, or train it in one process"
            ) from None

    def backward(self, loss: torch.Tensor) -> None:
        """Add gradients up over the processes: each holds its share of the global mean, and torch averages.

        A communication hook would say so without the factor, but its Python callback can outlive the interpreter.
        """
        (loss * self.world.size).backward()

    @torch.no_grad()
    def settle(self) -> None:
        """Average the running statistics of batch norm."""
        if not self._statistics:
            return
        mean = self.world.reduce(torch.cat([tensor.flatten() for tensor in self._statistics])) / self.world.size
        parts = mean.split([tensor.numel() for tensor in self._statistics])
        for tensor, part in zip(self._statistics, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def with_sync_bn(model: nn.Module, device: torch.device) -> nn.Module:
    """The model with batch norm over the images of all processes."""
    if device.type != "cuda":
        raise UsageError("torch's SyncBatchNorm runs on CUDA alone; leave --sync-bn out")
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return converted


def check_shares(num_examples: int, batch_size: int, world: World) -> None:
    """Refuse a batch that leaves a process without an image."""
    smallest = min(batch_size, num_examples % batch_size or batch_size)
    if smallest < world.size:
        raise UsageError(
            f"the smallest batch of an epoch has {smallest} images for {world.size} processes; choose a --batch-size "
            f"that leaves at least {world.size} of {num_examples}"
        )
