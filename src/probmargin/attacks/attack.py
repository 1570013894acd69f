"""The contract of an attack and the registry of all of them."""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, final

import torch

from probmargin.core.batch import AttackResult, TraceLevel
from probmargin.core.errors import UsageError
from probmargin.core.frozen import ModelMode, frozen
from probmargin.core.fusing import fusable
from probmargin.core.losses import KLDirection, cross_entropy, cw_loss, directed_kl
from probmargin.core.noise import Noise, fresh_noise
from probmargin.core.registry import Registry
from probmargin.core.types import Classifier, Images, Labels, Logits, PerExample

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
        _check_call(model, x, labels, noise)
        source = fresh_noise(len(x), x.device) if noise is None else noise
        with frozen(model, self.model_mode) as call:
            return self.run(call, x.detach(), labels, noise=source, trace=trace)

    @abstractmethod
    def run(self, model: Classifier, x: Images, labels: Labels, *, noise: Noise, trace: TraceLevel) -> AttackResult:
        """Attack a model that is already frozen."""


def _check_call(model: object, x: object, labels: object, noise: object) -> None:
    """Refuse what is no batch of images in [0, 1]."""
    if not callable(model) or isinstance(model, type):
        raise UsageError("an attack calls the model: pass a network, or a function from images to logits")
    if not isinstance(x, torch.Tensor) or not isinstance(labels, torch.Tensor):
        found = type(x if not isinstance(x, torch.Tensor) else labels).__name__
        raise UsageError(f"an attack takes tensors x and labels, not {found}: convert them first")
    if x.ndim < 2 or not x.is_floating_point() or labels.shape != x.shape[:1] or labels.is_floating_point():
        raise UsageError(
            f"an attack takes float images (B, C, H, W) in [0, 1] and B integer labels, not {x.dtype} "
            f"{tuple(x.shape)} and {labels.dtype} {tuple(labels.shape)}: convert them first"
        )
    if not isinstance(noise, Noise | None):
        raise UsageError(f"noise is given as {type(noise).__name__}: pass a KeyedNoise, or leave it out")
    if not bool(((x >= 0) & (x <= 1)).all()):
        raise UsageError(
            "an attack takes images in [0, 1]: put the normalisation inside the model, and divide bytes by 255"
        )
    if bool((labels < 0).any()):
        raise UsageError("an attack takes labels from 0 on: leave out what has no label")


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
