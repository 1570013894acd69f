"""LM-PGD worked by hand: three steps on a hill, in numbers that binary fractions hold exactly."""

import pytest
import torch

from probmargin.attacks.lm_pgd import LMPGD

PEAK = 17 / 32


def hill(x: torch.Tensor) -> torch.Tensor:
    """Logits (0, -(x - PEAK)^2): with label 0, the CW loss is that hill less 50, without rounding."""
    height = -(x.flatten(1) - PEAK).square().sum(dim=1)
    return torch.stack([torch.zeros_like(height), height], dim=1)


def slope(x: torch.Tensor) -> torch.Tensor:
    """Logits (0, x): the loss rises without end."""
    height = x.flatten(1).sum(dim=1)
    return torch.stack([torch.zeros_like(height), height], dim=1)


def walked(attack: LMPGD, num_steps: int, model: object, starts: list[float]) -> list[float]:
    """Where one-pixel images stand after so many steps."""
    x = torch.tensor(starts, dtype=torch.float64).view(-1, 1, 1, 1)
    settings = {**vars(attack), "num_steps": num_steps, "start": "zero", "loss": "cw"}
    labels = torch.zeros(len(starts), dtype=torch.long)
    places: list[float] = LMPGD(**settings)(model, x, labels).x_adv.flatten().tolist()  # type: ignore[arg-type]
    return places


def test_velocity_gathers_on_a_slope() -> None:
    """The longest step always wins; each velocity is half the one before plus 1/8, and each place adds it."""
    attack = LMPGD(eps=1.0, momentum=0.5, step_min=1 / 16, step_max=1 / 8, num_grid=3)
    velocities = [1 / 8, 1 / 16 + 1 / 8, 3 / 32 + 1 / 8]
    for steps in (1, 2, 3):
        assert walked(attack, steps, slope, [0.0]) == [sum(velocities[:steps])]


ON_A_HILL = LMPGD(eps=0.75, momentum=0.5, step_min=1 / 4, step_max=1 / 2, num_grid=5, warm_steps=1)


def test_the_search_on_a_hill() -> None:
    """Grid of step 1: 1/4, 5/16, 3/8, 7/16, 1/2. Grid of steps 2 and 3: 0, 1/8, 1/4, 3/8, 1/2.

    From 1/4: steps 1/4 and 5/16 both end 1/32 off the peak, the smaller wins (v = 1/4). Drift alone then leads past
    the peak, so step 0 wins (v = 1/8). Then the way is back: drift 1/16, step 1/8, so v = -1/16.
    From 0: the last step of the grid, 1/2. Drift 1/4, step 0. Drift 1/8, back by 3/8, so v = -1/4.
    From the peak: no slope, no move, though the least step is 1/4.
    """
    starts = [0.25, 0.0, PEAK]
    assert walked(ON_A_HILL, 1, hill, starts) == [0.5, 0.5, PEAK]
    assert walked(ON_A_HILL, 2, hill, starts) == [0.625, 0.75, PEAK]
    assert walked(ON_A_HILL, 3, hill, starts) == [0.5625, 0.5, PEAK]


def test_a_second_warm_step_may_not_stand_still() -> None:
    """From 1/4: 1/4 up; drift 1/8 and the least step 1/4, to 7/8; then drift 3/16, back by 1/2."""
    attack = LMPGD(**{**vars(ON_A_HILL), "warm_steps": 2})
    assert [walked(attack, steps, hill, [0.25]) for steps in (1, 2, 3)] == [[0.5], [0.875], [0.5625]]


def test_lookahead_sees_the_far_side_of_the_peak() -> None:
    """From 1/4: 1/4 up. Where the drift leads the way is back: drift 1/8, back by 1/8. Then v = 0 and step 0 wins.

    From 0: 1/2 up; drift 1/4, back by 1/4; step 0.
    """
    attack = LMPGD(**{**vars(ON_A_HILL), "lookahead": True})
    for steps in (1, 2, 3):
        assert walked(attack, steps, hill, [0.25, 0.0]) == [0.5, 0.5]


def test_lookahead_goes_no_further_than_the_drift() -> None:
    """Every step is 1/4 long. From 1/8 to 3/8; the drift leads to 1/2, short of the peak, so the way is on, to 3/4.

    From 1/4 to 1/2, itself short of it; the drift leads to 5/8, beyond it, so the way is back, to 3/8.
    """
    attack = LMPGD(**{**vars(ON_A_HILL), "step_max": 1 / 4, "lookahead": True, "warm_steps": 2})
    assert walked(attack, 1, hill, [0.125, 0.25]) == [0.375, 0.5]
    assert walked(attack, 2, hill, [0.125, 0.25]) == [0.75, 0.375]


def height_of(point: list[float], peak: list[float]) -> float:
    return -sum((a - b) ** 2 * (i + 1) for i, (a, b) in enumerate(zip(point, peak, strict=True)))


def held(point: list[float], centre: list[float], eps: float) -> list[float]:
    return [min(max(p, c - eps, 0.0), c + eps, 1.0) for p, c in zip(point, centre, strict=True)]


def plain_walk(x: list[float], peak: list[float], lookahead: bool, num_steps: int) -> list[float]:
    """The method in lists of numbers: 11 steps from 0.01 (0 after two steps) to 0.03, momentum 0.8, radius 0.1."""
    place, velocity = list(x), [0.0] * len(x)
    for step in range(1, num_steps + 1):
        drift = [0.8 * v for v in velocity]
        base = [p + d for p, d in zip(place, drift, strict=True)]
        seen = held(base, x, 0.1) if lookahead else place
        way = [float(s < p) - float(s > p) for s, p in zip(seen, peak, strict=True)]
        low = 0.01 if step <= 2 else 0.0
        found = {}
        for size in [low + (0.03 - low) * k / 10 for k in range(11)]:
            found[size] = height_of(held([b + size * w for b, w in zip(base, way, strict=True)], x, 0.1), peak)
        best = min(size for size, height in found.items() if height == max(found.values()))
        velocity = [d + best * w for d, w in zip(drift, way, strict=True)]
        place = held([p + v for p, v in zip(place, velocity, strict=True)], x, 0.1)
    return place


@pytest.mark.parametrize("lookahead", [False, True])
@pytest.mark.parametrize("num_steps", [1, 2, 3, 5])
def test_three_pixels_walk_as_in_plain_numbers(lookahead: bool, num_steps: int) -> None:
    x, peak = [0.5, 0.02, 0.7], [0.537, 0.0, 0.95]

    def model(images: torch.Tensor) -> torch.Tensor:
        gap = (images.flatten(1) - torch.tensor(peak, dtype=torch.float64)).square()
        height = -(gap * torch.tensor([1.0, 2.0, 3.0])).sum(dim=1)
        return torch.stack([torch.zeros_like(height), height], dim=1)

    attack = LMPGD(eps=0.1, momentum=0.8, step_min=0.01, step_max=0.03, warm_steps=2, num_steps=num_steps)
    attack = LMPGD(**{**vars(attack), "lookahead": lookahead, "start": "zero", "loss": "cw"})
    images = torch.tensor(x, dtype=torch.float64).view(1, 3, 1, 1)
    x_adv = attack(model, images, torch.tensor([0])).x_adv.flatten().tolist()
    assert x_adv == pytest.approx(plain_walk(x, peak, lookahead, num_steps), abs=1e-9)


def test_the_plain_walk_tells_the_two_gradients_apart() -> None:
    walks = [plain_walk([0.5, 0.02, 0.7], [0.537, 0.0, 0.95], lookahead, 5) for lookahead in (False, True)]
    assert max(abs(a - b) for a, b in zip(*walks, strict=True)) > 1e-4
