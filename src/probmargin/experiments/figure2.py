"""Figure 2: one attack path, counted in steps (LPS) and measured in probability (PM)."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from probmargin.attacks.balls import random_start
from probmargin.attacks.pgd import PGD
from probmargin.core.losses import probabilistic_margin
from probmargin.core.noise import KeyedNoise
from probmargin.experiments.followed import Followed, Subject, follow, subject_of
from probmargin.experiments.study import Bench, Study

EXAMPLES = {"smoke": 500, "full": 1000}
WANTED_LPS = 6
"""The paper's picture crosses the boundary at step 6."""
_GRID = 61
_PAD = 0.25


def choose(path: Followed) -> int:
    """The first image whose path crosses once, never comes back, and does so nearest to step 6."""
    crosses_once = (path.correct[:-1] >= path.correct[1:]).all(axis=0) & path.correct[0] & ~path.correct[-1]
    distance = np.abs(path.first_cross - WANTED_LPS) + np.where(crosses_once, 0.0, 100.0)
    return int(np.argmin(distance))


def iterates(subject: Subject, attack: PGD, seed: int = 0) -> torch.Tensor:
    """Every point of the path of one image, from the noisy start on, shaped (K + 1, C, H, W)."""
    noise = KeyedNoise(seed=seed, ids=subject.ids)
    points = [random_start(subject.x, attack.start, attack.norm, attack.eps, noise)]
    for steps in range(1, attack.num_steps + 1):
        # Noise is keyed, so a shorter attack is the beginning of a longer one.
        shorter = replace(attack, num_steps=steps)
        points.append(shorter(subject.model, subject.x, subject.labels, noise=noise).x_adv)
    return torch.cat(points)


def plane(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two unit directions and the path's places along them: from start to end, and the widest way off that line."""
    flat = (points - points[:1]).flatten(1).double().cpu()
    ahead = flat[-1] / flat[-1].norm().clamp(min=1e-12)
    aside = flat - (flat @ ahead)[:, None] * ahead
    _, _, directions = torch.linalg.svd(aside, full_matrices=False)
    # A singular vector has no sign of its own: the path is to bend downwards.
    across = -directions[0] if float((aside @ directions[0]).sum()) > 0 else directions[0]
    axes = torch.stack([ahead, across])
    return axes, flat @ ahead, flat @ across


def landscape(subject: Subject, points: torch.Tensor) -> dict[str, Any]:
    """PM over the plane of the path; the path itself lies a little off it."""
    axes, along, across = plane(points)
    reach = float(along.max() - along.min())
    half = max(float(across.abs().max()), 0.5 * reach)
    xs = torch.linspace(float(along.min()) - _PAD * reach, float(along.max()) + _PAD * reach, _GRID)
    ys = torch.linspace(-(1 + _PAD) * half, (1 + _PAD) * half, _GRID)
    grid = torch.stack(torch.meshgrid(xs, ys, indexing="xy"), dim=-1).reshape(-1, 2).double()
    images = (points[:1].cpu().double().flatten(1) + grid @ axes).float().view(-1, *points.shape[1:])
    images = images.to(points.device)
    pm = probabilistic_margin(subject.logits(images), subject.labels.expand(len(images)))
    return {
        "along": along.numpy(),
        "across": across.numpy(),
        "x": xs.numpy(),
        "y": ys.numpy(),
        "pm": pm.view(_GRID, _GRID).cpu().numpy(),
    }


def measure(bench: Bench) -> dict[str, Any]:
    """The path of one image under the attack of training: PM and prediction at every point."""
    subject = subject_of(bench, "at", EXAMPLES[bench.scale])
    attack = subject.attack
    assert isinstance(attack, PGD)
    place = choose(follow(subject, attack))
    one = subject.take(place)
    points = iterates(one, attack)
    logits = one.logits(points)
    labels = one.labels.expand(len(points))
    pm = probabilistic_margin(logits, labels).cpu().numpy()
    correct = (logits.argmax(dim=1) == labels).cpu().numpy()
    lps = int(np.argmin(correct)) if not correct.all() else attack.num_steps
    other = subject.classes[int(logits[-1].argmax())]
    clean = float(probabilistic_margin(one.logits(one.x), one.labels))
    summary = [
        f"Training image {int(one.ids[0])} ({one.class_name(0)}, then taken for {other}): LPS is {lps} of "
        f"{attack.num_steps} steps; PM falls from {pm[0]:.2f} to {pm[-1]:.2f}, step by step."
    ]
    return {
        "eps": attack.eps,
        "step_size": attack.step_size,
        "num_steps": attack.num_steps,
        "index": int(one.ids[0]),
        "class": one.class_name(0),
        "other": other,
        "lps": lps,
        "pm": pm,
        "pm_nat": clean,
        "correct": correct,
        "landscape": landscape(one, points),
        "summary": summary,
    }


FIGURE2 = Study(name="figure2", title="One attack path: LPS and PM", rows=("at",), measure=measure)
