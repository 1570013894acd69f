"""Pictures for a run's page: test images before and after an attack, training images by their weight."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from probmargin.core.errors import UsageError
from probmargin.core.frozen import frozen
from probmargin.core.noise import KeyedNoise
from probmargin.core.words import radius
from probmargin.data.dataset import DataSet
from probmargin.engine.devices import pick_device
from probmargin.evaluation.protocol import build_attack
from probmargin.reporting.page.data import Gallery, Picture, Sample
from probmargin.reporting.page.pictures import amplified, data_uri, to_pixels
from probmargin.reporting.page.words import attack_name
from probmargin.runs.run import Run
from probmargin.training.validation import ball_of

ATTACK = "pgd-20"
CANDIDATES = 4
"""Images that are attacked for each one that is shown."""


@dataclass(frozen=True)
class _Attacked:
    """What a model makes of images, clean and attacked."""

    places: tuple[int, ...]
    x: torch.Tensor
    x_adv: torch.Tensor
    labels: torch.Tensor
    probs_nat: torch.Tensor
    probs_adv: torch.Tensor

    @property
    def falls(self) -> torch.Tensor:
        """Right as they stand and wrong when attacked."""
        return (self.probs_nat.argmax(1) == self.labels) & (self.probs_adv.argmax(1) != self.labels)


@dataclass(frozen=True)
class Choice:
    """Which test images are shown."""

    count: int
    places: tuple[int, ...] = ()
    """Chosen already, for another run on the same data; chosen here where it is empty."""


def make_gallery(run: Run, data: DataSet, ball: Mapping[str, Any], choice: Choice, device: str | None) -> Gallery:
    """Attack a few test images of a run's model: half of those shown fall, where there are enough."""
    try:
        norm, eps = ball_of(run.recipe)
        model = run.model
    except (UsageError, OSError, RuntimeError) as error:
        return Gallery(reason=(str(error).splitlines() or ["the model cannot be built"])[0])
    norm, eps = ball.get("norm", norm), float(ball.get("eps", eps))
    wanted = choice.places or range(min(CANDIDATES * choice.count, len(data.test)))
    found = _attack(model, data, norm, eps, tuple(wanted), device)
    rows = range(len(wanted)) if choice.places else _spread(found, choice.count)
    reach = eps if norm == "Linf" else float((found.x_adv - found.x).abs().amax())
    factor = 0.5 / max(reach, 1e-12)
    ends = f"black is -{radius(reach)}, white +{radius(reach)}"
    return Gallery(
        samples=tuple(_sample(found, row, data, reach) for row in rows),
        attack=f"{attack_name(ATTACK)} ({norm} eps {radius(eps)})",
        scale=f"The difference is amplified {factor:.3g} times: grey is no change, {ends}.",
    )


def _attack(
    model: torch.nn.Module, data: DataSet, norm: Any, eps: float, places: Sequence[int], device: str | None
) -> _Attacked:
    where = pick_device(device)
    test = data.test.take(places).to(where)
    x, labels = test.floats(), test.labels
    attack = build_attack(ATTACK, norm, eps)
    assert attack is not None
    with frozen(model.to(where), "eval") as call:
        x_adv = attack(call, x, labels, noise=KeyedNoise(seed=0, ids=torch.tensor(places, device=where))).x_adv
        with torch.no_grad():
            probs = [call(images).float().softmax(1).cpu() for images in (x, x_adv)]
    return _Attacked(tuple(places), x.cpu(), x_adv.cpu(), labels.cpu(), *probs)


def _spread(found: _Attacked, count: int) -> list[int]:
    """Half that fall and half others, each half from as many classes as there are; in the order of the test set."""
    falls = found.falls.tolist()
    labels = found.labels.tolist()

    def by_turns(places: Iterable[int]) -> list[int]:
        seen: dict[int, int] = {}
        ordered = []
        for place in places:
            turn = seen[labels[place]] = seen.get(labels[place], 0) + 1
            ordered.append((turn, place))
        return [place for _, place in sorted(ordered)]

    fallen = by_turns(place for place, fell in enumerate(falls) if fell)
    others = by_turns(place for place, fell in enumerate(falls) if not fell)
    half = min(len(fallen), max(count // 2, count - len(others)))
    return sorted(fallen[:half] + others[: count - half])


def _sample(found: _Attacked, row: int, data: DataSet, reach: float) -> Sample:
    clean, attacked = found.x[row].numpy(), found.x_adv[row].numpy()
    label = data.classes[int(found.labels[row])]
    nat, adv = found.probs_nat[row], found.probs_adv[row]
    taken_nat, taken_adv = data.classes[int(nat.argmax())], data.classes[int(adv.argmax())]
    place = found.places[row]
    name = f"test image {place} of class {label}"
    return Sample(
        place=place,
        label=label,
        clean=Picture(data_uri(to_pixels(clean)), f"{name}, clean, taken for {taken_nat}"),
        adversarial=Picture(data_uri(to_pixels(attacked)), f"{name}, attacked, taken for {taken_adv}"),
        difference=Picture(data_uri(amplified(clean, attacked, reach)), f"amplified difference of {name}"),
        predicted_nat=taken_nat,
        predicted_adv=taken_adv,
        confidence_nat=float(nat.max()),
        confidence_adv=float(adv.max()),
    )


def training_pictures(data: DataSet, places: Iterable[int]) -> dict[int, Picture]:
    """Pictures of training images, by their place in the data set."""
    rows = {place: row for row, place in enumerate(data.train.index.tolist())}
    found = {}
    for place in places:
        if place in rows:
            label = data.classes[int(data.train.labels[rows[place]])]
            pixels = data.train.pixels(torch.tensor([rows[place]]))[0].numpy()
            found[place] = Picture(data_uri(pixels), f"Training image {place} of class {label}")
    return found
