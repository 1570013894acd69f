"""DLR losses, one value an example, and the classes that targeted attacks aim at."""

from typing import Literal

import torch

from probmargin.core.losses import cross_entropy, logit_margin
from probmargin.core.types import Labels, Logits, PerExample

SearchLoss = Literal["ce", "dlr", "dlr_targeted"]

_TINY = 1e-12


def dlr_loss(logits: Logits, labels: Labels) -> PerExample:
    """-(z_y - max_{j != y} z_j) / (z_(1) - z_(3) + 1e-12); the bare margin where there are only two classes.

    >>> dlr_loss(torch.tensor([[4.0, 3.0, 2.0], [1.0, 3.0, 0.0]]), torch.tensor([0, 0])).tolist()  # -1/2, 2/3
    [-0.5, 0.66666]
    """
    margin = logit_margin(logits, labels)
    if logits.shape[1] < 3:
        return -margin
    top = logits.topk(3, dim=1).values
    return -margin / (top[:, 0] - top[:, 2] + _TINY)


def targeted_dlr_loss(logits: Logits, labels: Labels, targets: Labels) -> PerExample:
    """-(z_y - z_t) / (z_(1) - (z_(3) + z_(4)) / 2 + 1e-12), differentiated through the denominator too.

    With two or three classes there is no z_(4): the substitute is the margin z_t - z_y, and an ensemble that uses
    it is not the standard one.

    >>> logits, first, third = torch.tensor([[4.0, 3.0, 2.0, 0.0]]), torch.tensor([0]), torch.tensor([2])
    >>> targeted_dlr_loss(logits, first, third).tolist()   # -(4 - 2) / (4 - 1)
    [-0.66666]
    """
    gap = (logits.gather(1, labels[:, None]) - logits.gather(1, targets[:, None]))[:, 0]
    if logits.shape[1] < 4:
        return -gap
    top = logits.topk(4, dim=1).values
    return -gap / (top[:, 0] - 0.5 * (top[:, 2] + top[:, 3]) + _TINY)


def search_loss(loss: SearchLoss, logits: Logits, labels: Labels, targets: Labels) -> PerExample:
    """The loss a search maximises; only the targeted one looks at the targets."""
    if loss == "ce":
        return cross_entropy(logits, labels)
    if loss == "dlr":
        return dlr_loss(logits, labels)
    return targeted_dlr_loss(logits, labels, targets)


def target_classes(logits: Logits, labels: Labels, num_targets: int) -> torch.Tensor:
    """The wrong classes by falling clean logit, at most `num_targets` of them: (T, B), the nearest first.

    >>> target_classes(torch.tensor([[0.1, 0.9, 0.5], [0.1, 0.9, 0.5]]), torch.tensor([1, 0]), 9).tolist()
    [[2, 1], [0, 2]]
    """
    first = logits.scatter(1, labels[:, None], torch.inf)
    order = first.sort(dim=1, descending=True, stable=True).indices
    return order[:, 1 : num_targets + 1].T
