"""What can be wrong with a model or a set of images before attacks are run on it."""

import sys
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from types import FrameType

import torch

from probmargin.attacks.apgd import APGD
from probmargin.core.errors import UsageError
from probmargin.core.losses import logit_margin
from probmargin.core.noise import KeyedNoise
from probmargin.core.types import Classifier, Images, Labels, Logits
from probmargin.data.checks import check_pixels
from probmargin.models.checks import looks_like_probabilities as looks_like_probabilities

SAME_OUTPUT = 1e-4
_SQUARE_GAIN = 0.002
_INNER_GRADIENTS = ("grad", "backward", "_make_grads")


def check_images(x: Images, labels: Labels) -> None:
    """Refuse what cannot be meant."""
    if x.ndim != 4 or not x.is_floating_point() or len(x) != len(labels) or len(x) == 0:
        raise UsageError(
            "images and labels do not go together: pass float images (B, C, H, W) and as many labels, at least one"
        )
    if x.dtype in (torch.float16, torch.bfloat16):
        raise UsageError("half precision images leave the threat model: pass x.float()")
    check_pixels(x)


def check_logits(logits: Logits, labels: Labels) -> None:
    """Refuse logits that no attack can work with."""
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise UsageError(f"the model must return logits (B, K) with K of 2 or more, not {tuple(logits.shape)}")
    if int(labels.min()) < 0 or int(labels.max()) >= logits.shape[1]:
        raise UsageError(f"the model has {logits.shape[1]} classes; give labels in 0..{logits.shape[1] - 1}")
    count = int(no_answer(logits, labels).sum())
    if count:
        raise UsageError(
            f"the model returns NaN or several infinite logits for {count} of {len(logits)} clean images; check its "
            "weights"
        )


def no_answer(logits: Logits, labels: Labels) -> torch.Tensor:
    """Where a logit is NaN, or the label's and another are infinite alike: which is the largest is then an accident.

    >>> top = torch.inf
    >>> no_answer(torch.tensor([[top, top], [top, 0.0], [0.0, torch.nan]]), torch.tensor([0, 0, 0])).tolist()
    [True, False, True]
    """
    return logits.isnan().any(dim=1) | logit_margin(logits, labels).isnan()


def softmax_warning(logits: Logits) -> list[str]:
    """Outputs that look like probabilities."""
    if looks_like_probabilities(logits):
        return ["the model seems to return probabilities, not logits: a softmax hides gradients from CE and DLR"]
    return []


def class_count_warning(losses: Collection[str], aimed: bool, num_classes: int) -> list[str]:
    """What few classes change for these losses of APGD, and for attacks that try one class after the other.

    >>> [len(class_count_warning(["dlr_targeted"], True, count)) for count in (2, 3, 7, 10)]
    [1, 1, 1, 0]
    >>> [len(class_count_warning(["dlr"], False, count)) for count in (2, 3, 7, 10)]
    [1, 0, 0, 0]
    >>> class_count_warning(["dlr", "dlr_targeted"], True, 2)
    ['2 classes are too few for the DLR loss and the targeted one: the logit margin replaces them']
    """
    few = ["the DLR loss"] if "dlr" in losses and num_classes < 3 else []
    if "dlr_targeted" in losses and num_classes < 4:
        few.append("the targeted one" if few else "the targeted DLR loss")
    if few:
        which = "them" if len(few) > 1 else "it"
        return [f"{num_classes} classes are too few for {' and '.join(few)}: the logit margin replaces {which}"]
    if aimed and num_classes < 10:
        return [f"only {num_classes} classes: targeted attacks aim at all {num_classes - 1} wrong ones, not at 9"]
    return []


def output_spread(call: Classifier, x: Images, passes: int = 5) -> float:
    """The largest distance between an image's logits of length 1 in any two of several passes.

    >>> output_spread(lambda x: x.flatten(1), torch.rand(3, 1, 2, 2))
    0.0
    """
    with torch.no_grad():
        return _largest_distance([call(x) for _ in range(passes)])


def company_spread(call: Classifier, x: Images) -> float:
    """The same between an image's logits beside two different halves of a batch; 0 of one image.

    >>> x = torch.rand(4, 1, 2, 2)
    >>> company_spread(lambda x: x.flatten(1), x), company_spread(lambda x: x.flatten(1) - x.mean(), x) > 0
    (0.0, True)
    """
    half = len(x) // 2
    if half == 0:
        return 0.0
    others = torch.cat([x[:half], x[:1].expand(len(x) - half, *x.shape[1:])])
    with torch.no_grad():
        return _largest_distance([call(images)[:half] for images in (x, others)])


def _largest_distance(outputs: Sequence[Logits]) -> float:
    """Between any two of several outputs for the same images, each image's logits brought to length 1.

    >>> _largest_distance([torch.tensor([[1.0, -torch.inf]])] * 2)
    0.0
    """
    finite = [torch.where(logits.isfinite(), logits, 0.0) for logits in outputs]
    rows = [logits / logits.norm(dim=1, keepdim=True).clamp(min=1e-20) for logits in finite]
    return max(float((one - other).norm(dim=1).max()) for one, other in combinations(rows, 2))


def names_one_class(logits: Logits, labels: Labels) -> bool:
    """Whether every image gets the same answer, though their labels differ.

    >>> one, both = torch.tensor([[2.0, 1.0], [3.0, 1.0]]), torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    >>> labels = torch.tensor([0, 1])
    >>> names_one_class(one, labels), names_one_class(both, labels), names_one_class(one, labels[:1].expand(2))
    (True, False, False)
    """
    answers = logits.argmax(dim=1)
    return bool((answers == answers[0]).all()) and bool((labels != labels[0]).any())


def one_class_warning(logits: Logits, labels: Labels) -> list[str]:
    """A model that says the same of everything: its accuracy, attacked or not, is one class's share."""
    if not names_one_class(logits, labels):
        return []
    answer = int(logits[0].argmax())
    return [f"the model answers class {answer} to every clean image: what it keeps is that class's share of the images"]


def randomness_warning(call: Classifier, x: Images) -> list[str]:
    """Five passes that disagree."""
    if output_spread(call, x) > SAME_OUTPUT:
        return ["the model's output is random: judge it by aa-rand (version='rand'), which averages over passes"]
    return []


def company_warning(call: Classifier, x: Images) -> list[str]:
    """An image's logits that depend on the images beside it; what is random is not told from that."""
    if output_spread(call, x, passes=2) > SAME_OUTPUT or company_spread(call, x) <= SAME_OUTPUT:
        return []
    return [
        "the model's answer for an image depends on the others in its batch: every number changes with the batch size "
        "and the order; give batch norm its running statistics, and take no mean over the batch"
    ]


def inner_gradients(call: Classifier, x: Images) -> list[str]:
    """What a forward pass calls to compute gradients itself, as defences do that optimise at test time."""
    seen: set[str] = set()

    def watch(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name in _INNER_GRADIENTS:
            seen.add(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        call(x)
    finally:
        sys.setprofile(before)
    return sorted(seen)


def inner_gradient_warning(call: Classifier, x: Images) -> list[str]:
    """A forward pass that computes gradients itself."""
    seen = inner_gradients(call, x)
    return [f"the forward pass calls {', '.join(seen)}: a dynamic defence needs an attack of its own"] if seen else []


def is_zero(gradient: torch.Tensor) -> torch.Tensor:
    """True for images whose gradient is zero in every entry."""
    return (gradient == 0).flatten(1).all(dim=1)


def is_undefined(gradient: torch.Tensor) -> torch.Tensor:
    """True for images whose gradient is no finite number in some entry.

    >>> is_undefined(torch.tensor([[0.0, torch.inf], [0.0, 1.0]])).tolist()
    [True, False]
    """
    return ~gradient.isfinite().flatten(1).all(dim=1)


def _start_gradient(call: Classifier, x: Images, labels: Labels, attack: APGD) -> torch.Tensor:
    noise = KeyedNoise(seed=0, ids=torch.arange(len(x), device=x.device))
    return attack.start_gradient(call, x, labels, noise)


def undefined_gradient_warning(call: Classifier, x: Images, labels: Labels, attack: APGD) -> list[str]:
    """Images whose gradient is no number at a random point of the ball's surface."""
    count = int(is_undefined(_start_gradient(call, x, labels, attack)).sum())
    if count == 0:
        return []
    return [
        f"the model's gradient is not a number at {count} of {len(x)} images: attacks take those entries as zero and "
        "may miss breaks; keep roots, logarithms and divisions away from 0, as (x + 1e-6).sqrt() does"
    ]


def zero_gradient_warning(call: Classifier, x: Images, labels: Labels, attack: APGD) -> list[str]:
    """Images whose gradient of the attack's loss vanishes at a random point of the ball's surface."""
    if len(x) == 0:
        return []
    count = int(is_zero(_start_gradient(call, x, labels, attack)).sum())
    if count == 0:
        return []
    return [f"{count} of {len(x)} images have a zero {attack.loss} gradient at the start: gradients may be masked"]


def square_warning(robust: Mapping[str, torch.Tensor]) -> list[str]:
    """Square, which sees no gradient, found what the attacks with gradients before it did not.

    >>> half, none = torch.tensor([True, False]), torch.tensor([False, False])
    >>> len(square_warning({"clean": half, "fab-t": half, "square": none})), square_warning({"clean": half})
    (1, [])
    """
    names = list(robust)
    if "square" not in names or names.index("square") < 2:
        return []
    before, after = robust[names[names.index("square") - 1]], robust["square"]
    if float(before.double().mean() - after.double().mean()) <= _SQUARE_GAIN:
        return []
    return ["Square broke more than 0.2% of the examples that gradient attacks left: gradients may be masked"]
