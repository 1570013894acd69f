"""A model made ready to be judged: in float32 at least, and for searches in forms that are quick to call."""

import copy
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from probmargin.core.errors import UsageError
from probmargin.core.frozen import model_mode
from probmargin.core.types import Classifier, Images
from probmargin.engine.captured import CapturedNetwork, captured
from probmargin.engine.compile import compiled, use_persistent_cache
from probmargin.engine.folding import CannotFold, FoldedNetwork
from probmargin.evaluation.quick import quick_copy

_ALIKE = {torch.float32: 0.02, torch.bfloat16: 0.2}
"""How far logits of a form in TF32 or bfloat16 may be off, as a share of the largest: more is a fault, not rounding."""


_ALIKE_SLOPES = 0.9

Form = Literal["quick", "rough"]
SearchPrecision = Literal["auto", "bf16", "tf32", "float32"]
"""What searches compute in on CUDA; auto leaves the choice to each attack. On a CPU it is float32 whatever is asked."""


@dataclass(frozen=True)
class Ready:
    """One model in several forms; what a search finds in another counts only if it holds in the exact one."""

    exact: Classifier
    quick: Classifier
    """In float32 on a CPU, where it is as exact; in TF32 on CUDA."""
    rough: Classifier | None = None
    """In bfloat16 with a float32 head, good enough for searches that follow the gradient's sign; CUDA alone."""
    notes: tuple[str, ...] = ()
    is_exact: bool = True
    """Whether a search that asks no form of its own computes in float32, not in TF32."""

    @property
    def precision(self) -> str:
        """What searches compute in."""
        is_tf32 = isinstance(self.quick, CapturedNetwork) or not (self.rough or self.is_exact)
        return " and ".join(filter(None, ("bf16" if self.rough else "", "tf32" if is_tf32 else ""))) or "float32"


def exact_form(model: Classifier) -> tuple[Classifier, tuple[str, ...]]:
    """The form that decides, and what to say of it: float16 is refused, bfloat16 weights become float32 in a copy."""
    dtypes = {parameter.dtype for parameter in model.parameters()} if isinstance(model, nn.Module) else set()
    if torch.float16 in dtypes:
        raise UsageError("float16 gradients underflow and attacks stall: call model.float() before evaluating")
    if torch.bfloat16 in dtypes:
        return copy.deepcopy(model).float(), ("the weights are bfloat16: evaluated in a float32 copy",)  # type: ignore[attr-defined]
    return model, ()


def made_ready(model: Classifier, x: Images, most: int | None = None, wanted: Collection[Form] = ()) -> Ready:
    """A model's forms; what is not a module stays as it is.

    `most` is the largest batch that searches will ask for; with it, the `wanted` forms are compiled and captured on
    CUDA.
    """
    exact, notes = exact_form(model)
    if not isinstance(exact, nn.Module):
        return Ready(exact, exact)
    if x.is_cuda and most is not None:
        return _ready_on_cuda(exact, x, (most, wanted), notes)
    return Ready(exact, quick_copy(exact, x), notes=notes)


def _ready_on_cuda(model: nn.Module, x: Images, asked: tuple[int, Collection[Form]], notes: tuple[str, ...]) -> Ready:
    """Folded, compiled, captured; the plain form, and a note that says why, where that cannot be done."""
    most, wanted = asked
    try:
        quick = captured_form(model, x, most, torch.float32) if "quick" in wanted else model
        rough = captured_form(model, x, most, torch.bfloat16) if "rough" in wanted else None
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        notes = (*notes, f"searches run operation by operation: {reason}")
        return Ready(model, quick_copy(model, x), notes=notes, is_exact=False)
    return Ready(model, quick, rough, notes)


def folded_form(model: nn.Module, dtype: torch.dtype) -> FoldedNetwork:
    """The network in eval mode with batch norm folded into its convolutions, at its present parameters."""
    with model_mode(model, "eval"):
        network = FoldedNetwork(model, dtype)
    network.refresh()
    return network


def captured_form(model: nn.Module, x: Images, most: int, dtype: torch.dtype) -> Classifier:
    """A form on CUDA that has been tried, with gradient and without, and gives the model's logits."""
    use_persistent_cache()
    call = captured(compiled(folded_form(model, dtype), "default", dynamic=True), most)
    few = x[:64].detach()
    with model_mode(model, "eval"), torch.no_grad():
        expected = model(few)
        found = call(few)
    check_alike(expected, found, dtype)
    with model_mode(model, "eval"):
        check_slopes(model, call, few)
    return call


def check_slopes(model: Classifier, form: Classifier, x: Images) -> None:
    """Refuse a form whose gradients are not the model's, asked for with another call in between."""
    slopes = []
    for call in (model, form):
        point = x.clone().requires_grad_()
        with torch.enable_grad():
            value = call(point).logsumexp(dim=1).sum()
        call(x[:1])
        slopes.append(torch.autograd.grad(value, point)[0].flatten(1))
    steep = slopes[0].abs().sum(dim=1) > 0
    alike = F.cosine_similarity(slopes[0], slopes[1])[steep]
    if len(alike) and not float(alike.median()) > _ALIKE_SLOPES:
        raise CannotFold(f"its gradients are not the model's (cosine {float(alike.median()):.2f})")


def check_alike(expected: torch.Tensor, found: torch.Tensor, dtype: torch.dtype) -> None:
    """Refuse a form whose logits are not the model's."""
    off = float((expected - found).abs().max() / expected.abs().max().clamp(min=1e-6))
    if not off <= _ALIKE[dtype]:
        raise CannotFold(f"its logits are off by {off:.1%}")
