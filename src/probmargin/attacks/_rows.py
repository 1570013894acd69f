"""Rows of a search: pairs of example and target, worked on at once."""

from dataclasses import dataclass

import torch

from probmargin.core.types import Images, Labels, PerExample


@dataclass(frozen=True)
class Rows:
    """What stays fixed while a search runs; `owner` names a row's example, so that siblings can leave together."""

    x: Images
    labels: Labels
    targets: Labels
    owner: torch.Tensor

    @classmethod
    def of(cls, x: Images, labels: Labels, targets: torch.Tensor) -> "Rows":
        """All pairs of example and target, target by target; `targets` is (T, B)."""
        count = len(targets)
        owner = torch.arange(len(x), device=x.device).repeat(count)
        return cls(x.repeat(count, *[1] * (x.ndim - 1)), labels.repeat(count), targets.flatten(), owner)

    def take(self, keep: torch.Tensor) -> "Rows":
        """Some of the rows."""
        return Rows(self.x[keep], self.labels[keep], self.targets[keep], self.owner[keep])


def undecided(rows: Rows, decided: torch.Tensor) -> torch.Tensor | None:
    """Positions of the rows none of whose siblings is decided; None where that is all of them."""
    if not bool(decided.any()):
        return None
    owners = torch.zeros(int(rows.owner.max()) + 1, dtype=torch.bool, device=decided.device)
    owners[rows.owner[decided]] = True
    return (~owners[rows.owner]).nonzero()[:, 0]


def pick(score: torch.Tensor, points: Images) -> tuple[PerExample, Images]:
    """Of (T, B) scores, each example's largest (the first of equals) and its image out of T * B."""
    best = score.max(dim=0)
    columns = torch.arange(score.shape[1], device=score.device)
    return best.values, points[best.indices * score.shape[1] + columns]
