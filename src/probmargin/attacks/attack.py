"""The contract of an attack and the registry of all of them."""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, final

import torch

from probmargin.attacks.balls import to_unit
from probmargin.core.autocast import check_autocast
from probmargin.core.batch import AttackResult, TraceLevel
from probmargin.core.errors import UsageError, one_logit
from probmargin.core.frozen import ModelMode, frozen
from probmargin.core.fusing import fusable
from probmargin.core.inference import outside_inference_mode, with_gradients, writes
from probmargin.core.losses import KLDirection, cross_entropy, cw_loss, directed_kl
from probmargin.core.noise import Noise, fresh_noise
from probmargin.core.registry import Registry, is_own
from probmargin.core.settings import PIXEL_ROUNDING
from probmargin.core.types import Classifier, Images, Labels, Logits, PerExample

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_HALF = (torch.float16, torch.bfloat16)
AttackLoss = Literal["ce", "kl", "cw"]


class Attack(ABC):
    """Finds adversarial images inside a ball, and leaves images, model and train/eval mode as found."""

    registered_name: ClassVar[str]
    records_steps: ClassVar[bool] = False
    """Whether it can return a trace of its steps."""
    model_mode: ModelMode = "eval"
    """The model's mode during the attack; in `train` batch norm uses batch statistics and its buffers stay put."""

    @final
    def __call__(
        self,
        model: Classifier,
        x: Images,
        labels: Labels,
        *,
        noise: Noise | None = None,
        trace: TraceLevel = "none",
    ) -> AttackResult:
        """Attack the images; without `noise`, random numbers follow torch's global generator."""
        highest = _check_call(model, x, labels, noise)
        x = to_unit(x)
        with outside_inference_mode(), frozen(model, self.model_mode) as call:
            source = fresh_noise(len(x), x.device) if noise is None else noise
            known = _with_classes(call, highest)
            images, classes = with_gradients(x.detach()), with_gradients(labels.long())
            result = self.carry_out(known, images, classes, noise=source, trace=trace)
        _check_result(result, x, type(self).__name__)
        return result

    @final
    def carry_out(
        self, model: Classifier, x: Images, labels: Labels, *, noise: Noise, trace: TraceLevel
    ) -> AttackResult:
        """Run on a model that is already frozen; an attack that writes into the clean images or labels is refused."""
        before = writes(x), writes(labels)
        result = self.run(model, x, labels, noise=noise, trace=trace)
        if is_own(self) and (writes(x), writes(labels)) != before and not _writes(model, x):
            raise writes_into_images(self)
        return result

    @abstractmethod
    def run(self, model: Classifier, x: Images, labels: Labels, *, noise: Noise, trace: TraceLevel) -> AttackResult:
        """Attack a model that is already frozen."""


def writes_into_images(attack: Attack) -> UsageError:
    """The error for an attack that changes what it is given."""
    return UsageError(
        f"attack {type(attack).__name__} changes clean images or labels in place: write x = x + step for x += step, "
        "or begin with x = x.clone()"
    )


def _writes(model: Classifier, x: Images) -> bool:
    """Is it the model that writes into its images?"""
    images = x.clone()
    before = writes(images)
    logits_without_gradient(model, images)
    return writes(images) != before


def _check_result(result: object, x: Images, name: str) -> None:
    """Refuse what is no adversarial image for each image; an attack may be anybody's."""
    if not isinstance(result, AttackResult):
        raise UsageError(f"attack {name} returns {type(result).__name__}: return AttackResult(x_adv)")
    found = getattr(result.x_adv, "shape", None)
    if found != x.shape:
        shape = type(result.x_adv).__name__ if found is None else tuple(found)
        raise UsageError(f"attack {name} returns {shape} for images {tuple(x.shape)}: return as many of the same shape")


def _check_call(model: object, x: object, labels: object, noise: object) -> int:
    """Refuse what is no batch of images in [0, 1] with classes; the highest class is what is left to check."""
    if not callable(model) or isinstance(model, type):
        raise UsageError("an attack calls the model: pass a network, or a function from images to logits")
    if not isinstance(x, torch.Tensor) or not isinstance(labels, torch.Tensor):
        found = type(x if not isinstance(x, torch.Tensor) else labels).__name__
        raise UsageError(f"an attack takes tensors x and labels, not {found}: convert them first")
    if x.ndim < 2 or not x.is_floating_point() or labels.shape != x.shape[:1] or labels.dtype not in _INTEGERS:
        raise UsageError(
            f"an attack takes float images (B, C, H, W) in [0, 1] and B integer labels, not {x.dtype} "
            f"{tuple(x.shape)} and {labels.dtype} {tuple(labels.shape)}: convert them first"
        )
    if not isinstance(noise, Noise | None):
        raise UsageError(f"noise is given as {type(noise).__name__}: pass a KeyedNoise, or leave it out")
    check_autocast(x.device)
    _check_pixels(x)
    if len(labels) == 0:
        return 0
    lowest, highest = torch.stack(torch.aminmax(labels)).tolist()
    if lowest < 0:
        raise UsageError("an attack takes labels from 0 on: leave out what has no label")
    return int(highest)


def _check_pixels(x: Images) -> None:
    """Refuse images outside [0, 1], and those whose rounding is as coarse as a step."""
    if x.dtype in _HALF:
        raise UsageError(f"images are {x.dtype}, too coarse for an attack's steps: pass x.float()")
    if not bool(((x >= -PIXEL_ROUNDING) & (x <= 1 + PIXEL_ROUNDING)).all()):
        if not bool(x.isfinite().all()):
            raise UsageError("an attack takes finite images; these hold NaN or infinite values: repair or drop them")
        raise UsageError(
            "an attack takes images in [0, 1]: put the normalisation inside the model, and divide bytes by 255"
        )


def _with_classes(model: Classifier, highest: int) -> Classifier:
    """The model, which refuses a label beyond its classes before anything looks that label up on a device."""

    def forward(x: Images) -> Logits:
        logits = model(x)
        if not isinstance(logits, torch.Tensor):
            raise UsageError(f"the model returns {type(logits).__name__}; return one tensor of logits (B, classes)")
        if logits.ndim == 2 and logits.shape[1] == 1:
            raise one_logit()
        if logits.ndim == 2 and logits.shape[1] <= highest:
            count = logits.shape[1]
            raise UsageError(
                f"labels go up to {highest} but the model has {count} classes: relabel them as 0 to {count - 1}"
            )
        return logits

    return forward


ATTACKS: Registry[Attack] = Registry("attack", "probmargin.attacks")


@fusable
def attack_loss(
    loss: AttackLoss, logits: Logits, labels: Labels, reference: Logits | None, direction: KLDirection
) -> PerExample:
    """The loss an attack maximises; `kl` compares with the clean image's logits."""
    if loss == "ce":
        return cross_entropy(logits, labels)
    if loss == "cw":
        return cw_loss(logits, labels)
    if reference is None:
        raise ValueError("the KL loss needs the clean image's logits")
    return directed_kl(reference, logits, direction)


def logits_without_gradient(model: Classifier, x: Images) -> Logits:
    """Logits in the images' own precision, whatever the network computed in."""
    with torch.no_grad():
        return model(x).to(x.dtype)
