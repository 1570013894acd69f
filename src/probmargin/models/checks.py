"""What can be wrong with a network before anything is done with it."""

import torch
from torch import nn

from probmargin.core.errors import UsageError
from probmargin.core.frozen import model_mode
from probmargin.core.types import Logits
from probmargin.models.own import failed_at

_CLOSE = 1e-5
_SAME = 1e-4


def looks_like_probabilities(logits: Logits) -> bool:
    """Whether every row is between 0 and 1 and sums to 1.

    >>> looks_like_probabilities(torch.tensor([[0.7, 0.3]])), looks_like_probabilities(torch.tensor([[7.0, 3.0]]))
    (True, False)
    """
    inside = bool((logits < 1 + _CLOSE).all()) and bool((logits > -_CLOSE).all())
    return inside and bool(((logits.sum(dim=1) - 1).abs() < _CLOSE).all())


def check_model(model: nn.Module, image_shape: tuple[int, ...], num_classes: int, name: str) -> None:
    """Refuse a model that does not turn the data's images into one finite logit a class."""
    _outputs(model, image_shape, num_classes, name)


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that are not frozen; at least one must be left."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise UsageError("the model has no parameter that can be trained: every one is frozen; leave a layer free")
    return trained


def check_trainable(model: nn.Module, image_shape: tuple[int, ...], num_classes: int, name: str) -> None:
    """Refuse, beyond that, a model whose outputs are probabilities or differ from call to call in eval mode."""
    first, second = _outputs(model, image_shape, num_classes, name)
    trained_parameters(model)
    check_logits(first, name)
    if float((first - second).abs().max()) > _SAME:
        raise UsageError(
            f"model {name} is random in eval mode: its dropout or noise stays on; use nn.Dropout, or "
            "F.dropout(..., training=self.training)"
        )


def check_logits(logits: Logits, name: str) -> None:
    """Refuse probabilities: every loss and attack takes the softmax itself."""
    if looks_like_probabilities(logits):
        raise UsageError(f"model {name} returns probabilities; leave out its last softmax, so that it returns logits")


def _outputs(
    model: nn.Module, image_shape: tuple[int, ...], num_classes: int, name: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two passes over the same two random images."""
    parameters = list(model.parameters())
    device = parameters[0].device if parameters else torch.device("cpu")
    x = torch.rand(2, *image_shape, generator=torch.Generator().manual_seed(0)).to(device)
    try:
        with model_mode(model, "eval"), torch.no_grad():
            first, second = model(x), model(x)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"model {name} does not take images of shape {image_shape}: {failed_at(error)}; build it for "
            f"{image_shape[0]} channels and images of {image_shape[1]}x{image_shape[2]}, or pass other data"
        ) from None
    if not isinstance(first, torch.Tensor):
        raise UsageError(f"model {name} returns {type(first).__name__}; return one tensor of logits (B, classes)")
    if tuple(first.shape) != (2, num_classes):
        raise UsageError(
            f"model {name} gives an output of shape {tuple(first.shape)} for 2 images; the data has {num_classes} "
            f"classes, so it must be (2, {num_classes}): give its last layer {num_classes} outputs"
        )
    if first.dtype in (torch.float16, torch.bfloat16):
        raise UsageError(f"model {name} computes in {first.dtype}; call .float() on it, since precision is chosen here")
    if not bool(first.isfinite().all()):
        bad = next((key for key, value in model.state_dict().items() if not bool(value.isfinite().all())), None)
        where = f"{bad} holds NaN or infinite values" if bad else "its weights are finite, its forward pass is not"
        raise UsageError(f"model {name} returns NaN: {where}; give it sound weights (--checkpoint)")
    return first, second
