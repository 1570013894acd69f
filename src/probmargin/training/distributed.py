"""A network trained by several processes."""

from collections.abc import Sequence

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

    Batch norm normalises with each process's own images, unless its layers are SyncBatchNorm. Its running statistics,
    and what else of floating buffers has moved, are averaged over the processes after every step, so that all attack,
    evaluate and save one model.
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
        done = {id(tensor) for tensor in self._statistics}
        self._settled = {
            (module, name): tensor.clone()
            for module in model.modules()
            for name, tensor in module.named_buffers(recurse=False)
            if tensor.is_floating_point() and id(tensor) not in done and not isinstance(module, nn.SyncBatchNorm)
        }

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
        """Average the running statistics of batch norm, and what other floating buffers have moved by."""
        if self._statistics:
            for tensor, mean in zip(self._statistics, self._means(self._statistics), strict=True):
                tensor.copy_(mean)
        if self._settled:
            self._settle_others()

    def _settle_others(self) -> None:
        """By their moves, so that what stays as it is does so to the bit, infinite values among it."""
        tensors = [module.get_buffer(name) for module, name in self._settled]
        before = list(self._settled.values())
        moves = [torch.where(now == was, 0.0, now - was) for now, was in zip(tensors, before, strict=True)]
        for tensor, was, move in zip(tensors, before, self._means(moves), strict=True):
            was.add_(move)
            tensor.copy_(was)

    def _means(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The mean of each tensor over the processes, by one message."""
        mean = self.world.reduce(torch.cat([tensor.flatten() for tensor in tensors])) / self.world.size
        parts = mean.split([tensor.numel() for tensor in tensors])
        return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]


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
