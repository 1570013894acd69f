"""Wrong labels put in on purpose, for experiments on label noise."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import torch

from probmargin.core.errors import UsageError, unknown_name
from probmargin.data.dataset import ImageSet
from probmargin.data.seeds import stream

KINDS = ("symmetric",)


def label_noise(train: ImageSet, spec: str, num_classes: int, seed: int) -> tuple[ImageSet, torch.Tensor]:
    """Return the set with wrong labels and a bool mask (N,) of the examples whose label changed.

    "symmetric:0.2" gives exactly round(0.2 * N) examples, chosen by the seed, a label drawn uniformly from
    the other classes.
    """
    rate = _rate(spec)
    if num_classes < 2:
        raise UsageError(f"label noise needs at least two classes, not {num_classes}")
    generator = stream("label-noise", seed)
    total = len(train)
    chosen = torch.randperm(total, generator=generator)[: round(rate * total)]
    # A shift of 1..K-1 is uniform over the other classes and never the label itself.
    shift = torch.zeros(total, dtype=torch.int64)
    shift[chosen] = torch.randint(1, num_classes, (len(chosen),), generator=generator)
    labels = (train.labels.cpu() + shift) % num_classes
    device = train.labels.device
    return replace(train, labels=labels.to(device)), (shift > 0).to(device)


def read_wrong_labels(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a run's label_noise.npz: `index`, `labels` as trained on, and `is_wrong`."""
    if not path.exists():
        raise UsageError(f"{path} is missing, so nobody knows which labels were wrong; bring back a copy of it")
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            found = {name: file[name] for name in ("index", "labels", "is_wrong")}
        if len({array.shape for array in found.values()}) > 1:
            raise ValueError("its arrays are not of one length")
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise UsageError(f"{path} is damaged ({error}); bring back a copy of it") from None
    return found


def _rate(spec: str) -> float:
    kind, _, text = spec.partition(":")
    if kind not in KINDS:
        raise unknown_name("label noise", kind, KINDS)
    try:
        rate = float(text)
    except ValueError:
        raise UsageError(f"label noise {spec!r} has no rate: write for example symmetric:0.2") from None
    if not 0 <= rate <= 1:
        raise UsageError(f"label noise {spec!r} has a rate that is not from 0 to 1: write for example symmetric:0.2")
    return rate
