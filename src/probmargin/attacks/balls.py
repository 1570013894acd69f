"""Threat balls: projection, steepest direction and random starts, for L-inf and L2."""

from typing import Literal

import torch

from probmargin.core.errors import UsageError
from probmargin.core.fusing import fusable
from probmargin.core.noise import Noise
from probmargin.core.types import Images

Norm = Literal["Linf", "L2"]
Start = Literal["normal_1e-3", "uniform_eps", "uniform_01", "zero"]

_TINY = 1e-12


def check_eps(norm: Norm, eps: float) -> None:
    """Refuse a norm that is unknown, and a radius that cannot be meant."""
    if norm not in ("Linf", "L2"):
        raise UsageError(f"unknown norm {norm!r}; use Linf or L2")
    if norm == "Linf" and eps > 1:
        raise UsageError(f"an L-inf eps must be in (0, 1], not {eps:g} (images are in [0, 1]): write 8/255, not 8")
    if not 0 < eps < float("inf"):
        name = "L-inf" if norm == "Linf" else "L2"
        raise UsageError(
            f"an {name} eps must be above 0, not {eps:g}; use the attack nat, or the method standard, for clean images"
        )


def norm_l2(values: torch.Tensor) -> torch.Tensor:
    """Euclidean norm of each example, shaped to multiply a batch of images."""
    norms: torch.Tensor = torch.linalg.vector_norm(values.flatten(1), dim=1)
    return norms.view(-1, *[1] * (values.ndim - 1))


def to_unit(x: Images) -> Images:
    """Images whose pixels rounding left a little outside [0, 1], brought back; others as they are."""
    low, high = torch.aminmax(x.detach()) if x.numel() else (x.new_zeros(()), x.new_ones(()))
    return x if bool((low >= 0) & (high <= 1)) else x.clamp(0.0, 1.0)


def project(x_adv: Images, x: Images, norm: Norm, eps: float) -> Images:
    """Into the ball first, then into [0, 1].

    >>> x = torch.tensor([[0.1, 0.5]])
    >>> project(torch.tensor([[-0.2, 0.9]]), x, "Linf", 0.3).tolist()
    [[0.0, 0.8]]
    """
    if norm == "Linf":
        return torch.minimum(torch.maximum(x_adv, x - eps), x + eps).clamp(0.0, 1.0)
    delta = x_adv - x
    return (x + delta * (eps / norm_l2(delta).clamp(min=_TINY)).clamp(max=1.0)).clamp(0.0, 1.0)


def finite_or_zero(gradient: torch.Tensor) -> torch.Tensor:
    """A gradient whose entries that are no finite number are zero: one of them would make the whole image NaN.

    >>> finite_or_zero(torch.tensor([[torch.inf, torch.nan, -2.0]])).tolist()   # of a square root at 0, say
    [[0.0, 0.0, -2.0]]
    """
    return torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)


def steepest(gradient: torch.Tensor, norm: Norm) -> torch.Tensor:
    """The direction of fastest ascent of unit size: the sign for L-inf (sign 0 = 0), the unit vector for L2."""
    gradient = finite_or_zero(gradient)
    return gradient.sign() if norm == "Linf" else gradient / (norm_l2(gradient) + _TINY)


@fusable
def ascend(x_adv: Images, gradient: torch.Tensor, x: Images, norm: Norm, eps: float, step_size: float) -> Images:
    """One step of steepest ascent, projected."""
    return project(x_adv + step_size * steepest(gradient, norm), x, norm, eps)


def random_start(x: Images, start: Start, norm: Norm, eps: float, noise: Noise) -> Images:
    """Where an attack begins; not clamped to [0, 1], and `uniform_01` not even in the ball before the first step."""
    shape = tuple(x.shape[1:])
    if start == "zero":
        return x.clone()
    if start == "normal_1e-3":
        return x + 1e-3 * noise.normal(shape, stream="start").to(x.dtype)
    if start == "uniform_01":
        return x + noise.uniform(shape, stream="start").to(x.dtype)
    if norm == "Linf":
        return x + eps * (2.0 * noise.uniform(shape, stream="start").to(x.dtype) - 1.0)
    direction = steepest(noise.normal(shape, stream="start").to(x.dtype), "L2")
    share = noise.uniform((1,) * len(shape), stream="start/radius").to(x.dtype)
    return x + eps * direction * share ** (1.0 / x[0].numel())
