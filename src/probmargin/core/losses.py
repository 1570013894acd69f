"""Losses and margins of logits, one value an example, never reduced over the batch."""

from typing import Literal

import torch
import torch.nn.functional as F

from probmargin.core.fusing import fusable
from probmargin.core.types import Labels, Logits, PerExample

KLDirection = Literal["nat_adv", "adv_nat"]


def label_mask(logits: Logits, labels: Labels) -> torch.Tensor:
    """True at each example's own class; built by comparison, so it can be captured in a graph."""
    classes = torch.arange(logits.shape[1], device=logits.device)
    return classes[None, :] == labels[:, None]


def cross_entropy(logits: Logits, labels: Labels) -> PerExample:
    """-log p_y.

    >>> cross_entropy(torch.tensor([[0.0, 0.0]]), torch.tensor([1])).tolist()
    [0.693147]
    """
    return F.cross_entropy(logits, labels, reduction="none")


def kl_divergence(logits_p: Logits, logits_q: Logits) -> PerExample:
    """KL(p||q) = sum_k p_k (log p_k - log q_k), with gradient through both and no NaN where a p_k underflows.

    >>> kl_divergence(torch.tensor([[0.0, 200.0]]), torch.tensor([[0.0, 0.0]])).tolist()
    [0.693147]
    """
    log_p, log_q = F.log_softmax(logits_p, dim=1), F.log_softmax(logits_q, dim=1)
    return (log_p.exp() * (log_p - log_q)).sum(dim=1)


@fusable
def directed_kl(logits_nat: Logits, logits_adv: Logits, direction: KLDirection) -> PerExample:
    """KL(p_nat||p_adv) for `nat_adv` (released code), KL(p_adv||p_nat) for `adv_nat` (the paper's text)."""
    if direction == "nat_adv":
        return kl_divergence(logits_nat, logits_adv)
    return kl_divergence(logits_adv, logits_nat)


def runner_up(values: torch.Tensor, labels: Labels) -> PerExample:
    """The largest entry that is not the label's."""
    return values.masked_fill(label_mask(values, labels), -torch.inf).amax(dim=1)


def gap_to_runner_up(values: torch.Tensor, labels: Labels) -> PerExample:
    """The label's entry minus the largest other one."""
    return values.gather(1, labels[:, None])[:, 0] - runner_up(values, labels)


def logit_margin(logits: Logits, labels: Labels) -> PerExample:
    """MM = z_y - max_{j != y} z_j; positive where the prediction is right.

    >>> logit_margin(torch.tensor([[3.0, 1.0, 0.0], [1.0, 0.0, 4.0]]), torch.tensor([0, 0])).tolist()
    [2.0, -3.0]
    """
    return gap_to_runner_up(logits, labels)


@fusable
def probabilistic_margin(logits: Logits, labels: Labels) -> PerExample:
    """PM = p_y - max_{j != y} p_j, in [-1, 1]; positive where the prediction is right.

    >>> logits = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1]]).log()
    >>> probabilistic_margin(logits, torch.tensor([0, 0])).tolist()
    [0.50, -0.30]
    """
    return gap_to_runner_up(logits.softmax(dim=1), labels)


def cw_loss(logits: Logits, labels: Labels, confidence: float = 50.0) -> PerExample:
    """-max(MM + confidence, 0): rises while the margin shrinks, flat once it is under -confidence.

    >>> cw_loss(torch.tensor([[3.0, 1.0]]), torch.tensor([0])).tolist()
    [-52.0]
    """
    return -(logit_margin(logits, labels) + confidence).clamp(min=0.0)


def is_correct(logits: Logits, labels: Labels) -> torch.Tensor:
    """True where the largest logit is the label's."""
    return logits.argmax(dim=1) == labels
