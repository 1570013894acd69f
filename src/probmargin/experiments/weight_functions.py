"""The weight functions over the margin they weigh by."""

from typing import Any

import torch

from probmargin.core.records import to_plain
from probmargin.experiments.study import Bench, Study
from probmargin.weights.gairat import GairatDiscrete, GairatSigmoid, GairatTanh
from probmargin.weights.hinge import Hinge, HingeAsPrinted
from probmargin.weights.sigmoid import Sigmoid
from probmargin.weights.step import Step
from probmargin.weights.weight import Weight

NUM_STEPS = 10

OF_MARGIN: dict[str, Weight] = {
    "sigmoid, slope 10, bias -0.5 (MAIL-AT)": Sigmoid(slope=10.0, bias=-0.5),
    "sigmoid, slope 2, bias 0 (MAIL-TRADES)": Sigmoid(slope=2.0, bias=0.0),
    "hinge, slope 2": Hinge(slope=2.0, bias=0.0),
    "hinge as printed": HingeAsPrinted(slope=2.0, bias=0.0),
    "step, 0.2 and 0.8": Step(alpha=0.2, bias=0.0),
}
OF_STEPS: dict[str, Weight] = {
    "tanh, lambda -1 (GAIRAT)": GairatTanh(lam=-1.0, num_steps=NUM_STEPS),
    "sigmoid, lambda -1": GairatSigmoid(lam=-1.0, num_steps=NUM_STEPS),
    "discrete": GairatDiscrete(num_steps=NUM_STEPS),
}


def _curves(weights: dict[str, Weight], at: torch.Tensor) -> list[dict[str, Any]]:
    return [
        {"name": name, "component": to_plain(weight), "weight": weight(at).tolist()} for name, weight in weights.items()
    ]


def measure(_: Bench) -> dict[str, Any]:
    """Raw weights, before a batch is normalised."""
    margin, steps = torch.linspace(-1.0, 1.0, 201), torch.arange(NUM_STEPS + 1.0)
    return {
        "margin": margin.tolist(),
        "of_margin": _curves(OF_MARGIN, margin),
        "steps": steps.tolist(),
        "of_steps": _curves(OF_STEPS, steps),
        "summary": ["Raw weights; a normaliser then scales each batch, to mean one unless the recipe says otherwise."],
    }


WEIGHT_FUNCTIONS = Study(name="weight-functions", title="Weight functions", measure=measure)
