"""Attacks: what each of them promises, over the whole registry."""

import copy

import pytest
import torch
from hypothesis import given, settings, strategies as st
from strategies import images, keyed, tiny_net
from torch import nn

from probmargin.attacks.apgd import APGD
from probmargin.attacks.attack import ATTACKS, Attack
from probmargin.attacks.balls import Norm
from probmargin.attacks.fab import FAB
from probmargin.attacks.lm_pgd import LMPGD
from probmargin.attacks.pgd import PGD, EarlyStopPGD
from probmargin.core.errors import UsageError
from probmargin.core.losses import cross_entropy, kl_divergence, logit_margin

attacks = pytest.mark.parametrize("attack", ATTACKS.examples(), ids=repr)


def distance(attack: Attack, x_adv: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    delta = (x_adv - x).double().flatten(1)
    return delta.abs().amax(1) if attack.norm == "Linf" else delta.norm(dim=1)  # type: ignore[attr-defined]


@attacks
@settings(max_examples=6)
@given(seed=st.integers(0, 1000), batch=st.sampled_from([1, 3, 5]), channels=st.sampled_from([1, 3]))
def test_images_stay_in_the_ball_and_in_range(attack: Attack, seed: int, batch: int, channels: int) -> None:
    classes = 2 + seed % 4
    x, labels = images(seed, batch, channels, size=8, classes=classes)
    result = attack(tiny_net(seed, classes, channels), x, labels, noise=keyed(batch, seed))
    assert result.x_adv.shape == x.shape
    assert result.x_adv.dtype == x.dtype
    assert not result.x_adv.requires_grad
    assert (result.x_adv >= 0).all()
    assert (result.x_adv <= 1).all()
    assert (distance(attack, result.x_adv, x) <= attack.eps + 1e-6).all()  # type: ignore[attr-defined]


@attacks
def test_the_model_and_the_images_are_left_as_found(attack: Attack) -> None:
    x, labels = images(1, 6, size=8)
    model = tiny_net(1)
    model.train()
    model.bn.eval()
    kept = copy.deepcopy(model.state_dict())
    before = x.clone()
    attack(model, x, labels, noise=keyed(6))
    assert torch.equal(x, before)
    assert not x.requires_grad
    assert model.training
    assert not model.bn.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, kept[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


@attacks
def test_an_example_alone_is_attacked_the_same(attack: Attack) -> None:
    x, labels = images(2, 5, size=8)
    network = tiny_net(2).double()

    def model(x: torch.Tensor) -> torch.Tensor:
        # One by one: a batch rounds otherwise than an image alone, and a search may hang on the last digit.
        return torch.cat([network(image[None]) for image in x])

    network.eval()
    whole = attack(model, x.double(), labels, noise=keyed(5)).x_adv
    for row in range(5):
        rows = torch.tensor([row])
        apart = attack(model, x[rows].double(), labels[rows], noise=keyed(5).take(rows)).x_adv
        torch.testing.assert_close(apart, whole[rows], rtol=0, atol=1e-6)


@attacks
def test_the_same_noise_gives_the_same_images(attack: Attack) -> None:
    x, labels = images(3, 4, size=8)
    model = tiny_net(3)
    first, second = (attack(model, x, labels, noise=keyed(4)).x_adv for _ in range(2))
    assert torch.equal(first, second)


@attacks
def test_labels_beyond_the_classes_are_refused_at_the_first_pass(attack: Attack) -> None:
    x, labels = images(3, 4, size=8, classes=3)
    passes = []

    def counted(x: torch.Tensor) -> torch.Tensor:
        passes.append(len(x))
        logits: torch.Tensor = model(x)
        return logits

    model = tiny_net(3, 3)
    labels[2] = 3
    with pytest.raises(UsageError, match="labels go up to 3 but the model has 3 classes"):
        attack(counted, x, labels, noise=keyed(4))
    assert passes == [4]


@attacks
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_labels_of_any_integers_are_the_same_labels(attack: Attack, dtype: torch.dtype) -> None:
    x, labels = images(3, 4, size=8)
    model = tiny_net(3)
    first, second = (attack(model, x, given, noise=keyed(4)).x_adv for given in (labels, labels.to(dtype)))
    assert torch.equal(first, second)


@attacks
def test_inference_mode_changes_nothing(attack: Attack) -> None:
    """Neither around the call, nor around the making of the model and the images."""
    x, labels = images(3, 4, size=8)
    wanted = attack(tiny_net(3), x, labels, noise=keyed(4)).x_adv
    with torch.inference_mode():
        model, images_, labels_ = tiny_net(3), x.clone(), labels.clone()
        inside = attack(model, images_, labels_, noise=keyed(4)).x_adv
    assert model.training
    assert torch.equal(inside, wanted)
    assert torch.equal(attack(model, images_, labels_, noise=keyed(4)).x_adv, wanted)


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(3, 64, generator=draw))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) @ self.weight.T


@attacks
def test_no_attack_makes_an_image_easier(attack: Attack) -> None:
    """On a linear model the batch's mean margin falls, unless an attack that aims for a break hands images back."""
    model = Linear()
    x = torch.full((12, 1, 8, 8), 0.5)
    labels = model(x).argmax(1)
    x_adv = attack(model, x, labels, noise=keyed(12)).x_adv
    before, after = (logit_margin(model(images), labels) for images in (x, x_adv))
    moved = (x_adv != x).flatten(1).any(dim=1)
    assert moved.all() or isinstance(attack, FAB)
    assert not moved.any() or (after[moved] < before[moved]).float().mean() > 0.5


FULL = [
    PGD(eps=0.1, step_size=0.03),
    PGD(eps=0.1, step_size=0.03, loss="cw"),
    PGD(eps=0.1, step_size=0.03, loss="kl", start="uniform_eps"),
    PGD(norm="L2", eps=1.0, step_size=0.3),
    EarlyStopPGD(eps=0.1, step_size=0.03, tau=10),
    LMPGD(eps=0.1, step_max=0.03, step_min=0.01, num_steps=5),
]


@pytest.mark.parametrize("attack", FULL, ids=repr)
def test_a_full_attack_raises_every_examples_loss_on_a_linear_model(attack: Attack) -> None:
    model = Linear()
    x = torch.full((12, 1, 8, 8), 0.5)
    labels = model(x).argmax(1)
    x_adv = attack(model, x, labels, noise=keyed(12)).x_adv
    if getattr(attack, "loss", "ce") == "kl":
        assert (kl_divergence(model(x), model(x_adv)) > 0.1).all()
    else:
        assert (cross_entropy(model(x_adv), labels) > cross_entropy(model(x), labels) + 0.1).all()


def test_pgd_reaches_the_corner_that_is_worst_for_a_linear_model() -> None:
    model = Linear()
    with torch.no_grad():
        model.weight[2] = 0.0
        model.weight[1] = -model.weight[0]
    x, labels = torch.full((3, 1, 8, 8), 0.5), torch.tensor([0, 0, 1])
    x_adv = PGD(eps=0.1, step_size=0.03)(model, x, labels, noise=keyed(3)).x_adv
    direction = (model.weight[0] - model.weight[1]).sign().view(1, 8, 8)
    for row, sign in enumerate((-1, -1, 1)):
        torch.testing.assert_close(x_adv[row], x[row] + sign * 0.1 * direction)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_the_mode_decides_whose_statistics_batch_norm_uses(mode: str) -> None:
    x, labels = images(4, 8, size=8)
    model = tiny_net(4)
    seen = []
    model.bn.register_forward_hook(lambda module, inputs, output: seen.append(module.training))
    attack = ATTACKS.build({"name": "pgd", "model_mode": mode})
    attack(model.eval() if mode == "train" else model.train(), x, labels, noise=keyed(8))
    assert set(seen) == {mode == "train"}


def test_early_stop_leaves_what_is_wrong_from_the_start() -> None:
    model = Linear()
    x = torch.full((12, 1, 8, 8), 0.5)
    wrong = (model(x).argmax(1) + 1) % 3
    x_adv = EarlyStopPGD(start="zero")(model, x, wrong, noise=keyed(12)).x_adv
    assert torch.equal(x_adv, x)


def test_step_noise_moves_where_the_gradient_is_zero() -> None:
    def flat(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.flatten(1).sum(1, keepdim=True) * 0 + 1, x.flatten(1).sum(1, keepdim=True) * 0], dim=1)

    x, labels = torch.full((2, 1, 4, 4), 0.5), torch.zeros(2, dtype=torch.long)
    still = EarlyStopPGD(start="zero")(flat, x, labels, noise=keyed(2)).x_adv
    noisy = EarlyStopPGD(start="zero", step_noise=0.001)(flat, x, labels, noise=keyed(2)).x_adv
    assert torch.equal(still, x)
    assert 0 < (noisy - x).abs().max() < 0.02


@pytest.mark.parametrize("start", ["normal_1e-3", "uniform_eps", "uniform_01", "zero"])
def test_starts(start: str) -> None:
    seen = []

    def spy(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.detach().clone())
        return torch.stack([x.flatten(1).sum(1), -x.flatten(1).sum(1)], dim=1)

    x = torch.zeros(64, 1, 4, 4)
    attack = ATTACKS.build({"name": "pgd", "start": start, "eps": 0.1, "num_steps": 1})
    attack(spy, x, torch.zeros(64, dtype=torch.long), noise=keyed(64))
    delta = seen[0] - x
    spread = {"normal_1e-3": 1e-3, "uniform_eps": 0.1 / 3**0.5, "uniform_01": 1 / 12**0.5, "zero": 0.0}[start]
    assert float(delta.std()) == pytest.approx(spread, rel=0.1)
    assert float(delta.mean()) == pytest.approx(0.5 if start == "uniform_01" else 0.0, abs=0.2 * spread + 1e-9)


def test_clamping_the_start_is_a_setting() -> None:
    seen = []

    def spy(x: torch.Tensor) -> torch.Tensor:
        seen.append(float(x.detach().min()))
        return torch.stack([x.flatten(1).sum(1), -x.flatten(1).sum(1)], dim=1)

    for clamp in (False, True):
        attack = PGD(start="uniform_eps", clamp_start=clamp, num_steps=1)
        attack(spy, torch.zeros(4, 1, 4, 4), torch.zeros(4, dtype=torch.long), noise=keyed(4))
    assert seen[0] < 0
    assert seen[1] == 0


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_each_restart_and_target_of_apgd_begins_elsewhere(norm: Norm) -> None:
    attack, x = APGD(norm=norm, restarts=2), torch.zeros(3, 1, 4, 4)
    drawn = [attack.draw(x, keyed(3), rank, restart) for rank in (0, 1) for restart in (0, 1)]
    assert len(torch.cat(drawn).unique(dim=0)) == 2 * 2 * 3
