"""Networks by name and a user's own."""

import math
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from probmargin.core.errors import UsageError
from probmargin.models.build import build_model, check_model
from probmargin.models.checks import check_trainable

COUNTS = {
    "resnet18": 11_173_962,
    "preact-resnet18": 11_172_170,
    "wrn-34-10": 46_160_474,
    "wrn-32-10": 46_160_474,
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts(name: str) -> None:
    model = build_model(name, num_classes=10, in_channels=3)
    assert sum(parameter.numel() for parameter in model.parameters()) == COUNTS[name]


@pytest.mark.parametrize("name", ["small-cnn", "resnet18", "preact-resnet18", "wrn-10-1"])
@pytest.mark.parametrize(("classes", "channels", "size"), [(2, 1, 8), (10, 3, 32), (7, 1, 28), (100, 3, 64)])
def test_any_classes_channels_and_sizes(name: str, classes: int, channels: int, size: int) -> None:
    model = build_model(name, num_classes=classes, in_channels=channels).eval()
    with torch.no_grad():
        assert model(torch.rand(2, channels, size, size)).shape == (2, classes)
    check_model(model, (channels, size, size), classes, name)


@pytest.mark.parametrize("name", ["small-cnn", "resnet18", "preact-resnet18", "wrn-10-2"])
def test_every_parameter_is_used(name: str) -> None:
    """No dead block: each parameter gets a gradient."""
    model = build_model(name, num_classes=10, in_channels=3)
    model(torch.rand(2, 3, 16, 16)).square().sum().backward()
    dead = [key for key, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    assert dead == []


def test_wide_networks_start_as_the_specification_says() -> None:
    model = build_model("wrn-16-4", num_classes=10, in_channels=3, seed=0)
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 20_000:
            fan = module.kernel_size[0] ** 2 * module.out_channels
            assert float(module.weight.detach().std()) == pytest.approx(math.sqrt(2 / fan), rel=0.05)


def test_a_seed_decides_the_weights_and_leaves_torchs_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = build_model("small-cnn", num_classes=3, in_channels=1, seed=1)
    assert torch.equal(torch.rand(3), expected)
    second = build_model("small-cnn", num_classes=3, in_channels=1, seed=1)
    other = build_model("small-cnn", num_classes=3, in_channels=1, seed=2)
    key = "features.0.weight"
    assert torch.equal(first.state_dict()[key], second.state_dict()[key])
    assert not torch.equal(first.state_dict()[key], other.state_dict()[key])


def test_normalisation_lives_inside() -> None:
    mean_std = ((0.5, 0.4, 0.3), (0.1, 0.2, 0.3))
    plain = build_model("small-cnn", num_classes=3, in_channels=3, seed=1)
    inside = build_model("small-cnn", num_classes=3, in_channels=3, seed=1, mean_std=mean_std)
    x = torch.rand(2, 3, 8, 8)
    by_hand = (x - torch.tensor(mean_std[0]).view(1, 3, 1, 1)) / torch.tensor(mean_std[1]).view(1, 3, 1, 1)
    torch.testing.assert_close(inside(x), plain(by_hand))


def test_a_users_own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mynet.py").write_text(
        "import torch\n"
        "def build(num_classes):\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(num_classes))\n"
        "def bare():\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"
        "def wrong():\n"
        "    return 3\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    model = build_model("mynet:build", num_classes=4, in_channels=1)
    assert model(torch.rand(2, 1, 8, 8)).shape == (2, 4)
    check_model(build_model("mynet:bare", num_classes=10, in_channels=1), (1, 8, 8), 10, "mynet:bare")
    with pytest.raises(UsageError, match=r"not an nn\.Module"):
        build_model("mynet:wrong", num_classes=4, in_channels=1)
    with pytest.raises(UsageError, match="no function or class named 'absent'"):
        build_model("mynet:absent", num_classes=4, in_channels=1)


def test_bad_names_and_bad_fits() -> None:
    with pytest.raises(UsageError, match="did you mean resnet18"):
        build_model("resnet-18", num_classes=10, in_channels=3)
    with pytest.raises(UsageError, match=r"depth 6n\+4"):
        build_model("wrn-33-10", num_classes=10, in_channels=3)
    with pytest.raises(UsageError, match="cannot import no_such_package"):
        build_model("no_such_package.net:build", num_classes=10, in_channels=3)
    model = build_model("small-cnn", num_classes=10, in_channels=3)
    with pytest.raises(UsageError, match="does not take images of shape"):
        check_model(model, (1, 8, 8), 10, "small-cnn")

    class Guided(nn.Module):
        def forward(self, x: torch.Tensor, *, mode: str) -> torch.Tensor:
            return x.flatten(1)

    with pytest.raises(UsageError, match=r"'mode'.*; put it into a module whose forward takes the images alone"):
        check_model(Guided(), (1, 8, 8), 64, "Guided")
    with pytest.raises(UsageError, match="the data has 7 classes"):
        check_model(model, (3, 8, 8), 7, "small-cnn")


def test_checks_leave_a_model_as_it_was() -> None:
    """Parameters, gradients, buffers, modes and torch's generator."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(), nn.Linear(144, 3))
    model[1].eval()
    model[4].weight.grad = torch.ones(3, 144)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    drawn = torch.get_rng_state()
    check_trainable(model, (1, 8, 8), 3, "net")
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    assert modes == [module.training for module in model.modules()]
    assert torch.equal(torch.get_rng_state(), drawn)
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert len(gradients) == 1
    assert bool((gradients[0] == 1).all())


def test_a_last_layer_of_zeros_is_fine() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    nn.init.zeros_(model[1].weight)  # type: ignore[arg-type]
    check_trainable(model, (1, 8, 8), 3, "net")
