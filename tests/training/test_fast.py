"""The fast path against the plain one: the same step, folded, compiled and captured."""

import copy

import pytest
import torch
from strategies import images, keyed, tiny_net
from torch import nn

from probmargin.core.fusing import fusable, fused
from probmargin.data.dataset import image_set
from probmargin.engine.devices import set_precision
from probmargin.engine.folding import CannotFold, FoldedNetwork
from probmargin.methods.plain import at_epoch
from probmargin.methods.resolve import METHODS, named
from probmargin.models.build import build_model
from probmargin.training.fast import FastNetwork, fast_stepper
from probmargin.training.network import Network
from probmargin.training.state import NUM_SUMS, TrainState
from probmargin.training.step import Batch, StepResult, train_step
from probmargin.training.stepper import Stepper

MODELS = ["small-cnn", "resnet18", "preact-resnet18", "wrn-10-2"]


def moved_model(name: str) -> nn.Module:
    """A network whose batch-norm statistics and scales are not those of the start."""
    model = build_model(name, num_classes=10, in_channels=3, mean_std=((0.5,) * 3, (0.2,) * 3), seed=0)
    draw = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.copy_(0.1 * torch.randn(module.num_features, generator=draw))
            module.running_var.copy_(0.5 + torch.rand(module.num_features, generator=draw))
            module.weight.data.copy_(0.5 + torch.rand(module.num_features, generator=draw))
    return model.eval()


@pytest.mark.parametrize("name", MODELS)
def test_a_folded_network_is_the_network(name: str) -> None:
    model = moved_model(name)
    folded = FoldedNetwork(model, torch.float32)
    folded.refresh()
    x = torch.rand(4, 3, 16, 16, requires_grad=True)
    expected, found = model(x), folded(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    (wanted,), (given,) = torch.autograd.grad(expected.sum(), x), torch.autograd.grad(found.sum(), x)
    torch.testing.assert_close(given, wanted, rtol=1e-3, atol=1e-3 * float(wanted.abs().max()))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_folded_network_follows_the_trained_one_when_refreshed() -> None:
    model = moved_model("resnet18")
    folded = FoldedNetwork(model, torch.float32)
    folded.refresh()
    x = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
        assert not torch.allclose(folded(x), model(x), rtol=1e-3)
        folded.refresh()
        torch.testing.assert_close(folded(x), model(x), rtol=1e-4, atol=1e-5)


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)[:, :2] if x.sum() > 0 else x.flatten(1)[:, 2:4]


def test_what_cannot_be_folded_says_why() -> None:
    with pytest.raises(CannotFold, match="depends on its data"):
        FoldedNetwork(Branching(), torch.float32)
    with pytest.raises(CannotFold, match="LayerNorm"):
        FoldedNetwork(nn.Sequential(nn.Flatten(), nn.LayerNorm(4)), torch.float32)
    with pytest.raises(CannotFold, match="running statistics"):
        FoldedNetwork(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, track_running_stats=False)), torch.float32)
    network = FastNetwork(nn.Sequential(nn.Flatten(), nn.LayerNorm(4), nn.Linear(4, 2)), "fp32", "off")
    assert network.note is not None
    assert "LayerNorm" in network.note
    with network.frozen("eval") as call:
        assert call(torch.rand(2, 1, 2, 2)).shape == (2, 2)


@pytest.mark.parametrize("name", METHODS)
def test_a_step_through_the_fast_network_is_the_plain_step(name: str) -> None:
    """Uncompiled, so that it runs anywhere: folding, buffers left alone by AWP, modes."""
    now = at_epoch(named(name), 99)
    x, labels = images(1, 8, size=8)
    batch = Batch(x=x, labels=labels, noise=keyed(8))
    results, models = [], []
    for network_class in (Network, FastNetwork):
        model = tiny_net(1).train()
        state = TrainState.fresh(model, named(name))
        network = FastNetwork(model, "fp32", "off") if network_class is FastNetwork else Network(model)
        results.append(train_step(network, state.optimizer, now, batch))
        models.append(model)
    plain, fast = results
    torch.testing.assert_close(fast.loss, plain.loss, rtol=1e-4, atol=1e-5)
    if plain.x_adv is not None and fast.x_adv is not None:
        assert float(((plain.x_adv - fast.x_adv).abs() > 1e-6).float().mean()) < 0.005
    for key, tensor in models[0].state_dict().items():
        torch.testing.assert_close(models[1].state_dict()[key], tensor, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fusing_is_a_choice_of_the_caller() -> None:
    seen = []

    @fusable
    def double(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.compiler.is_compiling())
        return x * 2

    x = torch.tensor([1.0])
    assert double(x).item() == 2
    with fused():
        assert double(x).item() == 2
    assert double(x).item() == 2
    assert seen[0] is False
    assert seen[-1] is False


def cuda_state(name: str, start: dict[str, torch.Tensor]) -> TrainState:
    model = build_model("resnet18", num_classes=10, in_channels=3, seed=0)
    model.load_state_dict(start)
    state = TrainState.fresh(model.cuda().train(), named(name))
    state.sums = torch.zeros(NUM_SUMS, dtype=torch.float64, device="cuda")
    return state


@pytest.mark.gpu
def test_captured_steps_agree_with_eager_ones_for_every_method() -> None:
    """float32 without TF32: under 0.5 % of adversarial pixels differ, losses agree to 1e-3."""
    set_precision("fp32")
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (64, 3, 32, 32), generator=draw, dtype=torch.uint8)
    train = image_set(pixels, torch.randint(10, (64,), generator=draw)).to("cuda")
    start = copy.deepcopy(build_model("resnet18", num_classes=10, in_channels=3, seed=0).state_dict())
    positions, draws = torch.arange(32, device="cuda"), torch.zeros(32, 3, dtype=torch.int64, device="cuda")
    report = []
    for name in METHODS:
        method = named(name)
        now = at_epoch(method, 99)
        plain = cuda_state(name, start)
        stepper = Stepper(Network(plain.model), plain, train, method.augment, 0)
        expected = stepper.step(now, stepper.batch(positions, draws, 99))
        fast = cuda_state(name, start)
        graphed = fast_stepper(fast, train, method, 0, precision="fp32", mode="default")
        graphed.say = pytest.fail
        graphed._positions = positions.clone()  # the captured batch of 32
        graphed._draws = draws.clone()
        taken: list[StepResult] = []
        step = graphed.step
        graphed.step = lambda now, batch, step=step, taken=taken: taken.append(step(now, batch))  # type: ignore[method-assign,misc]
        graphed(now, 99, float(method.lr), positions, draws)
        torch.cuda.synchronize()
        found = taken[-1]
        share = 0.0
        if expected.x_adv is not None and found.x_adv is not None:
            share = float(((found.x_adv - expected.x_adv).abs() > 1e-6).float().mean())
        difference = abs(float(found.loss) - float(expected.loss)) / float(expected.loss)
        report.append((name, share, difference))
    assert all(share < 0.005 and difference < 1e-3 for _, share, difference in report), report


@pytest.mark.gpu
def test_three_captured_steps_equal_three_steps_of_a_resumed_run() -> None:
    """Capturing leaves no trace: a graph made in the middle goes on as one made at the start."""
    set_precision("fp32")
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (96, 3, 32, 32), generator=draw, dtype=torch.uint8)
    train = image_set(pixels, torch.randint(10, (96,), generator=draw)).to("cuda")
    method = named("mail-trades")
    method = type(method)(**{**{f: getattr(method, f) for f in method.__dataclass_fields__}, "batch_size": 32})
    start = build_model("resnet18", num_classes=10, in_channels=3, seed=0).state_dict()
    draws = torch.zeros(32, 3, dtype=torch.int64, device="cuda")
    ends = []
    for cut in (False, True):
        state = cuda_state("mail-trades", start)
        stepper = fast_stepper(state, train, method, 0, precision="fp32", mode="default")
        for number in range(3):
            if cut and number == 1:
                saved = state.checkpoint({})
                state = cuda_state("mail-trades", start)
                state.restore(saved)
                state.sums = torch.zeros(NUM_SUMS, dtype=torch.float64, device="cuda")
                stepper = fast_stepper(state, train, method, 0, precision="fp32", mode="default")
            positions = torch.arange(32 * number, 32 * number + 32, device="cuda")
            stepper(at_epoch(method, 99), 99, 0.01, positions, draws)
        ends.append(state.model.state_dict())
    for key, tensor in ends[0].items():
        torch.testing.assert_close(ends[1][key], tensor, rtol=1e-4, atol=1e-5)
