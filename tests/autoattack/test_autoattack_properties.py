"""Whatever the model, the images and the norm: what comes back is inside the ball and the box."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from probmargin.attacks.apgd import APGD
from probmargin.attacks.attack import Attack
from probmargin.attacks.balls import Norm
from probmargin.attacks.dlr import SearchLoss
from probmargin.attacks.fab import FAB
from probmargin.attacks.square import Square
from probmargin.core.losses import logit_margin
from probmargin.core.noise import KeyedNoise


def draw_attack(draw: st.DrawFn) -> Attack:
    norm: Norm = draw(st.sampled_from(["Linf", "L2"]))
    eps = draw(st.floats(0.01, 1.0 if norm == "Linf" else 3.0))
    loss: SearchLoss = draw(st.sampled_from(["ce", "dlr", "dlr_targeted"]))
    kinds: list[Attack] = [
        APGD(norm=norm, eps=eps, num_steps=4, loss=loss, restarts=2),
        FAB(norm=norm, eps=eps, num_steps=4, targeted=draw(st.booleans()), restarts=2),
        Square(norm=norm, eps=eps, num_queries=54),
    ]
    return draw(st.sampled_from(kinds))


attacks = st.composite(draw_attack)()
sizes = st.sampled_from([(1, 4, 4), (3, 8, 8), (2, 5, 7), (1, 14, 12), (1, 1, 3)])


def task(
    size: tuple[int, int, int], classes: int, count: int, seed: int, dtype: torch.dtype
) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.nn.Linear(size[0] * size[1] * size[2], 16)
    out = torch.nn.Linear(16, classes)
    for parameter in (*hidden.parameters(), *out.parameters()):
        parameter.data = torch.randn(parameter.shape, generator=generator)
    model = torch.nn.Sequential(torch.nn.Flatten(), hidden, torch.nn.ReLU(), out).to(dtype)
    x = torch.rand(count, *size, generator=generator).to(dtype)
    x[0] = x[0].round()
    return model, x, torch.randint(classes, (count,), generator=generator)


def check_inside(attack: Attack, x_adv: torch.Tensor, x: torch.Tensor) -> None:
    assert x_adv.dtype == x.dtype
    assert x_adv.shape == x.shape
    assert not x_adv.requires_grad
    assert bool(((x_adv >= 0) & (x_adv <= 1)).all())
    delta = (x_adv.double() - x.double()).flatten(1)
    linf = attack.norm == "Linf"  # type: ignore[attr-defined]
    size = delta.abs().amax(dim=1) if linf else delta.norm(dim=1)
    assert bool((size <= attack.eps + 1e-6).all())  # type: ignore[attr-defined]


@settings(max_examples=40)
@given(
    attack=attacks,
    size=sizes,
    classes=st.integers(2, 6),
    count=st.integers(1, 5),
    seed=st.integers(0, 99),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_returned_images_are_inside_ball_and_box(
    attack: Attack, size: tuple[int, int, int], classes: int, count: int, seed: int, dtype: torch.dtype
) -> None:
    model, x, labels = task(size, classes, count, seed, dtype)
    kept = x.clone()
    found = attack(model, x, labels, noise=KeyedNoise(seed=seed, ids=torch.arange(count))).x_adv
    check_inside(attack, found, x)
    assert torch.equal(x, kept)


@settings(max_examples=25)
@given(attack=attacks, size=sizes, classes=st.integers(2, 6), seed=st.integers(0, 99))
def test_an_example_alone_gets_the_same_image(
    attack: Attack, size: tuple[int, int, int], classes: int, seed: int
) -> None:
    model, x, labels = task(size, classes, 4, seed, torch.float64)
    noise = KeyedNoise(seed=seed, ids=torch.arange(4) + 10)
    together = attack(model, x, labels, noise=noise).x_adv
    for i in range(4):
        one = torch.tensor([i])
        alone = attack(model, x[one], labels[one], noise=noise.take(one)).x_adv
        torch.testing.assert_close(alone, together[one], atol=1e-6, rtol=0.0)


@settings(max_examples=20)
@given(attack=attacks, seed=st.integers(0, 99), right=st.booleans())
def test_a_batch_all_right_or_all_wrong_is_handled(attack: Attack, seed: int, right: bool) -> None:
    model, x, _ = task((1, 4, 4), 5, 3, seed, torch.float32)
    best = model(x).argmax(dim=1)
    labels = best if right else (best + 1) % 5
    found = attack(model, x, labels, noise=KeyedNoise(seed=0, ids=torch.arange(3))).x_adv
    check_inside(attack, found, x)
    if not right and not isinstance(attack, Square):
        assert bool((model(found).argmax(dim=1) != labels).all())


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_a_later_restart_of_fab_begins_on_the_ball_of_half_the_radius(norm: Norm) -> None:
    x, noise = torch.full((3, 1, 4, 4), 0.5), KeyedNoise(0, torch.arange(3))
    delta = (FAB(norm=norm, eps=0.2, restarts=2)._start(x, noise, 0, 1) - x).flatten(1)
    size = delta.abs().amax(dim=1) if norm == "Linf" else delta.square().sum(dim=1).sqrt()
    torch.testing.assert_close(size, torch.full((3,), 0.1))


def test_of_the_targets_that_break_an_image_one_that_rounding_cannot_undo_is_taken() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        """Class 1 wins by a hair once the first pixel rises, class 2 by far once the second does."""
        first, second = (x[:, 0, 0, place] - 0.5 for place in (0, 1))
        zero = torch.zeros_like(first)
        thin = 1e-5 - 1.0 + (first > 0) * 1.0 + first * 1e-9
        far = -1.5 + (second > 0) * 2.5 + second * 1e-9
        return torch.stack([zero, thin, far, zero - 5.0, zero - 6.0], dim=1)

    x, labels = torch.full((3, 1, 1, 2), 0.45), torch.zeros(3, dtype=torch.long)
    attack = APGD(eps=0.1, num_steps=8, loss="dlr_targeted", num_targets=2)
    found = attack(model, x, labels, noise=KeyedNoise(0, torch.arange(3))).x_adv
    assert bool((logit_margin(model(found), labels) < -0.5).all())
