"""The training loss for anyone's own loop."""

from collections.abc import Callable
from itertools import islice
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import CheckpointError

from probmargin.attacks.pgd import warn_of_short_steps
from probmargin.core.autocast import check_autocast
from probmargin.core.errors import UsageError
from probmargin.core.frozen import called_with, frozen
from probmargin.core.inference import check_takes_gradients, outside_inference_mode, with_gradients, writes
from probmargin.core.noise import fresh_noise
from probmargin.core.settings import AWP, check_seed
from probmargin.core.types import Classifier, Images, Labels, Logits, Reduce
from probmargin.data.checks import check_labels, check_pixels
from probmargin.methods.method import Method
from probmargin.methods.plain import with_settings
from probmargin.methods.resolve import named
from probmargin.models.checks import (
    as_the_model_computes,
    changes_its_images,
    check_gradient,
    check_is_logits,
    check_keeps_images,
    check_logits,
)
from probmargin.training.network import Network
from probmargin.training.own_parts import check_weights
from probmargin.training.perturbation import awp_moves
from probmargin.training.refusals import changes_the_model, check_computes_once, check_outside
from probmargin.training.step import Batch, alone, attack_batch, batch_loss, view_of, weigh

_ROUNDING = 1e-4
_ONCE: WeakSet[nn.Module] = WeakSet()
"""Networks known to compute nothing again in backward."""


@outside_inference_mode()
def recipe_loss(
    model: nn.Module, x: Images, labels: Labels, recipe: Method, seed: int | None, all_processes: bool | None
) -> torch.Tensor:
    """Attack a batch by a recipe, weigh its examples and return the loss.

    Of several processes each returns its share of the mean over all their images, times their number: gradients
    that are averaged over processes, as torch averages them, are then those of one process with all images.
    """
    reduce, processes, rank = _sharing(model, all_processes)
    _check_batch(model, x, labels)
    x, labels = with_gradients(as_the_model_computes(x, model)), with_gradients(labels)
    if x.device.type == "cpu":
        _check_values(model, x, labels)
    _check_computes_once(model, x, recipe)
    network, found = Network(model), writes(x)
    if seed is not None:
        check_seed(seed)
    batch = Batch(x=x, labels=labels.long(), noise=fresh_noise(len(x), x.device, seed, rank))
    try:
        attacked = attack_batch(network, recipe, batch)

        def loss_at(forward: Classifier) -> torch.Tensor:
            view = view_of(forward, recipe, batch, attacked)
            _check_logits(view.nat() if view.logits_adv is None else view.adv(), len(x), type(model).__name__)
            weight, margin = weigh(view, recipe, reduce)
            check_weights(recipe, weight, margin)
            return batch_loss(view, recipe, weight, reduce) * processes

        loss = loss_at(network.forward if recipe.awp is None else _perturbed(network, recipe.awp, loss_at, reduce))
    except Exception as error:
        # After an error of its own a device may answer nothing more.
        if isinstance(error, CheckpointError):
            check_gradient(model, tuple(x.shape[1:]), type(model).__name__)
        if x.device.type == "cpu" or not isinstance(error, RuntimeError):
            _diagnose(model, x, labels, recipe)
        raise
    if writes(x) != found:
        raise changes_its_images(type(model).__name__)
    return loss


def _diagnose(model: nn.Module, x: Images, labels: Labels, recipe: Method) -> None:
    """Say what is wrong, if that is known; what fails in the model by itself is passed on."""
    check_keeps_images(model, tuple(x.shape[1:]), type(model).__name__)
    _check_range(model, x, labels)
    check_outside(model, x[:1], recipe.attack)


def _sharing(model: nn.Module, all_processes: bool | None) -> tuple[Reduce, int, int]:
    """How sums go over the processes that share a batch, how many there are, and which of them this one is."""
    # torch.compile and other people's wrappers may lie around torch's own.
    wrapped = next((part for part in model.modules() if isinstance(part, nn.parallel.DistributedDataParallel)), None)
    if not (wrapped is not None if all_processes is None else all_processes):
        return alone, 1, 0
    if not (dist.is_available() and dist.is_initialized()):
        raise UsageError("all_processes=True without a process group: call torch.distributed.init_process_group first")
    group = None if wrapped is None else wrapped.process_group

    def reduce(total: torch.Tensor) -> torch.Tensor:
        summed = total.detach().clone()
        dist.all_reduce(summed, group=group)
        return summed

    return reduce, dist.get_world_size(group), dist.get_rank(group)


def _perturbed(network: Network, awp: AWP, loss_at: Callable[[Classifier], torch.Tensor], reduce: Reduce) -> Classifier:
    """The network at weights moved up the loss, as `perturbed_weights` moves them; gradients go to its own weights."""
    model = network.model
    if any(isinstance(part, nn.DataParallel) for part in model.modules()):
        raise UsageError("AWP moves weights, which nn.DataParallel does not take over; pass model.module")
    with torch.enable_grad():
        moved = {id(parameter): parameter + move for parameter, move in awp_moves(network, awp, loss_at, reduce)}
    return called_with(model, lambda tensor: moved.get(id(tensor), tensor))


def _check_computes_once(model: nn.Module, x: Images, recipe: Method) -> None:
    """Look at a network once, when the first recipe asks for it."""
    if changes_the_model(recipe) and model not in _ONCE:
        check_computes_once(model, tuple(x.shape[1:]), [recipe], in_place=False)
        _ONCE.add(model)


def _check_batch(model: nn.Module, x: Images, labels: Labels) -> None:
    """Refuse what a loader may yield instead of a batch, by what is known without waiting for a device."""
    check_takes_gradients(model)
    check_autocast(x.device)
    if x.ndim != 4 or not x.is_floating_point() or labels.shape[:1] != x.shape[:1]:
        raise UsageError(
            f"mail_loss takes float images (B, C, H, W) in [0, 1] and B labels, not {x.dtype} {tuple(x.shape)} and "
            f"{tuple(labels.shape)}: convert them before the call"
        )
    if x.numel() == 0:
        raise UsageError(f"the batch is empty, its images have shape {tuple(x.shape)}: leave it out of the loop")
    if x.dtype in (torch.float16, torch.bfloat16):
        raise UsageError(f"images are {x.dtype}, too coarse for an attack's steps: pass x.float()")
    if labels.ndim != 1 or labels.dtype.is_floating_point or labels.dtype == torch.bool:
        check_labels(labels, len(x), None)
    places = {tensor.device for tensor in (x, labels, *islice(model.parameters(), 1))}
    if len(places) > 1:
        found = " and ".join(sorted(map(str, places)))
        raise UsageError(f"model, images and labels lie on {found}: move them all to one device with .to(device)")


def _check_values(model: nn.Module, x: Images, labels: Labels) -> None:
    """Look at pixels and labels, which costs nothing on a CPU; what rounding leaves outside [0, 1] is fine."""
    low, high = (float(value) for value in torch.aminmax(x.detach()))
    if not (low >= -_ROUNDING and high <= 1 + _ROUNDING):
        check_pixels(x)
    if int(labels.min()) < 0:
        _check_range(model, x, labels)


def _check_logits(logits: Logits, count: int, name: str) -> None:
    """Refuse what is not one row of logits an image; on a CPU, where looking costs nothing, probabilities too."""
    check_is_logits(logits, count, name)
    if logits.device.type == "cpu":
        check_logits(logits.detach(), name)


def _check_range(model: nn.Module, x: Images, labels: Labels) -> None:
    """Refuse labels of classes that the model has not."""
    with frozen(model, "eval") as call, torch.no_grad():
        logits = call(x[:1])
    check_is_logits(logits, 1, type(model).__name__)
    check_labels(labels, len(x), logits.shape[1])


def loss_recipe(method: str | Method, weighted: bool, epoch: int | None = None, **sizes: float | None) -> Method:
    """The recipe in an epoch; else that of the last epoch, or, where weights begin later, of the last without them.

    The attack's sizes go with a name, a Method brings its own.
    """
    given = {f"attack.{key}": value for key, value in sizes.items() if value is not None}
    if isinstance(method, Method) and given:
        names = ", ".join(given)
        raise UsageError(
            f"a Method brings the sizes of its attack; give {names} in pm.resolve(..., settings=...) instead"
        )
    recipe = method if isinstance(method, Method) else named(method)
    if recipe.attack is not None:
        recipe = with_settings(recipe, given)
        if "attack.eps" in given and "attack.step_size" not in given:
            warn_of_short_steps(recipe.attack, stacklevel=5)
    last = recipe.at(recipe.epochs - 1)
    last.check_margin()
    if epoch is not None:
        if not 0 <= epoch < recipe.epochs:
            raise UsageError(
                f"epoch {epoch} is none of the recipe's, 0 to {recipe.epochs - 1}: give one of them, or a Method of "
                "another length, pm.resolve(..., epochs=N)"
            )
        now = recipe.at(epoch)
        return now if weighted else now.without_weights()
    if weighted or not last.is_reweighted:
        return last
    return recipe.at(max(recipe.burn_in_end - 1, 0)).without_weights()
