"""Adversarial images in a file, as floats and as 8-bit pixels, judged again as they lie on disk."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from probmargin.attacks.balls import Norm
from probmargin.core.arrays import UNREADABLE, read_arrays
from probmargin.core.errors import UsageError
from probmargin.core.frozen import frozen
from probmargin.core.losses import is_correct
from probmargin.core.types import Images, Labels
from probmargin.evaluation.checks import no_answer
from probmargin.evaluation.room import find_room
from probmargin.evaluation.search import all_logits, inside_threat_model, perturbation_size
from probmargin.evaluation.verdicts import Verdicts, write_arrays

_SLACK = 1e-4


def round_inside(x_adv: Images, x: Images, norm: Norm, eps: float) -> torch.Tensor:
    """Eight-bit pixels near `x_adv` and inside the ball around `x`, whose own pixels are k / 255.

    Rounding may leave the ball. In L-inf each pixel is brought back to the last level inside; in L2 an image that is
    outside has its pixels rounded toward the clean ones instead, which only shortens the perturbation.

    >>> x = torch.full((1, 1, 1, 2), 100 / 255)
    >>> round_inside(x + 0.031, x, "Linf", 0.031).flatten().tolist()   # 7.905 levels: 8 would be outside
    [107, 107]
    """
    clean, wanted = (x.double() * 255).round(), x_adv.double() * 255
    levels = wanted.round()
    if norm == "Linf":
        reach = int(eps * 255 + _SLACK)
        levels = torch.minimum(torch.maximum(levels, clean - reach), clean + reach)
    else:
        outside = perturbation_size(levels / 255, clean / 255, norm) > eps
        levels = torch.where(outside.view(-1, 1, 1, 1), clean + (wanted - clean).trunc(), levels)
    return levels.clamp(0, 255).to(torch.uint8)


def save_adversarial(path: Path, model: nn.Module, x: Images, x_adv: Images, verdicts: Verdicts) -> dict[str, Any]:
    """Write the images, read them back, judge them; robust accuracy of the float and of the 8-bit images."""
    norm, eps = verdicts.facts["norm"], verdicts.facts["eps"]
    x, x_adv = x.cpu().float(), x_adv.cpu().float()
    arrays = {
        "x_adv": x_adv.numpy(),
        "x_adv_uint8": round_inside(x_adv, x, norm, eps).numpy(),
        "ids": verdicts.ids,
        **verdicts.places(),
        "labels": verdicts.labels,
        "classes": np.array(verdicts.facts.get("classes", ()), dtype=str),
        "broken_by": np.array(verdicts.broken_by),
        "logit_margin": verdicts.worst["margin"],
        "size": verdicts.worst["size"],
        "norm": np.array(norm),
        "eps": np.array(eps),
    }
    write_arrays(path, arrays)
    return {"file": path.name, **rescore(path, model, x)}


def rescore(path: Path, model: nn.Module, x: Images) -> dict[str, Any]:
    """Judge the images of a file against the clean ones: what they break, and whether all are inside the ball."""
    try:
        content = read_arrays(path)
        labels = torch.from_numpy(content["labels"])
        images = {
            "float32": torch.from_numpy(content["x_adv"]),
            "uint8": torch.from_numpy(content["x_adv_uint8"]).float() / 255.0,
        }
        norm: Norm = "L2" if str(content["norm"]) == "L2" else "Linf"
        eps = float(content["eps"])
    except UNREADABLE as error:
        raise UsageError(
            f"{path} does not hold adversarial images ({error}): write it again with --save-adversarial"
        ) from None
    return {name: _judged(model, x.cpu(), part, labels, norm, eps) for name, part in images.items()}


def _judged(
    model: nn.Module, x: Images, x_adv: Images, labels: Labels, norm: Norm, eps: float
) -> dict[str, float | int]:
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    with frozen(model, "eval") as call:
        moved = x_adv.to(device)
        logits = all_logits(call, moved, find_room(call, moved, None)).cpu()
    inside = inside_threat_model(x_adv, x, norm, eps)
    right = is_correct(logits, labels) & ~no_answer(logits, labels)
    return {
        "robust_accuracy": float(right.double().mean()),
        "broken": int((~right).sum()),
        "outside_the_ball": int((~inside).sum()),
        "largest_perturbation": float(perturbation_size(x_adv, x, norm).max()),
    }
