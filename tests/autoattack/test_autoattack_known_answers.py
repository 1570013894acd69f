"""Where the right answer is known: linear models, worked search paths, random search."""

import pytest
import torch
from autoattack_helpers import digits_model, digits_test, linear_task, run_ensemble, small_budget

from probmargin.attacks._hyperplane import shift_to_hyperplane
from probmargin.attacks._rows import Rows
from probmargin.attacks.apgd import APGD, check_windows
from probmargin.attacks.balls import Norm
from probmargin.attacks.dlr import targeted_dlr_loss
from probmargin.attacks.fab import FAB
from probmargin.attacks.square import Square
from probmargin.core.losses import cross_entropy, is_correct
from probmargin.core.noise import KeyedNoise

both_norms = pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.05), ("L2", 0.15)])


@both_norms
def test_robust_accuracy_of_a_linear_model_is_the_closed_form(norm: Norm, eps: float) -> None:
    model, x, labels = linear_task(count=200)
    distance = model.distance(x, labels, norm)
    clear = (distance - eps).abs() > 0.02 * eps
    expected = (distance > eps)[clear]
    assert 0.2 < float(expected.double().mean()) < 0.8
    result = run_ensemble(model, x[clear], labels[clear], norm=norm, eps=eps, attacks=small_budget(norm, eps))
    assert torch.equal(result.robust["square"], expected)


@both_norms
@pytest.mark.parametrize("targeted", [True, False])
def test_fab_finds_the_distance_of_a_linear_model(norm: Norm, eps: float, targeted: bool) -> None:
    model, x, labels = linear_task(count=50)
    attack = FAB(norm=norm, eps=eps, num_steps=60, targeted=targeted)
    others = torch.arange(10).repeat(50, 1)[torch.arange(10) != labels[:, None]].view(50, 9).T
    rows = Rows.of(x, labels, others if targeted else labels[None])
    found = attack.search(model, rows, rows.x, drop=False).size.view(-1, 50).amin(dim=0)
    torch.testing.assert_close(found, model.distance(x, labels, norm), rtol=0.01, atol=0.0)


@both_norms
def test_apgd_reaches_the_best_point_of_a_linear_model(norm: Norm, eps: float) -> None:
    model, x, labels = linear_task(classes=2, count=40)
    found = APGD(norm=norm, eps=eps)(model, x, labels).x_adv
    apart = (model.weight[1 - labels] - model.weight[labels]).detach()
    direction = apart.sign() if norm == "Linf" else apart / apart.norm(dim=1, keepdim=True)
    best = cross_entropy(model(x + eps * direction.view_as(x)), labels)
    robust = is_correct(model(found), labels)
    assert int(robust.sum()) > 10
    torch.testing.assert_close(cross_entropy(model(found), labels)[robust], best[robust], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_apgd_keeps_the_best_iterate_it_saw(norm: Norm) -> None:
    model, (x, labels) = digits_model(), digits_test()
    x, labels = x[:40], labels[:40]
    seen: list[torch.Tensor] = []

    def watched(images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = model(images)
        seen.append(cross_entropy(logits, labels).detach())
        return logits

    attack = APGD(norm=norm, eps=0.16 if norm == "Linf" else 0.7, num_steps=40)
    found = attack.climb(watched, Rows.of(x, labels, labels[None]), x, drop=False)
    assert len(seen) == 41
    assert torch.equal(found.loss_best, torch.stack(seen).amax(dim=0))
    torch.testing.assert_close(cross_entropy(model(found.x_best), labels), found.loss_best)


def test_a_broken_row_leaves_with_its_siblings_and_nothing_else_changes() -> None:
    model, (x, labels) = digits_model(), digits_test()
    attack = APGD(eps=0.16, num_steps=30, loss="dlr_targeted")
    rows = Rows.of(x[:60], labels[:60], attack.targets(model, x[:60], labels[:60])[:3])
    forwarded: list[int] = []

    def counted(images: torch.Tensor) -> torch.Tensor:
        forwarded.append(len(images))
        logits: torch.Tensor = model(images)
        return logits

    whole = attack.climb(model, rows, rows.x, drop=False)
    early = attack.climb(counted, rows, rows.x, drop=True)
    broken = whole.broken.view(3, -1).any(dim=0)
    assert torch.equal(early.broken.view(3, -1).any(dim=0), broken)
    assert forwarded[-1] == 3 * int((~broken).sum()) < forwarded[0]
    kept = (~broken).repeat(3)
    torch.testing.assert_close(early.loss_best[kept], whole.loss_best[kept], rtol=1e-3, atol=1e-4)
    assert not bool(is_correct(model(early.x_adv), rows.labels)[early.broken].any())


def test_the_targeted_dlr_gradient_runs_through_the_denominator() -> None:
    logits = torch.tensor([[4.0, 3.0, 2.0, 0.0, -1.0]], dtype=torch.float64, requires_grad=True)
    labels, targets = torch.tensor([0]), torch.tensor([1])
    (gradient,) = torch.autograd.grad(targeted_dlr_loss(logits, labels, targets).sum(), logits)
    # -(a - b) / D with D = a - (c + d) / 2 = 3: d/da = -1/3 + 1/9, d/db = 1/3, d/dc = d/dd = -1/18.
    expected = torch.tensor([[-2 / 9, 1 / 3, -1 / 18, -1 / 18, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("num_steps", [1, 3, 10, 17, 100, 1000])
def test_check_windows_close_in_order_and_shrink(num_steps: int) -> None:
    windows = check_windows(num_steps)
    ends, lengths = list(windows), list(windows.values())
    assert ends == torch.tensor(lengths).cumsum(0).tolist()
    assert lengths == sorted(lengths, reverse=True)
    assert ends[-1] <= num_steps


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_the_projection_agrees_with_bisection_in_float64(norm: Norm) -> None:
    generator = torch.Generator().manual_seed(3)
    points = torch.rand(300, 50, generator=generator, dtype=torch.float64)
    normal = torch.randn(300, 50, generator=generator, dtype=torch.float64)
    normal[:, ::7] = 0.0
    excess = 4.0 * torch.randn(300, generator=generator, dtype=torch.float64)
    shift = shift_to_hyperplane(points, normal, excess, norm)
    toward = -normal * excess.sign()[:, None]
    low, high = torch.zeros(300, 1, dtype=torch.float64), torch.full((300, 1), 1e3, dtype=torch.float64)
    step = toward.sign() if norm == "Linf" else toward
    for _ in range(90):
        middle = (low + high) / 2
        tried = (points + middle * step).clamp(0.0, 1.0) - points
        enough = (normal * tried).sum(dim=1).abs() >= excess.abs()
        high, low = torch.where(enough[:, None], middle, high), torch.where(enough[:, None], low, middle)
    expected = (points + high * step).clamp(0.0, 1.0) - points
    torch.testing.assert_close(shift, expected, atol=1e-9, rtol=0.0)
    single = shift_to_hyperplane(points.float(), normal.float(), excess.float(), norm)
    torch.testing.assert_close(single.double(), expected, atol=2e-5, rtol=0.0)


@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.04), ("L2", 0.3)])
def test_square_beats_random_points_of_the_sphere(norm: Norm, eps: float) -> None:
    model, x, labels = linear_task(count=60, shape=(1, 10, 10))
    found = Square(norm=norm, eps=eps, num_queries=500).search(model, x, labels, KeyedNoise(0, torch.arange(60)))
    broken = torch.zeros_like(labels, dtype=torch.bool)
    generator = torch.Generator().manual_seed(0)
    for _ in range(500):
        draw = torch.randn(x.shape, generator=generator)
        draw = draw.sign() if norm == "Linf" else draw / draw.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        broken |= ~is_correct(model((x + eps * draw).clamp(0.0, 1.0)), labels)
    assert int((found.margin <= 0).sum()) > int(broken.sum()) + 8


@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.16), ("L2", 0.7)])
def test_looking_ahead_changes_nothing(norm: Norm, eps: float) -> None:
    model, (x, labels) = digits_model(), digits_test()
    x, labels, ids = x[:40], labels[:40], torch.arange(40)
    one, eight = (
        Square(norm=norm, eps=eps, num_queries=250, lookahead=ahead).search(model, x, labels, KeyedNoise(0, ids))
        for ahead in (1, 8)
    )
    assert torch.equal(one.queries, eight.queries)
    torch.testing.assert_close(one.x_best, eight.x_best)


def test_windows_never_touch_the_last_row_and_column() -> None:
    x = torch.full((6, 1, 8, 8), 0.5)
    labels = torch.zeros(6, dtype=torch.long)

    def unbreakable(images: torch.Tensor) -> torch.Tensor:
        total = images.flatten(1).sum(dim=1)
        return torch.stack([1000.0 - total, torch.zeros_like(total)], dim=1)

    attack = Square(eps=0.1, num_queries=400)
    start = attack._first(x, KeyedNoise(0, torch.arange(6)))
    found = attack.search(unbreakable, x, labels, KeyedNoise(0, torch.arange(6))).x_best
    assert torch.equal(found[:, :, -1], start[:, :, -1])
    assert torch.equal(found[:, :, :, -1], start[:, :, :, -1])
    assert bool((found[:, :, :-1, :-1] == 0.6).all())
