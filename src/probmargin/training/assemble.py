"""Which stepper carries a run out."""

from dataclasses import dataclass, field

from probmargin.data.dataset import ImageSet
from probmargin.engine.compile import CompileMode
from probmargin.engine.devices import Precision
from probmargin.engine.distributed import World
from probmargin.methods.method import Method
from probmargin.training.distributed import DistributedNetwork
from probmargin.training.fast import FastNetwork, fast_stepper
from probmargin.training.network import Network
from probmargin.training.state import TrainState
from probmargin.training.stepper import Stepper


@dataclass(frozen=True)
class Hardware:
    """What a step runs on."""

    precision: Precision = "fp32"
    world: World = field(default_factory=World)
    compile: CompileMode = "default"
    """How the fast path compiles on CUDA; `off` runs the model as it is, operation by operation."""


def make_stepper(state: TrainState, train: ImageSet, method: Method, seed: int, hardware: Hardware) -> Stepper:
    """A stepper for this state and data."""
    if train.labels.is_cuda and hardware.world.size == 1 and hardware.compile != "off":
        return fast_stepper(state, train, method, seed, precision=hardware.precision, mode=hardware.compile)
    network: Network
    if hardware.world.size > 1:
        network = DistributedNetwork(state.model, hardware.precision, hardware.world, tuple(train.images.shape[1:]))
        if train.labels.is_cuda and hardware.compile != "off":
            network.notes.append(
                "several processes run operation by operation: nothing is compiled, batch norm is not folded for the "
                "attack, and no step is a CUDA graph"
            )
    elif hardware.compile != "off":
        # Nothing is compiled on a CPU; folding batch norm for the attack alone makes steps a fifth faster.
        network = FastNetwork(state.model, hardware.precision, "off", image_shape=train.images.shape[1:])
    else:
        network = Network(state.model, hardware.precision)
    stepper = Stepper(network, state, train, method.augment, seed)
    stepper.reduce = hardware.world.reduce
    return stepper
