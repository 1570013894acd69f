"""Weights of a file find their part of a network, and a new head is put where the logits are made."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import probmargin as pm
from probmargin.core.errors import UsageError
from probmargin.models.checks import check_model
from probmargin.models.head import head_of
from probmargin.runs.weights import classes_of, with_weights

SHAPE = (1, 2, 2)


class Body(nn.Module):
    """All its layers under one name, as in a network whose author calls them so."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.body(x)
        return logits


class Inside(nn.Module):
    """A normalisation and a network, in a module."""

    def __init__(self) -> None:
        super().__init__()
        self.normalize, self.net = norm(), Body()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.net(self.normalize(x))
        return logits


def norm() -> pm.Normalize:
    return pm.Normalize(mean=[0.3], std=[0.4])


def layers() -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(4, 5), nn.Linear(5, 3)]


def named() -> OrderedDict[str, nn.Module]:
    return OrderedDict(zip(("flat", "body", "head"), layers(), strict=True))


WRAPPED: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "a network": (Body, lambda: nn.Sequential(norm(), Body())),
    "its layers": (lambda: nn.Sequential(*layers()), lambda: nn.Sequential(norm(), *layers())),
    "layers by name": (
        lambda: nn.Sequential(named()),
        lambda: nn.Sequential(OrderedDict([("norm", norm()), *named().items()])),
    ),
    "a network by name": (Body, lambda: nn.Sequential(OrderedDict([("norm", norm()), ("net", Body())]))),
    "in a module": (Body, Inside),
}


@pytest.mark.parametrize(("bare", "whole"), WRAPPED.values(), ids=WRAPPED)
@pytest.mark.parametrize("prefix", ["", "module."])
def test_weights_of_a_network_fit_behind_our_normalisation_and_so_do_the_whole_ones(
    bare: Callable[[], nn.Module], whole: Callable[[], nn.Module], prefix: str, tmp_path: Path
) -> None:
    trained = bare()
    torch.save({prefix + name: tensor for name, tensor in trained.state_dict().items()}, tmp_path / "bare.pt")
    model = with_weights(whole(), tmp_path / "bare.pt", "whole", image_shape=SHAPE)
    x = torch.rand(2, *SHAPE)
    torch.testing.assert_close(model(x), trained((x - 0.3) / 0.4))
    torch.save({prefix + name: tensor for name, tensor in model.state_dict().items()}, tmp_path / "whole.pt")
    again = with_weights(whole(), tmp_path / "whole.pt", "whole", image_shape=SHAPE)
    torch.testing.assert_close(again(x), model(x))
    assert list(again.state_dict()) == list(model.state_dict()), "it is not normalised twice"


def test_a_normalisation_of_ones_own_may_be_for_other_pixels(tmp_path: Path) -> None:
    class Bytes(nn.Module):
        """Takes images in [0, 1] and means of 0 to 255."""

        mean: torch.Tensor
        std: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.tensor([125.3]))
            self.register_buffer("std", torch.tensor([63.0]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (255 * x - self.mean) / self.std

    trained, fresh = (nn.Sequential(Bytes(), nn.Flatten(), nn.Linear(4, 3)) for _ in range(2))
    torch.save(trained.state_dict(), tmp_path / "weights.pt")
    found = with_weights(fresh, tmp_path / "weights.pt", "bytes", image_shape=SHAPE)
    assert torch.equal(found.state_dict()["2.weight"], trained.state_dict()["2.weight"])
    with pytest.raises(UsageError, match=r"weights\.pt does not fit net:build: .*; name the network that it is of"):
        with_weights(Body(), tmp_path / "weights.pt", "net:build", image_shape=SHAPE)


@pytest.mark.parametrize(
    "other", [{"1.weight": torch.zeros(5, 9)}, {"2.weight": torch.zeros(5)}], ids=["another width", "a tensor more"]
)
def test_a_network_of_another_build_is_not_one_for_other_classes(
    other: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    weights = {"1.weight": torch.zeros(5, 4), "1.bias": torch.zeros(5)}

    def adapted() -> nn.Module:
        model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        return with_weights(model, tmp_path / "weights.pt", "net", image_shape=SHAPE, new_head=True)

    torch.save(weights, tmp_path / "weights.pt")
    assert adapted()(torch.rand(2, *SHAPE)).shape == (2, 3)
    torch.save(weights | other, tmp_path / "weights.pt")
    with pytest.raises(UsageError, match=r"weights\.pt does not fit net: .* name its own model"):
        adapted()


class HeadFirst(nn.Module):
    """The head is made before the rest, and a layer that is never called is made last."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(5, num_classes)
        self.body = nn.Linear(4, 5)
        self.norm = nn.BatchNorm1d(5)
        self.spare = nn.Linear(5, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(self.norm(self.body(x.flatten(1))))
        return logits


@pytest.mark.parametrize("classes", [3, 4])
def test_the_head_is_where_the_logits_are_made_and_is_named(classes: int, tmp_path: Path) -> None:
    trained, fresh = HeadFirst(classes), HeadFirst(3)
    for model in (trained, fresh):
        model.spare = nn.Linear(5, 2)
    torch.save(trained.state_dict(), tmp_path / "weights.pt")
    head = fresh.classifier.weight.clone()
    said: list[str] = []
    found = with_weights(
        fresh, tmp_path / "weights.pt", "first", image_shape=SHAPE, new_head=True, log=said.append
    ).state_dict()
    assert torch.equal(found["classifier.weight"], head)
    assert all(torch.equal(found[name], trained.state_dict()[name]) for name in ("body.weight", "spare.weight"))
    assert said == ["starts afresh: classifier.bias (3,), classifier.weight (3, 5)"]
    if classes != 3:
        assert classes_of(tmp_path / "weights.pt", HeadFirstWithSpare(), SHAPE) == classes


class HeadFirstWithSpare(HeadFirst):
    """For three classes, with a spare layer for two."""

    def __init__(self) -> None:
        super().__init__(3)
        self.spare = nn.Linear(5, 2)


@pytest.mark.parametrize(
    ("mean", "std"),
    [
        ([125.3], [0.5]),
        ([0.5], [63.0]),
        ([], []),
        ([0.5], [0.0]),
        ([0.5, 0.5], [0.2]),
        ([-0.1], [0.2]),
        ([float("nan")], [0.2]),
    ],
)
def test_a_normalisation_is_for_images_in_0_to_1(mean: list[float], std: list[float]) -> None:
    with pytest.raises(UsageError, match=r"is not for images in \[0, 1\]: give one mean and one deviation a channel"):
        pm.Normalize(mean, std)


def test_a_normalisation_for_other_channels_makes_no_images_of_its_own() -> None:
    three = nn.Sequential(pm.Normalize([0.4] * 3, [0.2] * 3), nn.Flatten(), nn.Linear(12, 3))
    grey, labels = torch.rand(2, 1, 2, 2), torch.tensor([0, 1])
    words = "Sequential normalises 3 channels and its images have 1: give Normalize one number for each of theirs"
    with pytest.raises(UsageError, match=words):
        pm.evaluate(three, (grey, labels), attacks=["nat"])
    with pytest.raises(UsageError, match=words.replace("Sequential", "net:build")):
        check_model(three, (1, 2, 2), 3, "net:build")
    one = nn.Sequential(pm.Normalize([0.4], [0.2]), nn.Flatten(), nn.Linear(12, 3))
    assert check_model(one, (3, 2, 2), 3, "one number serves all") == 3
    coloured = nn.Sequential(Coloured(), *three)
    assert pm.evaluate(coloured, (grey, labels), attacks=["nat"])["nat"]["num_examples"] == 2
    assert not any(layer._forward_pre_hooks for layer in coloured.modules())
    assert torch.equal(pm.Normalize(0.5, 0.2).std, pm.Normalize([0.5], [0.2]).std)


class Coloured(nn.Module):
    """Makes three channels of one, as what stands before a network for photographs does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.expand(-1, 3, -1, -1)


class Functional(nn.Module):
    """Its head's weight is used without the layer being called; other layers are as wide as there are classes."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1, 3, 1, 1))
        self.places = nn.Parameter(torch.zeros(1, 16, 4))
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.body = nn.Linear(16, 8)
        self.head = nn.Linear(8, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.body(self.conv(x + self.shift).mean((2, 3)))
        return nn.functional.linear(features, nn.functional.normalize(self.head.weight))


@pytest.mark.parametrize("classes", [3, 16])
def test_a_head_that_is_not_called_is_the_last_layer_whatever_else_is_as_wide(classes: int, tmp_path: Path) -> None:
    trained, fresh = Functional(classes + 1), Functional(classes)
    torch.save(trained.state_dict(), tmp_path / "weights.pt")
    assert head_of(fresh, (3, 4, 4)) is None
    head = fresh.head.weight.clone()
    found = with_weights(fresh, tmp_path / "weights.pt", "f", image_shape=(3, 4, 4), new_head=True).state_dict()
    assert torch.equal(found["head.weight"], head)
    assert torch.equal(found["conv.weight"], trained.conv.weight)


def test_heads_of_other_kinds_are_found() -> None:
    pixels = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 16, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert head_of(pixels, (3, 4, 4)) is pixels[1]

    class Prototypes(nn.Module):
        """One vector a class, as its own parameter, and a layer of as many numbers."""

        def __init__(self) -> None:
            super().__init__()
            self.prototypes = nn.Parameter(torch.rand(5, 3))
            self.body = nn.Linear(4, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.body(x.flatten(1)) @ self.prototypes
            return logits

    narrow = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3))
    assert head_of(narrow, SHAPE) is narrow[3], "the last of those that are as wide"
    inner = Prototypes()
    assert head_of(nn.Sequential(nn.Identity(), inner), SHAPE) is inner
    holder = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    holder.register_parameter("places", nn.Parameter(torch.zeros(3, 2)))
    assert head_of(holder, SHAPE) is holder[1], "what holds the head has its matrix for something else"

    class Script(nn.Linear):
        """As a part in TorchScript does."""

        def register_forward_hook(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("register_forward_hook is not supported on ScriptModules")

    assert head_of(nn.Sequential(nn.Flatten(), Script(4, 3)), SHAPE) is None


def test_a_network_that_fails_or_has_no_such_layer_has_no_head() -> None:
    assert head_of(nn.Linear(7, 3), SHAPE) is None
    assert head_of(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4)), SHAPE) is None
    model = HeadFirst(3).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert head_of(model, SHAPE) is model.classifier
    assert model.training
    assert not any(layer._forward_hooks for layer in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
