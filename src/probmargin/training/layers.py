"""What random layers, such as dropout, draw while a run trains."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from probmargin.data.seeds import stream


@contextmanager
def own_draws(device: torch.device) -> Iterator[None]:
    """Whatever is drawn inside this block, torch's global generators are then as they were found."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def seed_layers(device: torch.device, *keys: int) -> None:
    """Have the draws of one step follow from these numbers alone, whatever was drawn before.

    >>> seed_layers(torch.device("cpu"), 1, 0, 0); a = torch.rand(3)
    >>> seed_layers(torch.device("cpu"), 1, 0, 0); b = torch.rand(3)
    >>> bool((a == b).all())
    True
    """
    seed = stream("layers", *keys).initial_seed()
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
