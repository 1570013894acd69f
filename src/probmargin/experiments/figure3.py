"""Figure 3: PM on the probability simplex, and where the data lies on it."""

from typing import Any

import torch

from probmargin.core.losses import runner_up
from probmargin.experiments.followed import Subject, follow, subject_of
from probmargin.experiments.study import Bench, Study
from probmargin.reporting.dynamics import SAFE_ABOVE, areas

EXAMPLES = {"smoke": None, "full": 10_000}
DRAWN = 250


def places(subject: Subject, x: torch.Tensor) -> torch.Tensor:
    """Each image as (p of its label, p of the most likely other class, all the rest)."""
    probability = subject.logits(x).softmax(dim=1)
    label = probability.gather(1, subject.labels[:, None])[:, 0]
    other = runner_up(probability, subject.labels)
    return torch.stack([label, other, 1.0 - label - other], dim=1).cpu()


def measure(bench: Bench) -> dict[str, Any]:
    """Probabilities of clean and attacked training images, and the shares of the three areas."""
    subject = subject_of(bench, "at", EXAMPLES[bench.scale])
    clean = places(subject, subject.x)
    attacked = places(subject, follow(subject, subject.attack).x_adv.to(subject.x.device))
    found = {"clean": clean, "attacked": attacked}
    shares = {name: areas((points[:, 0] - points[:, 1]).numpy()) for name, points in found.items()}
    step = max(1, len(clean) // DRAWN)
    summary = [
        f"{name.capitalize()} training images: {share['safe']:.1%} safe (PM above {SAFE_ABOVE:g}), "
        f"{share['boundary']:.1%} near the boundary, {share['wrong']:.1%} wrong."
        for name, share in shares.items()
    ]
    return {
        "safe_above": SAFE_ABOVE,
        "examples": len(clean),
        "points": {name: points[::step].numpy() for name, points in found.items()},
        "areas": shares,
        "eps": subject.eps,
        "summary": summary,
    }


FIGURE3 = Study(name="figure3", title="PM on the probability simplex", rows=("at",), measure=measure)
