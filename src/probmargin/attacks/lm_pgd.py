"""LM-PGD: PGD with a searched step and momentum."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from probmargin.attacks.attack import ATTACKS, Attack, AttackLoss, attack_loss, logits_without_gradient
from probmargin.attacks.balls import Norm, Start, check_eps, project, random_start, steepest
from probmargin.attacks.pgd import PathRecorder, reference_logits
from probmargin.core.batch import AttackResult, TraceLevel
from probmargin.core.errors import UsageError
from probmargin.core.frozen import ModelMode
from probmargin.core.losses import KLDirection
from probmargin.core.noise import Noise
from probmargin.core.types import Classifier, Images, Labels, Logits, PerExample


@ATTACKS.register("lm_pgd", examples=[{"num_steps": 3}, {"num_steps": 3, "lookahead": True, "loss": "kl"}])
@dataclass(frozen=True, kw_only=True)
class LMPGD(Attack):
    r"""PGD with a searched step and momentum.

        g = dir(grad loss(x + d^(t-1)))
        a = argmax over a grid of loss(x + Proj[d^(t-1) + momentum * v^(t-1) + a g])
        v^(t) = momentum * v^(t-1) + a g,    d^(t) = Proj[d^(t-1) + v^(t)],    v^(0) = 0

    Symbols:    the grid has num_grid equal points on [step_min, step_max], ends included; step_min is 0 after
                step `warm_steps`; searched per example, the smallest step wins a tie.
    Range:      inside the ball of radius eps around x, inside [0, 1].
    Gradient:   detached; parameters get none.
    Source:     MAIL, arXiv:2106.07904, appendix.
    Deviation:  none from the formula; the text calls it Nesterov's, which `lookahead` builds (gradient at
                Proj[d + momentum * v]). The grid and ties are our choice.

    >>> def linear(x): return x.flatten(1) @ torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> x = torch.tensor([[0.5, 0.5], [0.95, 0.02]]).view(2, 1, 1, 2)
    >>> attack = LMPGD(eps=0.1, step_max=0.1, step_min=0.05, num_steps=1, start="zero")
    >>> attack(linear, x, torch.tensor([0, 1])).x_adv.flatten(1).tolist()   # the longest step; then the shortest that
    [[0.4, 0.6], [1.0, 0.0]]
    """

    records_steps: ClassVar[bool] = True
    loss: AttackLoss = "ce"
    norm: Norm = "Linf"
    eps: float = 8 / 255
    num_steps: int = 50
    momentum: float = 0.8
    step_max: float = 6 / 255
    step_min: float = 4 / 255
    warm_steps: int = 15
    """Steps with the lower end of the grid at step_min; after them it is 0."""
    num_grid: int = 11
    lookahead: bool = False
    start: Start = "normal_1e-3"
    clamp_start: bool = False
    model_mode: ModelMode = "eval"
    kl_direction: KLDirection = "nat_adv"

    def __post_init__(self) -> None:
        check_eps(self.norm, self.eps)
        if self.num_steps < 1 or self.num_grid < 2:
            raise UsageError(
                f"attack.num_steps must be 1 or more and num_grid 2 or more, not {self.num_steps} and {self.num_grid}"
            )
        if not 0 <= self.step_min <= self.step_max or self.step_max == 0:
            raise UsageError(
                f"attack.step_min and step_max must be 0 <= min <= max > 0, not {self.step_min} and {self.step_max}"
            )

    def run(self, model: Classifier, x: Images, labels: Labels, *, noise: Noise, trace: TraceLevel) -> AttackResult:
        """Attack a model that is already frozen."""
        recorder = PathRecorder(trace, self.num_steps)
        reference = reference_logits(model, x, self.loss, trace)

        def value(logits: Logits) -> PerExample:
            return attack_loss(self.loss, logits, labels, reference, self.kl_direction)

        x_adv = random_start(x, self.start, self.norm, self.eps, noise)
        x_adv = x_adv.clamp(0.0, 1.0) if self.clamp_start else x_adv
        velocity = torch.zeros_like(x)
        for step in range(self.num_steps):
            if trace != "none":
                logits = logits_without_gradient(model, x_adv)
                recorder.add(logits, value(logits), labels)
            ahead = project(x_adv + self.momentum * velocity, x, self.norm, self.eps) if self.lookahead else x_adv
            ahead = ahead.detach().requires_grad_()
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(value(model(ahead).to(x.dtype)).sum(), ahead)
            direction = steepest(gradient, self.norm)
            drift = self.momentum * velocity
            best_size = self._search(model, x, x_adv + drift, direction, value, step)
            velocity = drift + best_size * direction
            x_adv = project(x_adv + velocity, x, self.norm, self.eps)
        if trace == "path":
            logits = logits_without_gradient(model, x_adv)
            recorder.add(logits, value(logits), labels)
        return AttackResult(x_adv=x_adv.detach(), trace=recorder.trace(reference, labels))

    def _search(
        self, model: Classifier, x: Images, base: Images, direction: torch.Tensor, value: object, step: int
    ) -> torch.Tensor:
        """The step of largest loss on the grid, per example; the smallest wins a tie."""
        assert callable(value)
        low = self.step_min if step < self.warm_steps else 0.0
        shape = (-1, *[1] * (x.ndim - 1))
        best_loss = torch.full_like(x.flatten(1)[:, 0], -torch.inf)
        best_size = torch.zeros_like(best_loss)
        for point in range(self.num_grid):
            size = low + (self.step_max - low) * point / (self.num_grid - 1)
            tried = project(base + size * direction, x, self.norm, self.eps)
            loss = value(logits_without_gradient(model, tried))
            better = loss > best_loss
            best_loss = torch.where(better, loss, best_loss)
            best_size = torch.where(better, size, best_size)
        return best_size.view(shape)
