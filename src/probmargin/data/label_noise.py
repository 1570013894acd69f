"""Wrong labels put in on purpose, for experiments on label noise."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch

from probmargin.core.arrays import UNREADABLE, read_arrays
from probmargin.core.errors import UsageError, unknown_name
from probmargin.data.dataset import ImageSet
from probmargin.data.seeds import stream

KINDS = ("symmetric", "pair", "instance")
_SPREAD = 0.1
"""Standard deviation of the rates of single examples, where noise depends on the example."""
_AT_ONCE = 1000


def label_noise(train: ImageSet, spec: str, num_classes: int, seed: int) -> tuple[ImageSet, torch.Tensor]:
    """Return the set with wrong labels and a bool mask (N,) of the examples whose label changed.

    "symmetric:0.2" gives exactly round(0.2 * N) examples, chosen by the seed, a label drawn uniformly from
    the other classes; "pair:0.2" gives as many the class after their own, the first after the last (Han et al.,
    arXiv:1804.06872). "instance:0.2" gives about as many a class that their pixels decide, and each example a rate of
    its own around 0.2 (Xia et al., arXiv:2006.07836, algorithm 2; rates are scaled to a mean of 0.2, which those that
    are cut off at 1 leave a little lower near 1).
    """
    kind, rate = _parsed(spec)
    if num_classes < 2:
        raise UsageError(f"label noise needs at least two classes, not {num_classes}")
    generator = stream("label-noise", seed)
    own, device = train.labels.cpu(), train.labels.device
    if kind == "instance":
        labels = _by_pixels(train, rate, num_classes, generator)
    else:
        chosen = torch.randperm(len(train), generator=generator)[: round(rate * len(train))]
        # A shift of 1..K-1 is uniform over the other classes and never the label itself.
        most = num_classes if kind == "symmetric" else 2
        shift = torch.zeros(len(train), dtype=torch.int64)
        shift[chosen] = torch.randint(1, most, (len(chosen),), generator=generator)
        labels = (own + shift) % num_classes
    return replace(train, labels=labels.to(device)), (labels != own).to(device)


def _by_pixels(train: ImageSet, rate: float, num_classes: int, generator: torch.Generator) -> torch.Tensor:
    """Labels of which each is wrong at a rate of its own, and then what a random projection of its class says."""
    own = train.labels.cpu()
    labels = own.clone()
    rates = torch.empty(len(train), dtype=torch.float64).normal_(rate, _SPREAD, generator=generator).clamp(0, 1)
    # Cut off at 0, rates near it are too high in the mean.
    rates *= rate / rates.mean().clamp(min=1e-12)
    is_wrong = torch.rand(len(train), generator=generator, dtype=torch.float64) < rates
    for label in range(num_classes):
        projection: torch.Tensor | None = None
        for rows in ((own == label) & is_wrong).nonzero()[:, 0].split(_AT_ONCE):
            pixels = train.pixels(rows).flatten(1).cpu().float() / 255
            if projection is None:
                projection = torch.randn(pixels.shape[1], num_classes, generator=generator)
            scores = pixels @ projection
            scores[:, label] = -torch.inf
            labels[rows] = torch.multinomial(scores.softmax(dim=1), 1, generator=generator)[:, 0]
    return labels


def read_wrong_labels(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a run's label_noise.npz: `index`, `labels` as trained on, and `is_wrong`."""
    if not path.exists():
        raise UsageError(f"{path} is missing, so nobody knows which labels were wrong; bring back a copy of it")
    try:
        file = read_arrays(path)
        found = {name: file[name] for name in ("index", "labels", "is_wrong")}
        if len({array.shape for array in found.values()}) > 1:
            raise ValueError("its arrays are not of one length")
    except UNREADABLE as error:
        raise UsageError(f"{path} is damaged ({error}); bring back a copy of it") from None
    return found


def _parsed(spec: str) -> tuple[str, float]:
    kind, _, text = spec.partition(":")
    if kind not in KINDS:
        raise unknown_name("label noise", kind, KINDS)
    try:
        rate = float(text)
    except ValueError:
        raise UsageError(f"label noise {spec!r} has no rate: write for example symmetric:0.2") from None
    if not 0 <= rate <= 1:
        raise UsageError(f"label noise {spec!r} has a rate that is not from 0 to 1: write for example symmetric:0.2")
    return kind, rate
