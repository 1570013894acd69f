"""Run by torchrun: each process takes a step on its share of a batch, and the first saves what came of it.

torchrun --nproc-per-node 2 gloo_worker.py OUT BATCH
"""

import os
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from probmargin import api as pm
from probmargin.core.errors import UsageError
from probmargin.core.noise import KeyedNoise
from probmargin.engine.distributed import World, process_group
from probmargin.methods.resolve import named
from probmargin.training.distributed import DistributedNetwork
from probmargin.training.network import Network
from probmargin.training.step import Batch, summarise, train_step

METHODS = "standard at trades mart fat awp trades-awp gairat gair-mart mail-at mail-trades mail-mart mail-awp".split()
OWN_LOOP = "at gairat mail-at mail-trades mail-mart mail-awp".split()


class Around(nn.Module):
    """As Lightning Fabric hides torch's wrapper."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._forward_module = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._forward_module(x)
        return logits


AROUND: dict[str, Callable[[nn.Module], Any]] = {
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "in a module": Around,
}
"""What may lie around torch's wrapper."""
HIDDEN = ("mail-at", "mail-awp")


def smooth_net() -> nn.Module:
    """A network without batch norm, in float64."""
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(1, 6, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(6 * 36, 16),
        nn.Tanh(),
        nn.Linear(16, 4),
    )
    return nn.Sequential(*layers).double()


def share_of(world: World, size: int) -> Batch:
    """This process's part of one global batch."""
    draw = torch.Generator().manual_seed(1)
    x = torch.rand(size, 1, 6, 6, generator=draw, dtype=torch.float64)
    labels = torch.randint(4, (size,), generator=draw)
    rows = world.rows(size)
    return Batch(x=x[rows], labels=labels[rows], noise=KeyedNoise(seed=3, ids=torch.arange(size)[rows]))


def one_step(name: str, world: World, size: int) -> dict[str, torch.Tensor]:
    """Gradients, sums and weights after a step in the last epoch of a method."""
    model = smooth_net()
    network = Network(model) if world.size == 1 else DistributedNetwork(model, "fp32", world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = named(name)
    batch = share_of(world, size)
    result = train_step(network, optimizer, method.at(method.epochs - 1), batch, reduce=world.reduce)
    found = {f"grad {key}": value.grad for key, value in model.named_parameters() if value.grad is not None}
    found |= {f"after {key}": value.detach() for key, value in model.named_parameters()}
    return found | {"sums": world.reduce(summarise(result, batch.labels))}


def own_loop(name: str, world: World, size: int, *, wrapped: bool, around: str = "") -> dict[str, torch.Tensor]:
    """Gradients of `mail_loss` in a loop of one's own: through torch's wrapper, or averaged by whoever calls."""
    model = smooth_net()
    settings = {"attack.start": "zero", "attack.eps": 0.1, "attack.step_size": 0.025, "burn_in_epochs": 0}
    recipe = pm.resolve(name, settings=settings)
    batch = share_of(world, size)
    several = world.size > 1
    network = DistributedDataParallel(model) if several and wrapped else model
    network = AROUND[around](network) if around else network
    shared = True if several and not wrapped else None
    loss = pm.mail_loss(network, batch.x, batch.labels, recipe, seed=1, all_processes=shared)
    loss.backward()
    found = {f"grad {key}": value.grad for key, value in model.named_parameters() if value.grad is not None}
    if not wrapped:
        found = {key: world.reduce(value) / world.size for key, value in found.items()}
    return found | {"loss": world.reduce(loss.detach()) / world.size}


class Idle(nn.Module):
    """Has a layer that it may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.more = smooth_net(), nn.Linear(4, 4).double()
        self.idle = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.net(x)
        return logits if self.idle else self.more(logits)


def left_out(name: str, world: World, size: int, *, at_first: bool = True) -> dict[str, torch.Tensor]:
    """Weights after two steps of a network with a layer that no step uses."""
    model = Idle()
    model.idle = at_first
    network = Network(model) if world.size == 1 else DistributedNetwork(model, "fp32", world, (1, 6, 6))
    model.idle = True
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    method, batch = named(name), share_of(world, size)
    for _ in range(2):
        train_step(network, optimizer, method.at(method.epochs - 1), batch, reduce=world.reduce)
    assert model.more.weight.grad is None
    return {key: value.detach() for key, value in model.net.named_parameters()}


def refusal(world: World, size: int) -> str:
    """What is said of a layer that is left out later on."""
    try:
        left_out("at", world, size, at_first=False)
    except UsageError as error:
        return str(error)
    return ""


def statistics(world: World, share: World, size: int) -> torch.Tensor:
    """Batch norm's running mean after a pass on one process's share."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(96, 4)).double()
    network = Network(model) if world.size == 1 else DistributedNetwork(model, "fp32", world)
    network.forward(share_of(share, size).x)
    network.settle()
    mean = model[1].running_mean
    assert isinstance(mean, torch.Tensor)
    return mean


class Follows(nn.Module):
    """Has buffers of its own: one that moves, one that is set anew, one that stays, and one that counts."""

    moves: torch.Tensor
    anew: torch.Tensor
    stays: torch.Tensor
    counts: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("moves", torch.zeros(()))
        self.register_buffer("anew", torch.zeros((), dtype=torch.float64))
        self.register_buffer("stays", torch.tensor([0.1, 0.7, -torch.inf]))
        self.register_buffer("counts", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.moves.lerp_(x.detach().mean(), 0.1)
        self.anew = 0.9 * self.anew + 0.1 * x.detach().amax()
        self.counts += 1
        return x


def followed(world: World, share: World, size: int) -> dict[str, torch.Tensor]:
    """Buffers after two passes, of which the second alone is on one process's share."""
    torch.manual_seed(0)
    norm, follows = nn.InstanceNorm2d(6, track_running_stats=True), Follows()
    model = nn.Sequential(nn.Conv2d(1, 6, 3), follows, norm, nn.Flatten(), nn.Linear(96, 4)).double()
    follows.stays = follows.stays.float()
    network = Network(model) if world.size == 1 else DistributedNetwork(model, "fp32", world)
    for part in (World(), share):
        network.forward(share_of(part, size).x)
        network.settle()
    return {name: tensor.clone() for name, tensor in model.named_buffers()}


def main(out: Path, size: int) -> None:
    with process_group(torch.device("cpu")) as world:
        found = {f"{name}: {key}": value for name in METHODS for key, value in one_step(name, world, size).items()}
        for name, wrapped in product(OWN_LOOP, (True, False)):
            for key, value in own_loop(name, world, size, wrapped=wrapped).items():
                found[f"{name}, {'wrapped' if wrapped else 'averaged'}: {key}"] = value
        for name, around in product(HIDDEN, AROUND):
            for key, value in own_loop(name, world, size, wrapped=True, around=around).items():
                found[f"{name}, {around}: {key}"] = value
        for name in HIDDEN:
            found |= {f"{name}, left out: {key}": value for key, value in left_out(name, world, size).items()}
        assert "leaves a parameter out of some passes" in refusal(world, size)
        found["statistics"] = statistics(world, world, size)
        found |= {f"followed: {key}": value for key, value in followed(world, world, size).items()}
        found["statistics of all"] = world.reduce(found["statistics"])
        if world.is_writer:
            save_file({key: value.clone().contiguous() for key, value in found.items()}, out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]))
    os._exit(0)  # as the command line does: gloo's threads can abort a process whose interpreter ends
