"""From positions in the data set to one training step, operation by operation."""

from dataclasses import dataclass

import torch

from probmargin.core.noise import KeyedNoise, stream_key
from probmargin.core.settings import Augment
from probmargin.core.speech import Say, silent
from probmargin.core.types import Reduce
from probmargin.data.augment import augment
from probmargin.data.dataset import ImageSet
from probmargin.methods.method import Method
from probmargin.training.examples import note_examples
from probmargin.training.network import Network
from probmargin.training.state import TrainState
from probmargin.training.step import Batch, StepResult, alone, summarise, train_step


@dataclass(frozen=True)
class Chosen:
    """Which examples a batch takes, and how: all on the device, a row each."""

    positions: torch.Tensor
    """int64, (B,), in the training set."""
    draws: torch.Tensor
    """int64, (B, 3): crop and flip, see `epoch_augmentation`."""
    pixels: torch.Tensor | None = None
    """uint8 images, where a feed brings them; else they are taken from the training set on the device."""

    def __len__(self) -> int:
        return len(self.positions)


class Stepper:
    """Runs training steps; nothing in a step waits for the host."""

    def __init__(self, network: Network, state: TrainState, train: ImageSet, settings: Augment, seed: int) -> None:
        self.network = network
        self.state = state
        self.train = train
        self.settings = settings
        self.reduce: Reduce = alone
        self.counts_steps = False
        """Whether attacks record which of their steps an example survived, for dynamics."""
        self.say: Say = silent
        self._noise_seed = seed << 32 | stream_key("training attack")

    def batch(self, chosen: Chosen, epoch: torch.Tensor | int) -> Batch:
        """The chosen images, augmented, with the noise of this epoch."""
        positions = chosen.positions
        pixels = self.train.images[positions] if chosen.pixels is None else chosen.pixels
        if self.settings.pad or self.settings.flip:
            pixels = augment(pixels, chosen.draws, pad=self.settings.pad, padding=self.settings.padding)
        noise = KeyedNoise(seed=self._noise_seed, ids=self.train.index[positions], round=epoch)
        x = pixels.float() / 255.0
        return Batch(x=x, labels=self.train.labels[positions], noise=noise, positions=positions)

    def step(self, now: Method, batch: Batch) -> StepResult:
        """Train on a batch, move the average, add to the epoch's sums and to what its examples did."""
        counts = self.counts_steps
        result = train_step(self.network, self.state.optimizer, now, batch, reduce=self.reduce, counts_steps=counts)
        self.network.settle()
        assert self.state.sums is not None
        self.state.sums += summarise(result, batch.labels)
        if self.state.examples is not None and batch.positions is not None:
            note_examples(self.state.examples, batch.positions, batch.labels, result)
        if self.state.average:
            self.state.average.update(self.state.model)
        return result

    def __call__(self, now: Method, epoch: int, lr: float, chosen: Chosen) -> None:
        """Take one step at a learning rate; `now` is the recipe as it is in this epoch."""
        self.state.before_step(lr)
        self.step(now, self.batch(chosen, epoch))
        self.state.after_step()
