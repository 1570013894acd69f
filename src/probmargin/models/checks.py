"""What can be wrong with a network before anything is done with it."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointError

from probmargin.core.errors import UsageError, one_logit
from probmargin.core.frozen import ModelMode, model_mode, with_clean_buffers
from probmargin.core.inference import writes
from probmargin.core.types import Logits
from probmargin.core.words import counted
from probmargin.models.layers import Normalize
from probmargin.models.own import failed_at

_CLOSE = 1e-5
_SAME = 1e-4
_HALF = (torch.float16, torch.bfloat16)


def looks_like_probabilities(logits: Logits) -> bool:
    """Whether every row is between 0 and 1 and sums to 1.

    >>> looks_like_probabilities(torch.tensor([[0.7, 0.3]])), looks_like_probabilities(torch.tensor([[7.0, 3.0]]))
    (True, False)
    """
    inside = bool((logits < 1 + _CLOSE).all()) and bool((logits > -_CLOSE).all())
    return inside and bool(((logits.sum(dim=1) - 1).abs() < _CLOSE).all())


def check_is_network(model: object) -> None:
    """Refuse what a script may pass in place of a network: its class, or the function that builds it."""
    if isinstance(model, type):
        raise UsageError(f"model is the class {model.__name__}: pass an instance, {model.__name__}(...)")
    if not isinstance(model, nn.Module):
        raise UsageError(f"model is given as {type(model).__name__}: pass the network itself, an nn.Module")
    if isinstance(model, torch.jit.ScriptModule):
        raise UsageError(
            "model is TorchScript, whose tensors attacks cannot set apart: pass the nn.Module it is made of"
        )


def as_the_model_computes(x: torch.Tensor, model: nn.Module) -> torch.Tensor:
    """Images in the precision of the model's parameters; half precision is too coarse for an attack's steps."""
    own = next((parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()), x.dtype)
    if own in _HALF:
        raise _is_other(type(model).__name__, own)
    return x.to(own)


def check_is_logits(found: object, count: int, name: str) -> None:
    """Refuse what is not one row of logits an image."""
    if not isinstance(found, torch.Tensor) or not found.is_floating_point():
        raise _not_logits(found, name)
    if found.ndim != 2 or len(found) != count:
        raise UsageError(
            f"model {name} gives an output of shape {tuple(found.shape)} for {count} images; return one tensor of "
            "logits (B, classes)"
        )
    if found.shape[1] == 1:
        raise one_logit()


def check_keeps_images(model: nn.Module, image_shape: tuple[int, ...], name: str) -> None:
    """Refuse a model that writes into its input: the next pass would see other images. What fails is not seen here."""
    x = as_the_model_computes(random_images(model, 2, image_shape), model)
    before, count = x.clone(), writes(x)
    try:
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []), model_mode(model, "eval"), torch.no_grad():
            with_clean_buffers(model, detach=True)(x)
    except (Exception, SystemExit):
        return
    if writes(x) != count or not torch.equal(x, before):
        raise changes_its_images(name)


def changes_its_images(name: str) -> UsageError:
    """The error for a model that writes into its input."""
    return UsageError(
        f"model {name} changes its input in place; write x = x - 0.5 for x -= 0.5, without inplace=True in its first "
        "layer"
    )


def check_model(
    model: nn.Module, image_shape: tuple[int, ...], num_classes: int, name: str, *, or_more: bool = False
) -> int:
    """Refuse a model that does not turn the data's images into one finite logit a class; say how many it gives."""
    return _outputs(model, image_shape, num_classes, name, or_more=or_more)[0].shape[1]


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that are not frozen; at least one must be left."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise UsageError("the model has no parameter that can be trained: every one is frozen; leave a layer free")
    return trained


def check_channels(model: nn.Module, image_shape: tuple[int, ...], name: str) -> None:
    """Refuse a normalisation of other channels than reach it, which would make as many of each image."""
    seen: list[tuple[int, int]] = []

    def look(layer: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        seen.append((layer.get_buffer("mean").numel(), args[0].shape[1]))

    layers = [layer for layer in model.modules() if isinstance(layer, Normalize)]
    with ExitStack() as stack:
        for layer in layers:
            stack.callback(layer.register_forward_pre_hook(look).remove)
        # What else is wrong with a pass is said by others.
        stack.enter_context(suppress(Exception, SystemExit))
        if layers:
            tried(model, image_shape)
    for count, there in seen:
        if count not in (1, there):
            raise UsageError(
                f"model {name} normalises {counted(count, 'channel')} and its images have {there}: give Normalize one "
                "number for each of theirs, or bring the images to its own"
            )


def tried(model: nn.Module, image_shape: tuple[int, ...]) -> Any:
    """What a pass over two random images gives in eval mode; all is left as it was found."""
    x = as_the_model_computes(random_images(model, 2, image_shape), model)
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []), model_mode(model, "eval"), torch.no_grad():
        return with_clean_buffers(model, detach=True)(x)


def check_trainable(model: nn.Module, image_shape: tuple[int, ...], num_classes: int, name: str) -> None:
    """Refuse, beyond that, a model that gives probabilities, is random in eval mode, or lets no gradient through."""
    first, second = _outputs(model, image_shape, num_classes, name)
    trained = trained_parameters(model)
    if _has_doubles(model):
        raise _is_other(name, torch.float64)
    check_logits(first, name)
    if float((first - second).abs().max()) > _SAME:
        raise UsageError(
            f"model {name} is random in eval mode: its dropout or noise stays on; use nn.Dropout, or "
            "F.dropout(..., training=self.training)"
        )
    check_gradient(model, image_shape, name)
    check_gradient(model, image_shape, name, trained, mode="train")


def check_gradient(
    model: nn.Module,
    image_shape: tuple[int, ...],
    name: str,
    trained: Sequence[nn.Parameter] = (),
    mode: ModelMode = "eval",
) -> None:
    """Refuse a model that lets no gradient through to the images, or to any of the trained parameters.

    A gradient of zeros is one: a last layer may begin at zero. Parameters, their gradients and buffers stay as found.
    """
    check_keeps_images(model, image_shape, name)
    x = as_the_model_computes(random_images(model, 3, image_shape), model)
    found = _reached(model, x.requires_grad_(), trained, name, mode)
    if not found[0] or (trained and not any(found[1:])):
        what = "images" if not found[0] else "parameters"
        raise UsageError(
            f"no gradient reaches the {what} in model {name}: its forward pass detaches, or runs under "
            "torch.no_grad(); leave that out, and freeze layers by requires_grad_(False)"
        )


def leaves_parameters_out(model: nn.Module, image_shape: tuple[int, ...], name: str) -> bool:
    """Whether there is a trained parameter that no gradient reaches in a training pass, as of a layer never called."""
    x = as_the_model_computes(random_images(model, 3, image_shape), model)
    return not all(_reached(model, x.requires_grad_(), trained_parameters(model), name, "train")[1:])


def _reached(
    model: nn.Module, x: torch.Tensor, trained: Sequence[nn.Parameter], name: str, mode: ModelMode
) -> list[bool]:
    """Whether a gradient comes back to the images, and to each of these parameters."""
    devices = [x.device] if x.is_cuda else []
    try:
        with (
            torch.random.fork_rng(devices=devices),
            model_mode(model, mode),
            _buffers_kept(model),
            torch.enable_grad(),
        ):
            # Attacks ask the same of parameters that are cut off from the graph.
            logits = with_clean_buffers(model, detach=not trained)(x)
            if not isinstance(logits, torch.Tensor):
                raise _not_logits(logits, f"{name} in {mode} mode")
            if not logits.requires_grad:
                return [False] * (1 + len(trained))
            gradients = torch.autograd.grad(logits.sum(), [x, *trained], allow_unused=True)
    except UsageError:
        raise
    except CheckpointError:
        raise UsageError(
            f"model {name} computes part of a pass again in backward, as torch.utils.checkpoint does, in {mode} mode "
            "too, where attacks cannot follow: use it in training mode alone, if self.training"
        ) from None
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"model {name} fails in {mode} mode where gradients are taken: {failed_at(error)}; repair it there"
        ) from None
    return [gradient is not None for gradient in gradients]


@dataclass(frozen=True)
class Again:
    """What a training pass computes again in backward, as torch.utils.checkpoint has it.

    That has the model's own weights and moves its own buffers, whatever the pass was called with.
    """

    computes: bool = False
    moves_buffers: bool = False


def computed_again(model: nn.Module, image_shape: tuple[int, ...]) -> Again:
    """Look at a pass over three random images; all is left as it was found."""
    x = as_the_model_computes(random_images(model, 3, image_shape), model).requires_grad_()
    passes = 0

    def count(*_: object) -> None:
        nonlocal passes
        passes += 1

    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[x.device] if x.is_cuda else []))
        for kept in (model_mode(model, "train"), _buffers_kept(model), torch.enable_grad(), suppress(Exception)):
            stack.enter_context(kept)
        for layer in model.modules():
            stack.callback(layer.register_forward_pre_hook(count).remove)
        logits = with_clean_buffers(model, detach=False)(x)
        before, found = passes, [(buffer, buffer.clone()) for buffer in model.buffers()]
        torch.autograd.grad(logits.sum(), x)
        return Again(passes > before, any(not torch.equal(buffer, was) for buffer, was in found))
    return Again()


@contextmanager
def _buffers_kept(model: nn.Module) -> Iterator[None]:
    """Put the buffers back as they were found: what is computed again in backward moves the model's own."""
    found = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, was in found:
                # Batch norm's own writing is not counted by torch; and some buffers cannot be written to.
                if not torch.equal(buffer, was):
                    buffer.copy_(was)


def check_logits(logits: Logits, name: str) -> None:
    """Refuse probabilities: every loss and attack takes the softmax itself."""
    if looks_like_probabilities(logits):
        raise UsageError(f"model {name} returns probabilities; leave out its last softmax, so that it returns logits")


def random_images(model: nn.Module, count: int, image_shape: tuple[int, ...]) -> torch.Tensor:
    """Random images, always the same, where the model is."""
    parameters = list(model.parameters())
    device = parameters[0].device if parameters else torch.device("cpu")
    return torch.rand(count, *image_shape, generator=torch.Generator().manual_seed(0)).to(device)


def _has_doubles(model: nn.Module) -> bool:
    return any(parameter.dtype == torch.float64 for parameter in model.parameters())


def _not_logits(found: object, name: str) -> UsageError:
    kind = found.dtype if isinstance(found, torch.Tensor) else type(found).__name__
    return UsageError(f"model {name} returns {kind}; return one tensor of logits (B, classes)")


def _is_other(name: str, dtype: torch.dtype) -> UsageError:
    return UsageError(f"model {name} computes in {dtype}; call .float() on it, since precision is chosen here")


def _check_batch_sizes(model: nn.Module, image_shape: tuple[int, ...], num_classes: int, name: str) -> None:
    """Refuse a model that takes two images and not three."""
    try:
        with model_mode(model, "eval"), torch.no_grad():
            found = str(tuple(model(random_images(model, 3, image_shape)).shape))
    except (Exception, SystemExit) as error:
        found = failed_at(error)
    if found != str((3, num_classes)):
        raise UsageError(
            f"model {name} takes 2 images and not 3 ({found}); leave the batch size open, as x.flatten(1) does"
        )


def _not_taken(error: BaseException, image_shape: tuple[int, ...], name: str) -> UsageError:
    """Build the error for a forward pass that fails on images of the data's shape."""
    channels, height, width = image_shape
    fix = f"build it for {counted(channels, 'channel')} and images of {height}x{width}, or pass other data"
    if isinstance(error, TypeError) and "argument" in str(error):
        fix = "put it into a module whose forward takes the images alone"
    return UsageError(f"model {name} does not take images of shape {image_shape}: {failed_at(error)}; {fix}")


def _outputs(
    model: nn.Module, image_shape: tuple[int, ...], num_classes: int, name: str, *, or_more: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two passes over the same two random images."""
    check_channels(model, image_shape, name)
    check_keeps_images(model, image_shape, name)
    x = random_images(model, 2, image_shape)
    try:
        with model_mode(model, "eval"), torch.no_grad():
            first, second = model(x), model(x)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        if _has_doubles(model):
            raise _is_other(name, torch.float64) from None
        raise _not_taken(error, image_shape, name) from None
    if not isinstance(first, torch.Tensor):
        raise _not_logits(first, name)
    num_classes = max(num_classes, first.shape[-1]) if or_more and first.ndim else num_classes
    if tuple(first.shape) != (2, num_classes):
        raise UsageError(
            f"model {name} gives an output of shape {tuple(first.shape)} for 2 images; the data has {num_classes} "
            f"classes, so it must be (2, {num_classes}): give its last layer {num_classes} outputs"
        )
    _check_batch_sizes(model, image_shape, num_classes, name)
    if first.dtype in _HALF:
        raise _is_other(name, first.dtype)
    if not bool(first.isfinite().all()):
        bad = next((key for key, value in model.state_dict().items() if not bool(value.isfinite().all())), None)
        where = f"{bad} holds NaN or infinite values" if bad else "its weights are finite, its forward pass is not"
        raise UsageError(f"model {name} returns NaN: {where}; give it sound weights (--checkpoint)")
    return first, second
