"""Auto-PGD: projected gradient ascent with momentum that chooses its own step sizes."""

from dataclasses import dataclass, fields

import torch

from probmargin.attacks._geometry import ascent, into_ball, per_image, unit
from probmargin.attacks._rows import Rows, pick, undecided
from probmargin.attacks.attack import ATTACKS, Attack, logits_without_gradient
from probmargin.attacks.balls import Norm, check_eps, finite_or_zero
from probmargin.attacks.dlr import SearchLoss, search_loss, target_classes
from probmargin.core.batch import AttackResult, TraceLevel
from probmargin.core.errors import UsageError
from probmargin.core.frozen import ModelMode
from probmargin.core.losses import is_correct, logit_margin
from probmargin.core.noise import Noise
from probmargin.core.types import Classifier, Images, Labels, PerExample

_SAFE_BREAK = 1e-3
"""A row leaves the search only where it is wrong by this much, so that rounding does not undo the break."""
_DROP_EVERY = 5


@dataclass(frozen=True)
class Climb:
    """What one ascent found, a row each."""

    x_best: Images
    loss_best: PerExample
    x_adv: Images
    """The last misclassified iterate; `x_best` where there was none."""
    broken: torch.Tensor
    safely: torch.Tensor
    """Broken at some iterate, though it need not be the last, by more than rounding undoes."""


@dataclass
class _State:
    """The moving part of an ascent, a row each; the names of section "Symbols" of `APGD`."""

    x_now: Images
    x_before: Images
    gradient: torch.Tensor
    step: torch.Tensor
    x_best: Images
    gradient_best: torch.Tensor
    loss_best: PerExample
    loss_checked: PerExample
    loss_last: PerExample
    rises: PerExample
    halved: torch.Tensor
    x_adv: Images
    broken: torch.Tensor
    safely: torch.Tensor

    def take(self, keep: torch.Tensor) -> "_State":
        """Some of the rows."""
        return _State(**{field.name: getattr(self, field.name)[keep] for field in fields(self)})


def check_windows(num_steps: int) -> dict[int, int]:
    """After which iterations the step is checked, and the length of the window that closes there.

    >>> list(check_windows(100))
    [22, 41, 57, 70, 80, 87, 93, 99]
    """
    length, shrink, least = (max(int(share * num_steps), 1) for share in (0.22, 0.03, 0.06))
    windows, end = {}, length
    while end <= num_steps:
        windows[end] = length
        length = max(length - shrink, least)
        end += length
    return windows


def start_point(x: Images, norm: Norm, eps: float, noise: torch.Tensor) -> Images:
    """A point on the ball's surface in the direction of the noise, clipped to [0, 1]."""
    return (x + eps * unit(noise, norm)).clamp(0.0, 1.0)


def _at(value: torch.Tensor, chosen: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.where(per_image(chosen, value) if value.ndim > 1 else chosen, value, other)


@ATTACKS.register(
    "apgd",
    examples=[
        {"num_steps": 6},
        {"num_steps": 6, "loss": "dlr", "restarts": 2, "norm": "L2", "eps": 0.5},
        {"num_steps": 6, "loss": "dlr_targeted", "eot": 2},
    ],
)
@dataclass(frozen=True, kw_only=True)
class APGD(Attack):
    r"""Auto-PGD: ascent with momentum that halves its step where progress stalls.

        v       = P(x_i + s dir(g_i)),    x_{i+1} = P(x_i + a (v - x_i) + (1 - a) (x_i - x_{i-1})),    a = 1, then 3/4
        at a check, k iterations after the last:  halve s and go on from the best point where
        rises <= rho k,  or  s was not halved at the last check and the best loss has not risen since

    Symbols:    P projects on the ball, then on [0, 1]; dir is the sign (L-inf) or the unit vector (L2); s starts at
                2 eps; rises counts the iterates with a larger loss than the one before, the first against 0;
                `dlr_targeted` aims at the `num_targets` wrong classes of largest clean logit, all of them at once.
    Range:      inside the ball of radius eps around x, inside [0, 1]: the last misclassified iterate, or the one of
                largest loss where none was misclassified.
    Gradient:   detached; parameters get none. With `eot` the gradient alone is a mean over that many passes.
    Source:     Croce and Hein, arXiv:2003.01690, as released (AutoAttack's repository at a392200).
    Deviation:  as the release where it leaves the paper: <= for <, first comparison with 0, momentum kept after a
                restart from the best point. Broken rows leave early. Fewer classes than targets + 1: all wrong classes;
                targeted DLR with fewer than 4 classes and DLR with 2 are replaced by the logit margin (see `dlr`).

    >>> def linear(x): return x.flatten(1) @ torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> x = torch.tensor([[0.55, 0.5], [0.95, 0.02]]).view(2, 1, 1, 2)
    >>> attack = APGD(eps=0.1, num_steps=5)
    >>> attack(linear, x, torch.tensor([0, 1])).x_adv.flatten(1).tolist()   # the far corner of ball and box
    [[0.45, 0.6], [1.0, 0.0]]
    """

    norm: Norm = "Linf"
    eps: float = 8 / 255
    num_steps: int = 100
    loss: SearchLoss = "ce"
    num_targets: int = 9
    restarts: int = 1
    rho: float = 0.75
    eot: int = 1
    model_mode: ModelMode = "eval"

    def __post_init__(self) -> None:
        check_eps(self.norm, self.eps)
        for name in ("num_steps", "num_targets", "restarts", "eot"):
            if getattr(self, name) < 1:
                raise UsageError(f"attack.{name} must be 1 or more, not {getattr(self, name)}")

    def run(self, model: Classifier, x: Images, labels: Labels, *, noise: Noise, trace: TraceLevel) -> AttackResult:
        """Attack a model that is already frozen."""
        score = torch.full_like(x.flatten(1)[:, 0], -torch.inf)
        x_adv = x.clone()
        left = torch.arange(len(x), device=x.device)
        targets = self.targets(model, x, labels)
        for restart in range(self.restarts):
            rows = Rows.of(x[left], labels[left], targets[:, left])
            draws = [self.draw(x, noise.take(left), rank, restart) for rank in range(len(targets))]
            start = start_point(rows.x, self.norm, self.eps, torch.cat(draws))
            found = self.climb(model, rows, start, drop=self.eot == 1 and self.model_mode == "eval")
            # Of the targets that broke an image the first whose ascent came safely through, else the first.
            thin = torch.full_like(found.loss_best, torch.finfo(x.dtype).max)
            table = torch.where(found.broken, thin, found.loss_best).masked_fill(found.safely, torch.inf)
            table = table.view(len(targets), -1)
            best, points = pick(table, found.x_adv)
            better = best > score[left]
            x_adv[left[better]] = points[better]
            score[left] = torch.maximum(best, score[left])
            left = (score < torch.finfo(x.dtype).max).nonzero()[:, 0]
            if len(left) == 0:
                break
        return AttackResult(x_adv=x_adv)

    def targets(self, model: Classifier, x: Images, labels: Labels) -> torch.Tensor:
        """The classes to aim at, (T, B); the labels themselves, unread, where the loss has no target."""
        if self.loss != "dlr_targeted":
            return labels[None, :]
        return target_classes(logits_without_gradient(model, x), labels, self.num_targets)

    def start_gradient(self, model: Classifier, x: Images, labels: Labels, noise: Noise) -> torch.Tensor:
        """The gradient at the start point of the first target, as the model gives it."""
        rows = Rows.of(x, labels, self.targets(model, x, labels)[:1])
        start = start_point(x, self.norm, self.eps, self.draw(x, noise, 0, 0))
        return torch.stack([self._ask(model, start, rows)[2] for _ in range(self.eot)]).mean(dim=0)

    def draw(self, x: Images, noise: Noise, rank: int, restart: int) -> torch.Tensor:
        """The random direction of a start point."""
        shape, stream = tuple(x.shape[1:]), f"apgd/{self.loss}"
        if self.norm == "Linf":
            return 2.0 * noise.uniform(shape, stream=stream, target=rank, step=restart).to(x.dtype) - 1.0
        return noise.normal(shape, stream=stream, target=rank, step=restart).to(x.dtype)

    def evaluate(self, model: Classifier, x_now: Images, rows: Rows) -> tuple[torch.Tensor, PerExample, torch.Tensor]:
        """Logits and loss of the last pass, gradient to the image averaged over `eot` passes."""
        total: torch.Tensor | None = None
        for _ in range(self.eot):
            logits, loss, gradient = self._ask(model, x_now, rows)
            usable = finite_or_zero(gradient)
            total = usable if total is None else total + usable
        assert total is not None
        return logits, loss, total if self.eot == 1 else total / self.eot

    def _ask(self, model: Classifier, x_now: Images, rows: Rows) -> tuple[torch.Tensor, PerExample, torch.Tensor]:
        """Logits, loss and gradient to the image of one pass."""
        point = x_now.detach().requires_grad_()
        with torch.enable_grad():
            logits = model(point).to(x_now.dtype)
            loss = search_loss(self.loss, logits, rows.labels, rows.targets)
            (gradient,) = torch.autograd.grad(loss.sum(), point)
        return logits.detach(), loss.detach(), gradient

    def climb(self, model: Classifier, rows: Rows, start: Images, *, drop: bool = True) -> Climb:
        """One ascent from a start point a row; with `drop`, an example's rows leave once one of them is wrong."""
        logits, loss, gradient = self.evaluate(model, start, rows)
        wrong = ~is_correct(logits, rows.labels)
        state = _State(
            x_now=start,
            x_before=start,
            gradient=gradient,
            step=torch.full_like(per_image(loss, start), 2.0 * self.eps),
            x_best=start,
            gradient_best=gradient,
            loss_best=loss,
            loss_checked=loss,
            loss_last=torch.zeros_like(loss),
            rises=torch.zeros_like(loss),
            halved=torch.ones_like(wrong),
            x_adv=start,
            broken=wrong,
            safely=logit_margin(logits, rows.labels) < -_SAFE_BREAK,
        )
        here = torch.arange(len(start), device=start.device)
        ended = state.take(here)
        windows = check_windows(self.num_steps)
        for iteration in range(self.num_steps):
            self._iterate(model, rows, state, 1.0 if iteration == 0 else 0.75)
            if iteration + 1 in windows:
                self._check(state, windows[iteration + 1])
            if drop and iteration % _DROP_EVERY == 0:
                keep = undecided(rows, state.safely)
                if keep is not None:
                    _store(state, ended, here)
                    rows, state, here = rows.take(keep), state.take(keep), here[keep]
                    if len(here) == 0:
                        break
        _store(state, ended, here)
        x_adv = _at(ended.x_adv, ended.broken, ended.x_best)
        return Climb(ended.x_best, ended.loss_best, x_adv, ended.broken, ended.safely)

    def _iterate(self, model: Classifier, rows: Rows, state: _State, share: float) -> None:
        moved = state.x_now + state.step * ascent(state.gradient, self.norm)
        moved = into_ball(moved, rows.x, self.norm, self.eps)
        moved = state.x_now + share * (moved - state.x_now) + (1.0 - share) * (state.x_now - state.x_before)
        state.x_before, state.x_now = state.x_now, into_ball(moved, rows.x, self.norm, self.eps)
        logits, loss, state.gradient = self.evaluate(model, state.x_now, rows)
        wrong = ~is_correct(logits, rows.labels)
        state.x_adv = _at(state.x_now, wrong, state.x_adv)
        state.broken = state.broken | wrong
        state.safely = state.safely | (logit_margin(logits, rows.labels) < -_SAFE_BREAK)
        state.rises = state.rises + (loss > state.loss_last)
        state.loss_last = loss
        better = loss > state.loss_best
        state.x_best = _at(state.x_now, better, state.x_best)
        state.gradient_best = _at(state.gradient, better, state.gradient_best)
        state.loss_best = _at(loss, better, state.loss_best)

    def _check(self, state: _State, window: int) -> None:
        stalled = ~state.halved & (state.loss_checked >= state.loss_best)
        state.halved = (state.rises <= self.rho * window) | stalled
        state.loss_checked = state.loss_best
        state.rises = torch.zeros_like(state.rises)
        state.step = _at(state.step / 2.0, state.halved, state.step)
        state.x_now = _at(state.x_best, state.halved, state.x_now)
        state.gradient = _at(state.gradient_best, state.halved, state.gradient)


def _store(state: _State, ended: _State, here: torch.Tensor) -> None:
    """Write the results of the rows at hand to where all rows' results are kept."""
    for name in ("x_best", "loss_best", "x_adv", "broken", "safely"):
        getattr(ended, name)[here] = getattr(state, name)
