"""The fast path against the plain one: the same step, folded, compiled and captured."""

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from blobs import blobs
from strategies import images, keyed, tiny_net
from torch import nn
from torch.nn import functional as F

from probmargin.core.fusing import fusable, fused
from probmargin.core.settings import EMA
from probmargin.core.types import Images, Logits
from probmargin.engine import graphs
from probmargin.engine.folding import CannotFold, FoldedConv, FoldedNetwork, Kind
from probmargin.methods.resolve import METHODS, named
from probmargin.models.build import build_model
from probmargin.training.fast import FastNetwork, GraphStepper
from probmargin.training.network import Network
from probmargin.training.state import NUM_SUMS, TrainState
from probmargin.training.step import Batch, starts_with_clean_images, train_step
from probmargin.training.stepper import Chosen

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
    unique = nn.ReLU()
    unique.lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(CannotFold, match=r"ReLU cannot be copied \(TypeError\)"):
        FoldedNetwork(nn.Sequential(nn.Conv2d(1, 2, 3), unique), torch.float32)
    watched = nn.Conv2d(1, 2, 3)
    watched.register_full_backward_hook(lambda *_: None)
    with pytest.raises(CannotFold, match="0 has hooks"):
        FoldedNetwork(nn.Sequential(watched), torch.float32)
    with pytest.raises(CannotFold, match="running statistics"):
        FoldedNetwork(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, track_running_stats=False)), torch.float32)
    network = FastNetwork(
        nn.Sequential(nn.Flatten(), nn.LayerNorm(4), nn.Linear(4, 2)), "fp32", "off", image_shape=(1, 2, 2)
    )
    assert [note for note in network.notes if "LayerNorm" in note] == network.notes
    with network.frozen("eval") as call:
        assert call(torch.rand(2, 1, 2, 2)).shape == (2, 2)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_the_stem_in_bfloat16_sees_more_of_an_image_than_its_rounding(channels: int) -> None:
    """Weights are in bfloat16 and convolved in float32 here: what is left is how the image came in."""
    conv = nn.Conv2d(channels, 5, 3, bias=False)
    stem = FoldedConv(conv, None, Kind(torch.bfloat16))
    with torch.no_grad():
        stem.fill(*stem.folded())
    x = torch.rand(6, channels, 8, 8, requires_grad=True)
    taken = stem.taken_in(x)
    check_stem(conv, stem, x, taken)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_compiled_stem_sees_as_much(device: str) -> None:
    """A compiler computes bfloat16 in float32 and leaves casts out: what rounding leaves was zero to it once."""
    if device == "cpu" and shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler on a CPU")
    conv = nn.Conv2d(3, 5, 3, bias=False).to(device)
    stem = FoldedConv(conv, None, Kind(torch.bfloat16))
    with torch.no_grad():
        stem.fill(*stem.folded())
    x = torch.rand(6, 3, 8, 8, device=device, requires_grad=True)
    taken = torch.compile(stem.taken_in)(x)
    assert torch.equal(taken, stem.taken_in(x))
    check_stem(conv, stem, x, taken)


def check_stem(conv: nn.Conv2d, stem: FoldedConv, x: torch.Tensor, taken: torch.Tensor) -> None:
    """What a stem took in tells images apart that rounding does not, and has the convolution's gradient."""
    assert taken.shape[1] == 8
    assert taken.dtype == torch.bfloat16
    weight = conv.weight.detach().bfloat16().float()
    exact = nn.functional.conv2d(x, weight)
    found = nn.functional.conv2d(taken.float(), stem.weight.float())
    rounded = nn.functional.conv2d(x.bfloat16().float(), weight)
    errors = [float((outputs - exact).detach().abs().max()) for outputs in (found, rounded)]
    assert errors[0] < 0.02 * errors[1]
    slope = torch.rand_like(exact)
    (wanted,), (given,) = (torch.autograd.grad(y, x, slope) for y in (exact, found))
    torch.testing.assert_close(given, wanted, rtol=0.02, atol=0.02)


def test_channels_of_a_grouped_convolution_are_not_filled_up() -> None:
    conv = nn.Conv2d(4, 4, 3, groups=4)
    folded = FoldedConv(conv, None, Kind(torch.bfloat16))
    with torch.no_grad():
        folded.fill(*folded.folded())
        x = torch.rand(2, 4, 8, 8)
        torch.testing.assert_close(folded(x).float(), conv(x), rtol=0.02, atol=0.02)


def test_a_layer_without_room_rounds_its_input() -> None:
    stem = FoldedConv(nn.Conv2d(12, 4, 3), None, Kind(torch.bfloat16))
    with torch.no_grad():
        stem.fill(*stem.folded())
    x = torch.rand(2, 12, 8, 8)
    taken = stem.taken_in(x)
    assert taken.shape[1] == 16
    assert torch.equal(taken[:, :12], x.bfloat16())
    assert not taken[:, 12:].any()
    assert torch.equal(stem.taken_in(x.bfloat16()), taken)


class Viewing(nn.Module):
    """Reshapes by `view`, which tensors with channels last refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(144, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.conv(x).view(x.size(0), -1))
        return logits


def test_a_model_that_does_not_run_with_channels_last_keeps_its_order() -> None:
    model = Viewing()
    network = FastNetwork(model, "fp32", "off", image_shape=(3, 8, 8))
    assert any("channels last" in note for note in network.notes)
    assert model.conv.weight.is_contiguous()
    assert network.order == torch.contiguous_format
    assert network.forward(torch.rand(3, 3, 8, 8)).shape == (3, 2)
    with network.frozen("eval") as call:
        assert call(torch.rand(3, 3, 8, 8)).shape == (3, 2)


@pytest.mark.parametrize("name", METHODS)
def test_a_step_through_the_fast_network_is_the_plain_step(name: str) -> None:
    """Uncompiled, so that it runs anywhere: folding, buffers left alone by AWP, modes."""
    now = named(name).at(99)
    x, labels = images(1, 8, size=8)
    batch = Batch(x=x, labels=labels, noise=keyed(8))
    results, models = [], []
    for network_class in (Network, FastNetwork):
        model = tiny_net(1).train()
        state = TrainState.fresh(model, named(name))
        network = (
            FastNetwork(model, "fp32", "off", image_shape=(1, 8, 8)) if network_class is FastNetwork else Network(model)
        )
        results.append(train_step(network, state.optimizer, now, batch))
        models.append(model)
    plain, fast = results
    torch.testing.assert_close(fast.loss, plain.loss, rtol=1e-4, atol=1e-5)
    if plain.x_adv is not None and fast.x_adv is not None:
        assert float(((plain.x_adv - fast.x_adv).abs() > 1e-6).float().mean()) < 0.005
    for key, tensor in models[0].state_dict().items():
        torch.testing.assert_close(models[1].state_dict()[key], tensor, rtol=1e-3, atol=1e-4)


class Beside(FastNetwork):
    """Runs a pass that may run beside the attack before it, which no stream is needed for."""

    def ahead(self, x: Images) -> Callable[[], Logits]:
        self._refresh()
        self._is_refreshed = True
        logits = self.forward(x)

        def finish() -> Logits:
            self.forget()
            return logits

        return finish


@pytest.mark.parametrize("name", METHODS)
def test_a_pass_beside_the_attack_changes_nothing(name: str) -> None:
    now = named(name).at(99)
    x, labels = images(1, 8, size=8)
    states = []
    for kind in (FastNetwork, Beside):
        model = tiny_net(1).train()
        state = TrainState.fresh(model, named(name))
        network = kind(model, "fp32", "off", image_shape=(1, 8, 8))
        for _ in range(2):
            train_step(network, state.optimizer, now, Batch(x=x, labels=labels, noise=keyed(8)))
        with network.frozen("eval") as call, torch.no_grad():
            states.append({**model.state_dict(), "logits": call(x)})
    assert all(torch.equal(tensor, states[1][key]) for key, tensor in states[0].items())


def test_passes_beside_the_attack_are_those_that_need_nothing_of_it() -> None:
    beside = {name for name in METHODS if starts_with_clean_images(named(name).at(99))}
    assert {"trades", "mail-trades"} <= beside
    assert not {"standard", "at", "mail-at", "awp", "trades-awp"} & beside


def test_replayed_steps_are_counted_for_the_average(monkeypatch: pytest.MonkeyPatch) -> None:
    method = replace(named("standard"), ema=EMA(decay=0.9), batch_size=4)
    model = tiny_net(classes=2)
    state = TrainState.fresh(model, method)
    state.sums = torch.zeros(NUM_SUMS, dtype=torch.float64)
    stepper = GraphStepper(Network(model), state, blobs().train, method.augment, 0)
    stepper.prepare(4)
    monkeypatch.setattr(stepper, "_graph_of", lambda now: SimpleNamespace(replay=lambda: None))
    for _ in range(3):
        stepper(method, 0, 0.1, Chosen(torch.arange(4), torch.zeros(4, 3, dtype=torch.int64)))
    assert state.average is not None
    assert state.average.steps == 3
    assert float(state.average._share) == pytest.approx(1 - 3 / 12), "of the third step: two were behind it"


@pytest.mark.parametrize(
    ("norm", "says"), [(nn.LayerNorm(4), False), (nn.BatchNorm1d(4, track_running_stats=False), True)]
)
def test_batch_norm_that_cannot_be_folded_is_said_where_there_is_one(norm: nn.Module, says: bool) -> None:
    model = nn.Sequential(nn.Flatten(), norm, nn.Linear(4, 2))
    notes = FastNetwork(model, "fp32", "off", image_shape=(1, 2, 2)).notes
    assert any("folded batch norm" in note for note in notes) == says


def test_a_capture_that_fails_leaves_no_trace_of_its_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that go on without the graph must not have trained on its batch three times before."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: nullcontext())
    monkeypatch.setattr(graphs, "warm_up", lambda work: [work() for _ in range(3)])

    @contextmanager
    def refused(graph: object) -> Iterator[None]:
        yield
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graphs, "capturing", refused)
    parameter, total = nn.Parameter(torch.ones(2)), torch.zeros(1)

    def work() -> None:
        total.add_(1)
        with torch.no_grad():
            parameter.mul_(2)

    with pytest.raises(RuntimeError, match="not permitted"):
        graphs.capture(work, [parameter, total])
    assert (parameter.tolist(), total.tolist()) == ([1, 1], [0])


@pytest.mark.slow
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


class Moody(nn.Module):
    """What a network may do in training alone."""

    def __init__(self, layer: nn.Module | None = None, *, noise: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.layer, self.noise, self.dropout = layer or nn.Identity(), noise, dropout
        self.last = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(self.first(x))
        if self.training and self.noise:
            x = x + torch.randn_like(x)
        x = F.dropout(x.mean(dim=(2, 3)), self.dropout, training=self.training)
        logits: torch.Tensor = self.last(x)
        return logits


def hooked() -> nn.Module:
    model = Moody()
    model.first[0].register_forward_hook(lambda layer, inputs, output: 3.0 * output)
    return model


MOODY: dict[str, Callable[[], nn.Module]] = {
    "dropout by function": lambda: Moody(dropout=0.7),
    "dropout of channels": lambda: Moody(nn.Dropout2d(0.5)),
    "alpha dropout": lambda: Moody(nn.AlphaDropout(0.5)),
    "noise": lambda: Moody(noise=True),
    "random slopes": lambda: Moody(nn.Sequential(nn.Conv2d(8, 8, 1), nn.RReLU(0.1, 0.9))),
    "a hook": hooked,
    "tracked instance norm": lambda: Moody(nn.InstanceNorm2d(8, track_running_stats=True)),
    "spectral norm": lambda: Moody(nn.utils.parametrizations.spectral_norm(nn.Conv2d(8, 8, 1))),
}


UNFOLDED = ("a hook", "tracked instance norm", "spectral norm")


@pytest.mark.parametrize("name", MOODY)
def test_attacks_on_the_fast_path_see_the_network_in_eval_mode(name: str) -> None:
    torch.manual_seed(0)
    model, x = MOODY[name]().train(), torch.rand(6, 3, 8, 8)
    network = FastNetwork(model, "fp32", "off", image_shape=(3, 8, 8))
    assert (network._attack_forward is not None) == (name not in UNFOLDED)
    kept = {key: buffer.clone() for key, buffer in model.named_buffers()}
    with Network(model).frozen("eval") as plain, torch.no_grad():
        expected = plain(x)
    with network.frozen("eval") as fast, torch.no_grad():
        torch.testing.assert_close(fast(x), expected, rtol=1e-4, atol=1e-5)
        assert torch.equal(fast(x), fast(x))
    assert all(torch.equal(buffer, kept[key]) for key, buffer in model.named_buffers())
    assert all(module.training for module in model.modules())


def test_a_folded_network_that_says_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FoldedNetwork, "forward", lambda self, x: 1.5 * self.body(x))
    network = FastNetwork(moved_model("small-cnn"), "fp32", "off", image_shape=(3, 16, 16))
    assert any("its logits are off by" in note for note in network.notes)
    assert network._attack_forward is None
