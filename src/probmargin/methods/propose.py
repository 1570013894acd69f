"""The size of attacks and of training that a data set of the user's own asks for."""

import math
from dataclasses import dataclass, replace

import torch

from probmargin.core.settings import Augment
from probmargin.core.words import counted, radius
from probmargin.data.dataset import DataSet, ImageSet
from probmargin.data.loader import DESCRIPTIONS
from probmargin.data.seeds import stream
from probmargin.methods.method import Method
from probmargin.methods.resolve import DataScale

LARGE_SET = 20_000
"""From this many training images on, length, learning rate and decay are the recipe's own."""
LARGE_IMAGE = 64
"""Images with a longer side get the radius usual for photographs, not that of thumbnails."""
_SMALL_LR = 0.05
"""At 0.1, which suits networks with batch norm, one without it collapsed on six classes of drawn shapes."""
_TUNING_LR = 0.01
"""From given weights: at 0.05 some of what they knew was lost on the same shapes, at 0.002 not enough was learnt."""
_LEAST_STEPS = 400
_EPOCHS = (30, 200)
_BATCH = (16, 128)
_COMPARED = 200
_VALUES = 20_000_000
_CLOSEST_SHARE = 0.05


@dataclass(frozen=True)
class Proposal:
    """What to train with, and why."""

    scale: DataScale
    found: str
    """The data in words."""
    reason: str
    """Why this radius."""
    count: int
    is_tuning: bool = False
    """Does training start from given weights?"""

    def line(self, recipe: Method) -> str:
        """What a recipe made of the proposal and of the user's own settings amounts to."""
        steps = math.ceil(self.count / recipe.batch_size)
        length = f"{counted(recipe.epochs, 'epoch')} of {steps} batch{'' if steps == 1 else 'es'}"
        options = "--epochs N"
        if self.is_tuning:
            why = "low, to keep what the weights know" if recipe.lr == self.scale.lr else "as you set it"
            length, options = f"{length}, lr {recipe.lr:g} ({why})", f"{options}, --set lr=..."
        if recipe.attack is None:
            return f"{self.found}: {length}; set your own with {options}"
        eps = float(getattr(recipe.attack, "eps", 0.0))
        reason = self.reason if eps == self.scale.eps else "as you set it"
        flips = "flips" if recipe.augment.flip else "no flips"
        return (
            f"{self.found}: eps {radius(eps)} ({reason}), {length}, {flips}; set your own with --set attack.eps=..., "
            f"{options}, --set augment.flip=true"
        )


def propose(data: DataSet, *, is_tuning: bool = False) -> Proposal | None:
    """The size of attacks and of training for a data set; None for one that has its own recipe.

    From given weights (`is_tuning`) the learning rate is lower.

    The radius is 8/255 for colour images, 4/255 for large ones and 0.1 for grey ones, but never more than a quarter of
    the distance between images of different classes: beyond half of it the classes would overlap.
    """
    if data.name in DESCRIPTIONS:
        return None
    eps, reason = _radius(data)
    count = len(data.train)
    # No flips: mirrored letters, signs and organs are something else, and the data cannot tell.
    scale = DataScale(eps, eps / 4, Augment(pad=min(4, min(data.image_size) // 8), flip=False))
    if count < LARGE_SET:
        batch = min(max(2 ** int(math.log2(max(count / 8, 1))), _BATCH[0]), _BATCH[1])
        epochs = min(max(_EPOCHS[0], math.ceil(_LEAST_STEPS / math.ceil(count / batch))), _EPOCHS[1])
        scale = replace(scale, epochs=epochs, lr=_SMALL_LR, weight_decay=5e-4, batch_size=batch)
    if is_tuning:
        scale = replace(scale, lr=_TUNING_LR)
    shape = "x".join(map(str, (data.channels, *data.image_size)))
    return Proposal(scale, f"{count} training images of {data.num_classes} classes, {shape}", reason, count, is_tuning)


def _radius(data: DataSet) -> tuple[float, str]:
    if data.channels == 1:
        eps, why = 0.1, "usual for grey images"
    elif max(data.image_size) > LARGE_IMAGE:
        eps, why = 4 / 255, "usual for large colour images"
    else:
        eps, why = 8 / 255, "usual for small colour images"
    apart = separation(data.train)
    if eps <= apart / 4:
        return eps, f"{why}; images of two classes are {apart:.2f} apart"
    return max(math.floor(apart / 4 * 255), 1) / 255, f"images of two classes are only {apart:.2f} apart"


def separation(train: ImageSet) -> float:
    """The L-inf distance from an image to the nearest one of another class, the closest twentieth left out.

    Taken over a sample, which overlooks some neighbours; doubles with two labels are among those left out.
    """
    values = train.images[0].numel()
    count = min(len(train), _COMPARED, max(2 * int(train.labels.max()), math.isqrt(_VALUES // values)))
    chosen = torch.randperm(len(train), generator=stream("separation", 0))[:count]
    pixels = train.pixels(chosen).flatten(1).to(torch.int16)
    labels = train.labels[chosen]
    nearest = []
    for row, label in zip(pixels, labels, strict=True):
        others = pixels[labels != label]
        if len(others):
            nearest.append(float((others - row).abs().amax(dim=1).min()) / 255)
    if not nearest:
        return 1.0
    return float(torch.tensor(nearest).quantile(_CLOSEST_SHARE))
