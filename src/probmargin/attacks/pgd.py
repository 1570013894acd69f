"""Projected gradient descent, with and without FAT's early stop."""

import math
import warnings
from dataclasses import dataclass
from typing import ClassVar

import torch

from probmargin.attacks.attack import ATTACKS, Attack, AttackLoss, attack_loss, logits_without_gradient
from probmargin.attacks.balls import Norm, Start, ascend, check_eps, project, random_start, steepest
from probmargin.core.batch import AttackResult, AttackTrace, TraceLevel
from probmargin.core.errors import UsageError
from probmargin.core.frozen import ModelMode
from probmargin.core.losses import KLDirection, is_correct
from probmargin.core.noise import Noise
from probmargin.core.types import Classifier, Images, Labels, Logits, PerExample


class PathRecorder:
    """Collects what a trace needs, one row an iterate."""

    def __init__(self, level: TraceLevel, num_steps: int) -> None:
        self.level = level
        self.num_steps = num_steps
        self._loss: list[torch.Tensor] = []
        self._correct: list[torch.Tensor] = []
        self._prob: list[torch.Tensor] = []

    def add(self, logits: Logits, loss: PerExample, labels: Labels) -> None:
        """Record one iterate."""
        if self.level != "none":
            self._loss.append(loss.detach())
            self._correct.append(is_correct(logits, labels))
            self._prob.append(_label_probability(logits, labels))

    def trace(self, logits_nat: Logits | None, labels: Labels) -> AttackTrace | None:
        """Close the record."""
        if self.level == "none":
            return None
        prob_nat = None if logits_nat is None or self.level == "steps" else _label_probability(logits_nat, labels)
        rows = torch.stack(self._loss), torch.stack(self._correct), torch.stack(self._prob)
        return AttackTrace(self.num_steps, *rows, prob_label_nat=prob_nat)


def _label_probability(logits: Logits, labels: Labels) -> PerExample:
    return logits.detach().softmax(dim=1).gather(1, labels[:, None])[:, 0]


def reference_logits(model: Classifier, x: Images, loss: AttackLoss, trace: TraceLevel) -> Logits | None:
    """The clean image's logits, where the loss or the trace needs them; one pass serves all steps."""
    return logits_without_gradient(model, x) if loss == "kl" or trace == "path" else None


def _stop(wrong: torch.Tensor, stopped: torch.Tensor, left: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """FAT's rule: stop where the prediction is wrong and no extra step is left, else spend one."""
    newly = wrong & (left == 0)
    spent = wrong & (left > 0) & ~stopped
    return stopped | newly, left - spent.long()


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """What PGD and its early-stopped form have in common."""

    records_steps: ClassVar[bool] = True
    loss: AttackLoss = "ce"
    norm: Norm = "Linf"
    eps: float = 8 / 255
    step_size: float = 2 / 255
    num_steps: int = 10
    start: Start = "normal_1e-3"
    clamp_start: bool = False
    """Clamp the noisy start to [0, 1] before the first gradient."""
    model_mode: ModelMode = "eval"
    kl_direction: KLDirection = "nat_adv"

    def __post_init__(self) -> None:
        check_eps(self.norm, self.eps)
        if not self.step_size > 0:
            raise UsageError(f"attack.step_size must be above 0, not {self.step_size:g}")
        if self.num_steps < 1:
            raise UsageError(f"attack.num_steps must be 1 or more, not {self.num_steps}")

    def _descend(
        self,
        model: Classifier,
        x: Images,
        labels: Labels,
        noise: Noise,
        trace: TraceLevel,
        *,
        tau: int | None = None,
        step_noise: float = 0.0,
    ) -> AttackResult:
        """K sign (or unit) steps; with `tau`, an example freezes in place once it is wrong tau + 1 times."""
        recorder = PathRecorder(trace, self.num_steps)
        reference = reference_logits(model, x, self.loss, trace)
        x_adv = random_start(x, self.start, self.norm, self.eps, noise)
        if self.clamp_start:
            x_adv = x_adv.clamp(0.0, 1.0)
        stopped = torch.zeros_like(labels, dtype=torch.bool)
        left = torch.full_like(labels, tau or 0)
        for step in range(self.num_steps):
            x_adv = x_adv.detach().requires_grad_()
            with torch.enable_grad():
                logits = model(x_adv).to(x.dtype)
                loss = attack_loss(self.loss, logits, labels, reference, self.kl_direction)
                (gradient,) = torch.autograd.grad(loss.sum(), x_adv)
            recorder.add(logits, loss, labels)
            moved = self._move(x_adv.detach(), gradient, x, noise, step, step_noise)
            if tau is None:
                x_adv = moved
            else:
                stopped, left = _stop(~is_correct(logits, labels), stopped, left)
                x_adv = torch.where(stopped.view(-1, *[1] * (x.ndim - 1)), x_adv.detach(), moved)
        if trace == "path":
            logits = logits_without_gradient(model, x_adv)
            recorder.add(logits, attack_loss(self.loss, logits, labels, reference, self.kl_direction), labels)
        # A start that was never updated (early stop) may lie outside [0, 1]; what is returned does not.
        return AttackResult(
            x_adv=project(x_adv.detach(), x, self.norm, self.eps), trace=recorder.trace(reference, labels)
        )

    def _move(
        self, x_adv: Images, gradient: torch.Tensor, x: Images, noise: Noise, step: int, step_noise: float
    ) -> Images:
        """One projected step, with FAT's noise where it is asked for."""
        if not step_noise:
            return ascend(x_adv, gradient, x, self.norm, self.eps, self.step_size)
        jitter = step_noise * noise.normal(tuple(x.shape[1:]), stream="step", step=step).to(x.dtype)
        move = self.step_size * steepest(gradient, self.norm) + jitter
        return project(x_adv + move, x, self.norm, self.eps)


def longer_step(attack: Attack | None) -> float | None:
    """A step size that reaches the surface of the ball; None where the attack's own does, or its start lies anywhere.

    >>> longer_step(PGD(eps=0.3)), longer_step(PGD())
    (0.075, None)
    """
    if not isinstance(attack, PGD | EarlyStopPGD) or attack.start in ("uniform_eps", "uniform_01"):
        return None
    if attack.num_steps * attack.step_size >= attack.eps:
        return None
    enough = attack.eps * max(1 / 4, 1 / attack.num_steps)
    # Rounded up in the fourth digit, since rounded down it would not reach.
    digits = 3 - math.floor(math.log10(enough))
    return float(math.ceil(enough * 10**digits - 1e-6) / 10**digits)


def warn_of_short_steps(attack: Attack | None, stacklevel: int) -> None:
    """Tell a caller who gave a radius and no step size that the usual steps do not reach it."""
    if (step := longer_step(attack)) is not None:
        assert isinstance(attack, PGD | EarlyStopPGD)
        reach = attack.num_steps * attack.step_size
        warnings.warn(
            f"{attack.num_steps} steps of {attack.step_size:.4g} go to {reach:.4g} and not to eps {attack.eps:.4g}: "
            f"pass step_size as well, such as step_size={step:.4g}",
            stacklevel=stacklevel,
        )


@ATTACKS.register(
    "pgd",
    examples=[
        {},
        {"loss": "kl"},
        {"loss": "cw", "start": "zero"},
        {"norm": "L2", "eps": 0.5, "step_size": 0.1},
    ],
)
@dataclass(frozen=True, kw_only=True)
class PGD(_Settings, Attack):
    r"""Projected gradient ascent of the loss.

        x^(0) = x + noise,    x^(k+1) = clip_[0,1]( Proj( x^(k) + step_size * dir(grad loss(x^(k))) ) )

    Symbols:    dir is the sign for L-inf and the unit vector for L2; the last iterate is returned.
    Range:      inside the ball of radius eps around x, inside [0, 1].
    Gradient:   detached; parameters get none.
    Source:     Madry et al., arXiv:1706.06083; TRADES maximises the KL, CW's margin loss is -max(MM + 50, 0).
    Deviation:  MAIL's text starts at U(0,1) and differentiates by the parameters; its code, like ours, starts at
                0.001 N(0,1) and differentiates by the image.

    >>> def linear(x): return x.flatten(1) @ torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> x = torch.tensor([[0.5, 0.5], [0.95, 0.02]]).view(2, 1, 1, 2)
    >>> attack = PGD(eps=0.1, step_size=0.1, num_steps=2, start="zero")
    >>> attack(linear, x, torch.tensor([0, 1])).x_adv.flatten(1).tolist()   # away from the label, inside [0, 1]
    [[0.4, 0.6], [1.0, 0.0]]
    """

    def run(self, model: Classifier, x: Images, labels: Labels, *, noise: Noise, trace: TraceLevel) -> AttackResult:
        """Attack a model that is already frozen."""
        return self._descend(model, x, labels, noise, trace)


@ATTACKS.register("early_stop_pgd", examples=[{}, {"tau": 1, "loss": "kl"}, {"tau": 2, "step_noise": 0.001}])
@dataclass(frozen=True, kw_only=True)
class EarlyStopPGD(_Settings, Attack):
    r"""PGD that stops, example by example, shortly after the prediction turns wrong.

        at iterate k < K: wrong and c = 0 -> freeze;  wrong and c > 0 -> c - 1, go on;  right -> go on;  c starts at tau

    Symbols:    tau = extra steps after the first wrong prediction; step_noise = std of noise added with each step.
    Range:      inside the ball, inside [0, 1]; tau = 0 leaves points alone that are wrong from the start.
    Gradient:   detached; parameters get none.
    Source:     FAT, arXiv:2002.11242 (its omega is step_noise).
    Deviation:  frozen in place; the released code shrinks and permutes the batch.

    >>> def linear(x): return x.flatten(1) @ torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> x = torch.tensor([[0.62, 0.5], [0.4, 0.5]]).view(2, 1, 1, 2)
    >>> attack = EarlyStopPGD(eps=0.3, step_size=0.1, num_steps=3, start="zero")
    >>> attack(linear, x, torch.tensor([0, 0])).x_adv.flatten(1).tolist()   # one step is enough; wrong from the start
    [[0.52, 0.6], [0.4, 0.5]]
    """

    tau: int = 0
    step_noise: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tau < 0 or self.step_noise < 0:
            raise UsageError(
                f"attack.tau and attack.step_noise must be 0 or more, not {self.tau} and {self.step_noise}"
            )

    def run(self, model: Classifier, x: Images, labels: Labels, *, noise: Noise, trace: TraceLevel) -> AttackResult:
        """Attack a model that is already frozen."""
        return self._descend(model, x, labels, noise, trace, tau=self.tau, step_noise=self.step_noise)
