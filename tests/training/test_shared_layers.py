"""Networks whose layers or tensors have several names: they are attacked, trained and averaged as one."""

from pathlib import Path

import pytest
import torch
from strategies import images
from torch import nn
from training_runs import fit, recipe

import probmargin as pm
from probmargin.core.frozen import frozen
from probmargin.core.settings import AWP, EMA
from probmargin.runs.weights import with_weights
from probmargin.training.perturbation import MovingAverage


class Named(nn.Module):
    """A head with a second name, a block that is called twice, two layers with one weight."""

    def __init__(self, num_classes: int = 4, channels: int = 1) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())
        self.blocks = nn.ModuleList([block, block])
        self.tied = nn.Conv2d(4, 4, 3, padding=1)
        self.tied.weight = block[0].weight  # type: ignore[assignment]
        self.end = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, num_classes))
        self.head, self.stem = self.end[-1], self.net[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.net(x)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.end(self.tied(x))
        return logits


def parameters(model: nn.Module) -> list[int]:
    """Every tensor under every name, by what it is."""
    found = dict(model.named_parameters(remove_duplicate=False))
    assert all(isinstance(parameter, nn.Parameter) for parameter in found.values())
    return [id(parameter) for parameter in found.values()]


@pytest.mark.parametrize("method", ["mail-trades", "mail-awp"])
def test_a_loss_leaves_the_network_whole_and_reaches_every_parameter(method: str) -> None:
    torch.manual_seed(0)
    model, (x, labels) = Named(), images(4, 8, size=8)
    before = parameters(model)
    pm.mail_loss(model, x, labels, method=method, num_steps=2, seed=1).backward()
    pm.attack("pgd", num_steps=2)(model, x, labels)
    pm.evaluate(model, (x, labels), ["nat", "pgd-2"])
    assert parameters(model) == before
    assert all(parameter.grad is not None and bool(parameter.grad.any()) for parameter in model.parameters())


def test_what_is_attacked_is_the_network() -> None:
    model, (x, _) = Named().eval(), images(4, 8, size=8)
    with frozen(model) as call:
        assert torch.equal(call(x), model(x))
        assert not call(x).requires_grad


@pytest.mark.parametrize("compile_mode", ["default", "off"])
def test_a_run_trains_shared_tensors_as_one_and_averages_them(tmp_path: Path, compile_mode: str) -> None:
    torch.manual_seed(0)
    method = recipe("mail-trades", epochs=2, ema=EMA(decay=0.9), awp=AWP(gamma=0.01))
    made = Named(2)
    start = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    found, _ = fit(tmp_path / "run", method, model=made, compile=compile_mode)
    for name, _ in made.named_parameters():
        assert not torch.equal(found[name], start[name]), f"{name} is as it was"
    pairs = ("end.2.weight", "head.weight"), ("blocks.0.0.weight", "tied.weight"), ("net.0.bias", "stem.bias")
    for one, other in pairs:
        assert torch.equal(found[one], found[other])


def test_a_tensor_with_two_names_is_averaged_under_both() -> None:
    model = Named()
    average = MovingAverage(model, EMA(decay=0.5))
    average.steps = 1000
    average.prepare()
    start = average.tensors["tied.weight"].clone()
    with torch.no_grad():
        model.tied.weight.add_(1.0)
    average.update(model)
    for name in ("tied.weight", "blocks.0.0.weight", "blocks.1.0.weight"):
        torch.testing.assert_close(average.tensors[name], start + 0.5)


def test_a_head_with_two_names_is_begun_anew_under_both(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trained, fresh = Named(4), Named(3)
    torch.save(trained.state_dict(), tmp_path / "weights.pt")
    head = fresh.state_dict()["head.weight"].clone()
    model = with_weights(fresh, tmp_path / "weights.pt", "named", image_shape=(1, 4, 4), new_head=True)
    found = model.state_dict()
    assert torch.equal(found["head.weight"], head)
    assert torch.equal(found["end.2.weight"], head)
    assert torch.equal(found["stem.weight"], trained.state_dict()["stem.weight"])


def test_a_last_layer_without_tensors_is_not_the_head(tmp_path: Path) -> None:
    def made(count: int) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(4, 5), nn.Linear(5, count), nn.LayerNorm(count, elementwise_affine=False)
        )

    trained, fresh = made(4), made(3)
    torch.save(trained.state_dict(), tmp_path / "weights.pt")
    for other in (fresh, made(4)):
        head = other.state_dict()["2.weight"].clone()
        found = with_weights(other, tmp_path / "weights.pt", "made", image_shape=(1, 2, 2), new_head=True).state_dict()
        assert torch.equal(found["2.weight"], head)
        assert torch.equal(found["1.weight"], trained.state_dict()["1.weight"])


def test_a_buffer_with_two_names_is_one_in_a_pass_over_copies() -> None:
    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = nn.Identity(), nn.Identity(), nn.Linear(4, 2)
            count = torch.zeros(())
            self.first.register_buffer("count", count)
            self.second.register_buffer("count", count)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.first.get_buffer("count").add_(1.0)
            logits: torch.Tensor = self.last(x.flatten(1)) * self.second.get_buffer("count")
            return logits

    model, x = Counted().eval(), torch.rand(3, 1, 2, 2)
    with frozen(model) as call:
        assert bool(call(x).any()), "the second name sees what the first has counted"
    assert float(model.first.get_buffer("count")) == 0


def test_parts_around_an_exported_program_follow_the_mode() -> None:
    model, (x, _) = nn.Sequential(nn.Flatten(), nn.Linear(64, 8)), images(4, 12, size=8)
    program = torch.export.export(model, (x[:2],), dynamic_shapes=({0: torch.export.Dim("batch")},)).module()
    whole = nn.Sequential(program, nn.Dropout(0.9), nn.Linear(8, 3))
    with frozen(whole) as call, torch.no_grad():
        assert torch.equal(call(x), call(x))
    assert whole[1].training


def test_an_exported_program_is_judged_like_the_network() -> None:
    torch.manual_seed(0)
    model, (x, labels) = Named().eval(), images(4, 12, size=8)
    program = torch.export.export(model, (x[:2],), dynamic_shapes=({0: torch.export.Dim("batch")},)).module()
    asked = ["nat", "pgd-3"]
    found, expected = (pm.evaluate(one, (x, labels), asked, eps=0.05) for one in (program, model))
    assert [found[name]["correct"] for name in asked] == [expected[name]["correct"] for name in asked]
