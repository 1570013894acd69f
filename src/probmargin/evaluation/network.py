"""A model made ready to be judged: in float32 at least, and for searches in forms that are quick to call."""

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from probmargin.core.errors import UsageError
from probmargin.core.frozen import model_mode
from probmargin.core.types import Classifier, Images, Logits
from probmargin.engine.captured import captured
from probmargin.engine.compile import compiled, use_persistent_cache
from probmargin.engine.folding import CannotFold, FoldedNetwork
from probmargin.evaluation.checks import SAME_OUTPUT, output_spread
from probmargin.evaluation.quick import quick_copy

Form = Literal["bf16", "fp16", "tf32"]
"""What a network that searches ask on CUDA computes in; its head is always float32.

bf16 has 8 bits, good enough where a search follows a gradient's sign. fp16 has TF32's 11 bits at bf16's speed, but not
its range: it is for searches without gradients."""
_DTYPES: dict[Form, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32}
_ALIKE: dict[Form, float] = {"bf16": 0.2, "fp16": 0.02, "tf32": 0.02}
"""How far a form's logits may be off, as a share of the largest: more is a fault, not rounding."""
_ALIKE_SLOPES = 0.9
SearchPrecision = Literal["auto", "bf16", "tf32", "float32"]
"""What searches compute in on CUDA; auto leaves the choice to each attack. On a CPU it is float32 whatever is asked."""


class Watched:
    """A form that notes whether a logit was not a number: float16 overflows, and a search takes that for no break."""

    def __init__(self, form: Classifier) -> None:
        self.form = form
        self._bad: torch.Tensor | None = None

    def __call__(self, x: Images) -> Logits:
        """The form's logits."""
        logits = self.form(x)
        bad = ~logits.detach().isfinite().all()
        self._bad = bad if self._bad is None else self._bad | bad
        return logits

    def overflowed(self) -> bool:
        """Whether that happened since the last time this was asked."""
        bad, self._bad = self._bad, None
        return bad is not None and bool(bad)


@dataclass(frozen=True)
class Ready:
    """One model in several forms; what a search finds in another counts only if it holds in the exact one."""

    exact: Classifier
    quick: Classifier
    """What a search asks that no form is made for."""
    forms: Mapping[Form, Classifier] = field(default_factory=dict)
    """Compiled and captured; CUDA alone."""
    notes: tuple[str, ...] = ()
    is_exact: bool = True
    """Whether a search that asks no form of its own computes in float32, not in TF32."""

    @property
    def rounds(self) -> bool:
        """Whether searches compute in fewer digits than what decides."""
        return bool(self.forms) or not self.is_exact

    @property
    def precision(self) -> str:
        """What searches compute in."""
        return " and ".join(sorted(self.forms)) or ("float32" if self.is_exact else "tf32")

    def in_float32(self, x: Images, most: int) -> Classifier | None:
        """A form in float32 that is quicker to call than the model, where one can be made."""
        if not (self.forms and isinstance(self.exact, nn.Module)):
            return None
        try:
            return captured_float32(self.exact, x, most)
        except Exception:
            return None


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
        return Ready(exact, exact, is_exact=not (x.is_cuda and wanted))
    if x.is_cuda and most is not None:
        return ready_on_cuda(exact, x, (most, wanted), notes)
    return Ready(exact, quick_copy(exact, x), notes=notes)


def ready_on_cuda(model: nn.Module, x: Images, asked: tuple[int, Collection[Form]], notes: tuple[str, ...]) -> Ready:
    """Folded, compiled, captured; the plain form, and a note that says why, where that cannot be done."""
    most, wanted = asked
    try:
        with model_mode(model, "eval"):
            refuse_random(model, x)
        forms = dict(captured_or_finer(model, x, most, form) for form in sorted(wanted))
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        notes = (*notes, f"searches run operation by operation: {reason}")
        return Ready(model, quick_copy(model, x), notes=notes, is_exact=False)
    return Ready(model, model, forms, notes)


def refuse_random(model: Classifier, x: Images) -> None:
    """Refuse a model whose output is random: what is traced or captured may draw once and for all."""
    if output_spread(model, x[:8]) > SAME_OUTPUT:
        raise CannotFold("its output is random")


def folded_form(model: nn.Module, dtype: torch.dtype) -> FoldedNetwork:
    """The network in eval mode with batch norm folded into its convolutions, at its present parameters."""
    network = FoldedNetwork(model, dtype)
    network.refresh()
    return network


def captured_form(model: nn.Module, x: Images, most: int, form: Form) -> Classifier:
    """A form on CUDA that has been tried, with gradient where it may be asked for one, and gives the model's logits."""
    use_persistent_cache()
    network = compiled(folded_form(model, _DTYPES[form]), "default", dynamic=True)
    call = captured(network, most, rounds=True)
    _try_form(model, call, x, form)
    return call


def captured_or_finer(model: nn.Module, x: Images, most: int, form: Form) -> tuple[Form, Classifier]:
    """A form and its name; TF32 where the model's values are beyond float16."""
    try:
        call = captured_form(model, x, most, form)
        return form, Watched(call) if form == "fp16" else call
    except CannotFold:
        if form != "fp16":
            raise
    return "tf32", captured_form(model, x, most, "tf32")


def captured_float32(model: nn.Module, x: Images, most: int) -> Classifier:
    """The model in float32 without TF32, captured on CUDA; not compiled, which would cost more than it saves here."""
    call = captured(folded_form(model, torch.float32), most, rounds=False)
    _try_form(model, call, x, "tf32")
    return call


def _try_form(model: nn.Module, call: Classifier, x: Images, form: Form) -> None:
    few = x[:64].detach()
    corners = few.round() if form == "fp16" else few[:0]
    with model_mode(model, "eval"), torch.no_grad():
        for images in (few, corners, 1 - corners):
            if len(images):
                check_alike(model(images), call(images), form)
    if form != "fp16":
        with model_mode(model, "eval"):
            check_slopes(model, call, few)


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


def check_alike(expected: torch.Tensor, found: torch.Tensor, form: Form) -> None:
    """Refuse a form whose logits are not the model's."""
    off = float((expected - found).abs().max() / expected.abs().max().clamp(min=1e-6))
    if not off <= _ALIKE[form]:
        raise CannotFold(f"its logits are off by {off:.1%}")
