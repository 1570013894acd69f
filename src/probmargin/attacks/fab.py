"""FAB: the smallest perturbation that changes the prediction, by projections on linearised boundaries."""

from dataclasses import dataclass

import torch

from probmargin.attacks._geometry import length, per_image, unit
from probmargin.attacks._hyperplane import shift_to_hyperplane
from probmargin.attacks._rows import Rows, pick, undecided
from probmargin.attacks.attack import ATTACKS, Attack, logits_without_gradient
from probmargin.attacks.balls import Norm, check_eps, finite_or_zero
from probmargin.attacks.dlr import target_classes
from probmargin.core.batch import AttackResult, TraceLevel
from probmargin.core.errors import UsageError
from probmargin.core.frozen import ModelMode
from probmargin.core.losses import is_correct, label_mask
from probmargin.core.noise import Noise
from probmargin.core.types import Classifier, Images, Labels, PerExample

_TINY = 1e-12
_LEAST = 1e-8
_DROP_EVERY = 5


@dataclass(frozen=True)
class Nearest:
    """The nearest misclassified point of each row; its size is infinite where there was none."""

    x_adv: Images
    size: PerExample


@ATTACKS.register(
    "fab",
    examples=[
        {"num_steps": 6},
        {"num_steps": 6, "norm": "L2", "eps": 0.5},
        {"num_steps": 6, "targeted": False, "restarts": 2},
    ],
)
@dataclass(frozen=True, kw_only=True)
class FAB(Attack):
    r"""FAB: the smallest perturbation that changes the prediction.

        f = z_t - z_y at x_i,    w = grad f,    d1, d2 = shifts of x_i, x to {f + <w, . - x_i> = 0} within [0, 1]
        lam = min(|d1| / (|d1| + |d2|), alpha_max),    x_{i+1} = clip((1 - lam)(x_i + eta d1) + lam (x + eta d2))
        where x_{i+1} is misclassified it is kept if nearest so far, and x_{i+1} := x + beta (x_{i+1} - x)

    Symbols:    t runs over the `num_targets` wrong classes of largest clean logit, all at once; untargeted, t is the
                class j of least |f_j| / |w_j|_dual at each step; eps enters only in the final test |x' - x| <= eps.
    Range:      inside the ball of radius eps around x, inside [0, 1]; x itself where nothing inside was found.
    Gradient:   detached; parameters get none.
    Source:     Croce and Hein, arXiv:1907.02044, as released in AutoAttack's repository at a392200.
    Deviation:  no final search, as the release; the projection sorts nothing; an example leaves once it has a
                misclassified point within eps. An image that is misclassified as it stands is returned as it is.

    >>> def linear(x): return x.flatten(1) @ torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> x = torch.tensor([[0.55, 0.5], [0.9, 0.2]]).view(2, 1, 1, 2)
    >>> attack = FAB(eps=0.1, num_steps=20)
    >>> attack(linear, x, torch.tensor([0, 0])).x_adv.flatten(1).tolist()   # 1.05 * .025 moves each; .35 is too far
    [[0.52375, 0.52625], [0.9, 0.2]]
    """

    norm: Norm = "Linf"
    eps: float = 8 / 255
    num_steps: int = 100
    targeted: bool = True
    num_targets: int = 9
    restarts: int = 1
    """The first starts at x; later ones, for what is not broken, at a random point of the ball of half the radius."""
    alpha_max: float = 0.1
    eta: float = 1.05
    beta: float = 0.9
    model_mode: ModelMode = "eval"

    def __post_init__(self) -> None:
        check_eps(self.norm, self.eps)
        for name in ("num_steps", "num_targets", "restarts"):
            if getattr(self, name) < 1:
                raise UsageError(f"attack.{name} must be 1 or more, not {getattr(self, name)}")

    def run(self, model: Classifier, x: Images, labels: Labels, *, noise: Noise, trace: TraceLevel) -> AttackResult:
        """Attack a model that is already frozen."""
        logits = logits_without_gradient(model, x)
        x_adv = x.clone()
        broken = ~is_correct(logits, labels)
        targets = target_classes(logits, labels, self.num_targets) if self.targeted else labels[None, :]
        for restart in range(self.restarts):
            left = (~broken).nonzero()[:, 0]
            if len(left) == 0:
                break
            rows = Rows.of(x[left], labels[left], targets[:, left])
            start = torch.cat([self._start(x[left], noise.take(left), t, restart) for t in range(len(targets))])
            found = self.search(model, rows, start, drop=self.model_mode == "eval")
            negated, points = pick(-found.size.view(len(targets), -1), found.x_adv)
            inside = -negated <= self.eps
            x_adv[left[inside]] = points[inside]
            broken[left[inside]] = True
        return AttackResult(x_adv=x_adv)

    def _start(self, x: Images, noise: Noise, rank: int, restart: int) -> Images:
        if restart == 0:
            return x
        shape = tuple(x.shape[1:])
        if self.norm == "Linf":
            draw = 2.0 * noise.uniform(shape, stream="fab", target=rank, step=restart) - 1.0
        else:
            draw = noise.normal(shape, stream="fab", target=rank, step=restart)
        return (x + 0.5 * self.eps * unit(draw.to(x.dtype), self.norm)).clamp(0.0, 1.0)

    def search(self, model: Classifier, rows: Rows, start: Images, *, drop: bool = True) -> Nearest:
        """Walk along the boundary; with `drop`, an example's rows leave once one has a point within eps."""
        x_now, here = start, torch.arange(len(start), device=start.device)
        best = Nearest(rows.x.clone(), torch.full_like(start.flatten(1)[:, 0], torch.inf))
        for step in range(self.num_steps):
            x_now = self._step(model, rows, x_now)
            wrong = ~is_correct(logits_without_gradient(model, x_now), rows.labels)
            size = length(x_now - rows.x, self.norm)
            nearer = wrong & (size < best.size[here])
            best.x_adv[here] = torch.where(per_image(nearer, x_now), x_now, best.x_adv[here])
            best.size[here] = torch.where(nearer, size, best.size[here])
            x_now = torch.where(per_image(wrong, x_now), rows.x + self.beta * (x_now - rows.x), x_now)
            if drop and step % _DROP_EVERY == 0:
                keep = undecided(rows, best.size[here] <= self.eps)
                if keep is not None:
                    rows, x_now, here = rows.take(keep), x_now[keep], here[keep]
                    if len(here) == 0:
                        break
        return best

    def _step(self, model: Classifier, rows: Rows, x_now: Images) -> Images:
        gap, slope = self._boundary(model, rows, x_now)
        now, clean, slope = x_now.flatten(1), rows.x.flatten(1), slope.flatten(1)
        points = torch.cat([now, clean])
        offset = (slope * now).sum(dim=1) - gap
        excess = (slope.repeat(2, 1) * points).sum(dim=1) - offset.repeat(2)
        shifts = shift_to_hyperplane(points, slope.repeat(2, 1), excess, self.norm)
        size_now, size_clean = length(shifts, self.norm).clamp(min=_LEAST).chunk(2)
        share = (size_now / (size_now + size_clean)).clamp(0.0, self.alpha_max)[:, None]
        pulled = points + self.eta * shifts
        from_now, from_clean = pulled.chunk(2)
        return ((1.0 - share) * from_now + share * from_clean).clamp(0.0, 1.0).view_as(x_now)

    def _boundary(self, model: Classifier, rows: Rows, x_now: Images) -> tuple[PerExample, torch.Tensor]:
        """The gap f to the class aimed at, and its gradient."""
        point = x_now.detach().requires_grad_()
        with torch.enable_grad():
            logits = model(point).to(x_now.dtype)
            gaps = logits - logits.gather(1, rows.labels[:, None])
            if self.targeted:
                gap = gaps.gather(1, rows.targets[:, None])[:, 0]
                (slope,) = torch.autograd.grad(gap.sum(), point)
                return gap.detach(), finite_or_zero(slope)
            slopes = [torch.autograd.grad(column.sum(), point, retain_graph=True)[0] for column in gaps.unbind(dim=1)]
        return self._nearest_class(gaps.detach(), finite_or_zero(torch.stack(slopes)), rows.labels)

    def _nearest_class(
        self, gaps: torch.Tensor, slopes: torch.Tensor, labels: Labels
    ) -> tuple[PerExample, torch.Tensor]:
        """Of all classes' gaps (R, K) and gradients (K, R, ...), those of the class that looks nearest."""
        flat = slopes.flatten(2)
        dual = flat.abs().sum(dim=2) if self.norm == "Linf" else flat.square().sum(dim=2).sqrt()
        distance = gaps.abs() / (_TINY + dual.T)
        nearest = distance.masked_fill(label_mask(gaps, labels), torch.inf).argmin(dim=1)
        rows = torch.arange(len(labels), device=labels.device)
        return gaps[rows, nearest], slopes[nearest, rows]
