"""A written file against the model it was made from."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from probmargin.core.errors import Failure
from probmargin.core.frozen import frozen
from probmargin.core.losses import logit_margin
from probmargin.core.types import Classifier
from probmargin.evaluation.evaluate import EvaluationSettings, correct_under
from probmargin.evaluation.protocol import build_attack
from probmargin.export.subject import Exported

ATTACK = "pgd-20"
_RELATIVE = 1e-4
_ROBUST_SHARE = 0.01
_BATCHES = (1, 3)


@dataclass(frozen=True)
class Check:
    """What both give on the same test images."""

    num_examples: int
    natural: tuple[float, float]
    """Accuracy of the original and of the file."""
    robust: tuple[float, float] | None
    """The same under PGD-20; None for a format without gradients."""
    largest_logit_difference: float

    def plain(self) -> dict[str, Any]:
        """As a card has it."""
        return {**asdict(self), "attack": ATTACK if self.robust else None}

    def line(self) -> str:
        """What is said when the file is there."""
        text = f"read again: natural {self.natural[1]:.2%} (original {self.natural[0]:.2%})"
        if self.robust:
            text += f", PGD-20 {self.robust[1]:.2%} (original {self.robust[0]:.2%})"
        return f"{text} on {self.num_examples} test images, logits within {self.largest_logit_difference:.1e}"


def check_file(subject: Exported, loaded: Classifier, *, has_gradients: bool) -> Check:
    """Compare, and fail where the file is not the model."""
    x, labels = subject.x, subject.labels
    call = _plain(loaded)
    with frozen(subject.model, "eval") as original:
        logits, found = (_logits(model, x) for model in (original, call))
        tolerance = _RELATIVE * max(1.0, float(logits.abs().max()))
        for count in _BATCHES:
            # What an image's answer is may depend on the images beside it.
            wanted = _logits(original, x[:count])
            _compare(wanted, _logits(call, x[:count]), tolerance, f"for a batch of {count}")
        gap = _compare(logits, found, tolerance, "for the test images")
        right, right_there = logits.argmax(1) == labels, found.argmax(1) == labels
        clear = logit_margin(logits, labels).abs() > 2 * tolerance
        if not torch.equal(right[clear], right_there[clear]):
            raise Failure(_mismatch(f"natural accuracy is {_share(right_there):.2%}, not {_share(right):.2%}"))
        robust = _robust(subject, original, call) if has_gradients else None
    return Check(len(x), (_share(right), _share(right_there)), robust, gap)


def _robust(subject: Exported, original: Classifier, loaded: Classifier) -> tuple[float, float]:
    norm, eps = subject.ball
    attack = build_attack(ATTACK, norm, eps)
    settings = EvaluationSettings(norm=norm, eps=eps, batch_size=64)
    first, second = (
        _share(correct_under(model, attack, subject.x, subject.labels, settings)) for model in (original, loaded)
    )
    # Steps follow signs of gradients, so two roundings of one model may part on single images.
    if abs(first - second) > max(_ROBUST_SHARE, 2 / len(subject.x)):
        raise Failure(_mismatch(f"accuracy under {ATTACK} is {second:.2%}, not {first:.2%}"))
    return first, second


def _plain(model: Classifier) -> Classifier:
    """The model as a mere function: an exported program cannot change its mode."""
    return lambda x: model(x)


def _logits(model: Classifier, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([model(part) for part in x.split(64)])


def _share(right: torch.Tensor) -> float:
    return float(right.double().mean())


def _compare(wanted: torch.Tensor, found: torch.Tensor, tolerance: float, where: str) -> float:
    if wanted.shape != found.shape:
        raise Failure(_mismatch(f"its logits have shape {tuple(found.shape)}, not {tuple(wanted.shape)}, {where}"))
    gap = float((wanted - found).abs().max())
    if not gap <= tolerance:
        raise Failure(_mismatch(f"its logits differ by {gap:.2g} {where}"))
    return gap


def _mismatch(what: str) -> str:
    return f"the written file is not the model: {what}; try another --format, the file was removed"
