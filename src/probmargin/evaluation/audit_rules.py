"""The checks of an audit: what each measures, where it warns, what to do then.

Thresholds that follow from arithmetic are 0 or the size of rounding. The others lie between the largest value of AT
and TRADES and the smallest of the mask that a check is meant for, on the digits of seeds 0 to 4 (120 images, eps 0.15);
a test judges them on seeds 5 to 9:

    check           AT, TRADES    mask it is meant for             threshold
    zero_gradients  0             0.99 low temperature             0.05
    logit_scale     0.008         0.1 low temperature              0.03
    flat_loss       0.39          1.0 quantised logits             0.75
    restarts        0.033         0.075 random input noise         0.06
    noise           0             0.042 quantised logits           0.025
    eps_one         0             0.42 low temperature             0.05
    black_box       0             0.042 quantised logits           0.025
    pgd_aa_gap      0.042         0.167 low temperature            0.1
    transfer        as black_box

flat_loss was taken there with the clean loss in it, which makes the share of a rising loss larger and leaves 1 at 1:
without it AT and TRADES of seeds 5 to 9 give at most 0.064, and quantised logits 1.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Rule:
    """What a check looks at, where it warns, and what to do then."""

    measures: str
    threshold: float
    advice: str


RULES = {
    "normalised_inputs": Rule(
        "share of pixel values outside [0, 1]",
        0.0,
        "Pass images in [0, 1] and put the normalisation inside the model, or eps means something else.",
    ),
    "train_mode": Rule(
        "layers that were in training mode", 0.0, "Call model.eval() before judging: dropout and batch norm act."
    ),
    "softmax_output": Rule(
        "1 where outputs look like probabilities", 0.0, "Return logits: a softmax at the end flattens the gradient."
    ),
    "one_answer": Rule(
        "1 where all images get the same answer, though their labels differ",
        0.0,
        "Look at accuracy by class: what answers one class to everything withstands every attack, and is of no use.",
    ),
    "stochastic_output": Rule(
        "largest distance between outputs of one image in five passes",
        1e-4,
        "Judge it with aa-rand and average over passes: a random output misleads attacks of one pass.",
    ),
    "batch_dependence": Rule(
        "largest distance between outputs of one image beside different others",
        1e-4,
        "Give batch norm its running statistics and take no mean over the batch: numbers change with the batch.",
    ),
    "inner_gradients": Rule(
        "1 where the forward pass computes gradients itself",
        0.0,
        "Judge it by an attack made for it: a defence that optimises at test time answers each attack anew.",
    ),
    "zero_gradients": Rule(
        "share of images whose cross-entropy gradient is zero or not a number",
        0.05,
        "Find what is not differentiable or saturated; attack through a smooth stand-in or a rescaled logit.",
    ),
    "logit_scale": Rule(
        "share broken by PGD-20 on rescaled logits alone",
        0.03,
        "Believe attacks that do not depend on the scale (apgd-t, cw): the logits' scale starves cross-entropy.",
    ),
    "flat_loss": Rule(
        "rise of the loss by 1 step of PGD as a share of that by 100",
        0.75,
        "More steps should raise the loss; if they do not, the gradient leads nowhere and PGD's number means little.",
    ),
    "restarts": Rule(
        "share of images that only restarts 2 to 5 of PGD-20 break",
        0.06,
        "Report restarts, or better aa: one start depends on luck here.",
    ),
    "noise": Rule(
        "share broken by random noise and not by PGD-20",
        0.025,
        "Random noise must not beat a gradient: check the attack's gradient on these images.",
    ),
    "eps_one": Rule(
        "robust accuracy where every image is allowed",
        0.05,
        "With the whole cube to choose from an attack must win: its search is broken or blind.",
    ),
    "black_box": Rule(
        "share broken by Square and by no attack with gradients",
        0.025,
        "An attack without gradients beats those with: gradients are masked; report aa, and not PGD.",
    ),
    "pgd_aa_gap": Rule(
        "share that withstands PGD-20 and falls to apgd-ce, apgd-t or Square",
        0.1,
        "PGD overstates this model: report aa, and doubt any comparison made with PGD.",
    ),
    "transfer": Rule(
        "share broken by another model's adversarial images and by no attack on this one",
        0.025,
        "Images made for another model beat those made for this one: gradients are masked.",
    ),
}

OF_IMAGES = ("zero_gradients", "logit_scale", "restarts", "noise", "eps_one", "black_box", "pgd_aa_gap", "transfer")
"""Checks that count images: of few images a single one is above a threshold."""


def number_or_none(value: float | None) -> float | None:
    """A value as JSON can hold it: None for what is no finite number.

    >>> number_or_none(0.5), number_or_none(float("nan"))
    (0.5, None)
    """
    return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class Check:
    """One check's outcome."""

    name: str
    value: float | None
    """None where it was not run."""
    reason: str = ""
    """Why it was not run."""

    @property
    def verdict(self) -> Literal["pass", "warn", "not run"]:
        """A number that is no number warns too."""
        if self.value is None:
            return "not run"
        return "pass" if self.value <= RULES[self.name].threshold else "warn"

    def advice(self, num_examples: int) -> str:
        """What to do; a warning that rests on one image says so.

        >>> Check("noise", 0.05).advice(20)[-44:]
        'It is 1 image of 20: judge more before that.'
        """
        advice = RULES[self.name].advice
        is_one = self.verdict == "warn" and self.name in OF_IMAGES and self.value == 1 / num_examples
        return f"{advice} It is 1 image of {num_examples}: judge more before that." if is_one else advice

    def plain(self, num_examples: int) -> dict[str, Any]:
        """As stored in audit.json."""
        rule = RULES[self.name]
        stored = {
            "name": self.name,
            "measures": rule.measures,
            "value": number_or_none(self.value),
            "threshold": rule.threshold,
        }
        stored |= {"verdict": self.verdict, "advice": self.advice(num_examples)}
        return stored | ({"reason": self.reason} if self.reason else {})
