"""Which of APGD-T's best losses on the parity fixture hang on the last digit of a float32 number.

    python tests/shaken.py tests/autoattack/fixtures/unsteady.npz

CPUs and versions of torch add in other orders, so that every layer's output is a rounding off. Here it is put off by as
much, another way at each call, over and over; a best loss that any of these runs moves is unsteady.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from autoattack_helpers import CONFIGS, DigitsCNN, ReferenceNoise, digits_model, digits_test, off, traces

from probmargin.attacks._rows import Rows
from probmargin.attacks.apgd import APGD, start_point
from probmargin.attacks.balls import Norm
from probmargin.core.types import Classifier

UNIT = 2.0**-24
"""Relative error of a rounded float32 number."""
SHAKES = 24
RANKS = 4
"""Targets that are compared."""


class Shaken(torch.nn.Module):
    """The fixture's network with every layer's output a rounding off."""

    def __init__(self, model: DigitsCNN, seed: int) -> None:
        super().__init__()
        self.model = model
        self.generator = torch.Generator().manual_seed(seed)

    def shake(self, values: torch.Tensor) -> torch.Tensor:
        return values * (1 + UNIT * torch.randn(values.shape, generator=self.generator))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.relu(self.shake(self.model.conv1(x)))
        hidden = F.relu(self.shake(self.model.conv2(hidden)))
        hidden = F.relu(self.shake(self.model.fc1(hidden.flatten(1))))
        return self.shake(self.model.fc2(hidden))


def best(model: Classifier, attack: APGD, rows: Rows) -> torch.Tensor:
    """Best losses with the reference's random numbers."""
    drawn = attack.draw(rows.x, ReferenceNoise.seeded(len(rows.x)), 0, 0)
    return attack.climb(model, rows, start_point(rows.x, attack.norm, attack.eps, drawn), drop=False).loss_best


def unsteady(norm: Norm, eps: float, rank: int) -> torch.Tensor:
    """Which examples' best loss for the target of a rank a shake moves."""
    model, (images, labels), stored = digits_model(), digits_test(), traces()
    index = stored["index"]
    rows = Rows.of(images[index], labels[index], stored["targets"].T[rank : rank + 1])
    attack = APGD(norm=norm, eps=eps, loss="dlr_targeted")
    still = best(model, attack, rows)
    return torch.stack([off(best(Shaken(model, seed), attack, rows), still) for seed in range(SHAKES)]).any(dim=0)


def main(target: Path) -> None:
    """Write which are unsteady, by norm."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for norm, eps in CONFIGS:
        found[norm] = torch.stack([unsteady(norm, eps, rank) for rank in range(RANKS)], dim=1).numpy()
        sys.stdout.write(f"{norm}: {found[norm].sum(axis=0).tolist()} of {len(found[norm])} for each target\n")
        sys.stdout.flush()
    np.savez_compressed(target, **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
