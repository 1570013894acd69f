"""Which examples each step of an epoch takes, in what order and with what augmentation."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from probmargin.data.augment import epoch_augmentation, epoch_order
from probmargin.data.dataset import ImageSet
from probmargin.engine.distributed import World
from probmargin.methods.method import Method
from probmargin.training.feed import Feed, with_pixels
from probmargin.training.stepper import Chosen


@dataclass(frozen=True)
class Batches:
    """The batches of a run: seed and epoch decide them, wherever the images lie."""

    train: ImageSet
    feed: Feed | None
    method: Method
    seed: int
    world: World

    @property
    def count(self) -> int:
        """Of an epoch; the last may be short."""
        return math.ceil(len(self.train) / self.method.batch_size)

    def of_epoch(self, epoch: int, done: int) -> Iterator[tuple[int, Chosen]]:
        """The batches that are left of an epoch: their numbers, and what this process takes of each."""
        device, size, settings = self.train.labels.device, self.method.batch_size, self.method.augment
        order = epoch_order(len(self.train), seed=self.seed, epoch=epoch)
        draws = epoch_augmentation(len(self.train), pad=settings.pad, flip=settings.flip, seed=self.seed, epoch=epoch)
        draws, there = draws.to(device), order.to(device)
        batches = range(done, self.count)
        ranges = [range(len(order))[batch * size : (batch + 1) * size] for batch in batches]
        shares = [slice(own.start, own.stop) for own in (whole[self.world.rows(len(whole))] for whole in ranges)]
        images = with_pixels(self.feed, [order[share] for share in shares])
        for batch, share, pixels in zip(batches, shares, images, strict=True):
            yield batch, Chosen(there[share], draws[there[share]], pixels)
