"""Against the reference's own traces, with its random numbers in its order, and with ours over seeds."""

import pytest
import torch
from autoattack_helpers import (
    CONFIGS,
    ROUNDED,
    Reference,
    ReferenceNoise,
    Remembered,
    digits_model,
    digits_test,
    moved,
    off,
    reference,
    run_ensemble,
)

from probmargin.attacks._rows import Rows
from probmargin.attacks.apgd import APGD, Climb, start_point
from probmargin.attacks.balls import Norm
from probmargin.attacks.fab import FAB
from probmargin.attacks.square import Square
from probmargin.core.noise import Noise
from probmargin.evaluation.autoattack import build_attack

MODEL = digits_model()
IMAGES, LABELS = digits_test()
REFERENCE = {norm: reference(norm, eps) for norm, eps in CONFIGS}
INDEX = REFERENCE["Linf"].index
X, Y = IMAGES[INDEX], LABELS[INDEX]

both_norms = pytest.mark.parametrize(("norm", "eps"), CONFIGS)


def climb(attack: APGD, rows: Rows, noise: Noise, *, drop: bool = False) -> Climb:
    start = start_point(rows.x, attack.norm, attack.eps, attack.draw(rows.x, noise, 0, 0))
    return attack.climb(MODEL, rows, start, drop=drop)


def check_targets(norm: Norm, eps: float, ranks: list[int]) -> None:
    attack, expected = APGD(norm=norm, eps=eps, loss="dlr_targeted"), REFERENCE[norm]
    for rank in ranks:
        rows = Rows.of(X, Y, expected.targets.T[rank : rank + 1])
        found = climb(attack, rows, ReferenceNoise.seeded(len(X)))
        apart = off(found.loss_best, expected.values["apgd_t_loss_best"][:, rank])
        assert int((apart & ~expected.unsteady[:, rank]).sum()) == 0
        assert int((found.broken == expected.values["apgd_t_robust"][:, rank]).sum()) <= 1


def nearest_sizes(norm: Norm, eps: float, ranks: list[int], count: int = len(X)) -> tuple[torch.Tensor, torch.Tensor]:
    expected: Reference = REFERENCE[norm]
    rows = Rows.of(X[:count], Y[:count], expected.targets.T[ranks, :count])
    found = FAB(norm=norm, eps=eps).search(MODEL, rows, rows.x, drop=False)
    return found.size.view(len(ranks), -1).T, expected.values["fab_t_min_norm"][:count, ranks]


@both_norms
def test_apgd_ce_finds_the_same_best_losses(norm: Norm, eps: float) -> None:
    expected = REFERENCE[norm].values
    found = climb(APGD(norm=norm, eps=eps), Rows.of(X, Y, Y[None]), ReferenceNoise.seeded(len(X)))
    assert moved(found.loss_best, expected["apgd_ce_loss_best"]) <= ROUNDED
    assert int((found.broken == expected["apgd_ce_robust"]).sum()) <= 1
    apart = (found.x_best - expected["apgd_ce_x_best"]).abs().flatten(1).amax(dim=1)
    # Where the loss is flat, images differ whose losses are the same.
    assert int((apart > 1e-3).sum()) <= 2 * ROUNDED


@both_norms
def test_apgd_t_finds_the_same_best_losses_for_the_nearest_class(norm: Norm, eps: float) -> None:
    assert torch.equal(APGD(loss="dlr_targeted").targets(MODEL, X, Y).T, REFERENCE[norm].targets)
    check_targets(norm, eps, [0])


@pytest.mark.slow
@both_norms
def test_apgd_t_finds_the_same_best_losses_for_more_classes(norm: Norm, eps: float) -> None:
    check_targets(norm, eps, [1, 2, 3])


@both_norms
def test_fab_t_finds_the_same_smallest_norms_for_one_class(norm: Norm, eps: float) -> None:
    sizes, expected = nearest_sizes(norm, eps, [1], count=120)
    assert moved(sizes, expected) <= 1


@pytest.mark.slow
@both_norms
def test_fab_t_finds_the_same_smallest_norms_for_all_classes(norm: Norm, eps: float) -> None:
    sizes, expected = nearest_sizes(norm, eps, list(range(9)))
    assert moved(sizes, expected) <= 5
    assert int(((sizes.amin(dim=1) <= eps) != (expected.amin(dim=1) <= eps)).sum()) <= 1


@both_norms
def test_square_spends_the_same_queries_at_first(norm: Norm, eps: float) -> None:
    attack = Square(norm=norm, eps=eps, num_queries=200, lookahead=8 if norm == "Linf" else 1)
    found = attack.search(MODEL, X, Y, ReferenceNoise.seeded(len(X)))
    assert torch.equal(found.queries, REFERENCE[norm].values["square_n_queries"].clamp(max=201).long())


@pytest.mark.slow
@both_norms
def test_square_spends_the_same_queries(norm: Norm, eps: float) -> None:
    attack = Square(norm=norm, eps=eps, lookahead=8 if norm == "Linf" else 1)
    found = attack.search(MODEL, X, Y, ReferenceNoise.seeded(len(X)))
    assert torch.equal(found.queries, REFERENCE[norm].values["square_n_queries"].long())
    expected = REFERENCE[norm].values["square_final_margin"]
    assert torch.equal(found.margin > 0, expected > 0)


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "eps", "counts"), [("Linf", 0.16, [209, 203]), ("L2", 0.7, [171, 159])])
def test_apgd_in_the_reference_order_breaks_as_many(norm: Norm, eps: float, counts: list[int]) -> None:
    ce = climb(APGD(norm=norm, eps=eps), Rows.of(X, Y, Y[None]), ReferenceNoise.seeded(len(X)), drop=True)
    left = (~ce.broken).nonzero()[:, 0]
    robust = [len(left)]
    noise: Noise = ReferenceNoise.seeded(len(left))
    targeted = APGD(norm=norm, eps=eps, loss="dlr_targeted")
    for targets in REFERENCE[norm].targets.T:
        rows = Rows.of(X[left], Y[left], targets[None, left])
        found = climb(targeted, rows, noise.take(left), drop=True)
        left = left[~found.broken]
    robust.append(len(left))
    assert [abs(ours - theirs) <= 1 for ours, theirs in zip(robust, counts, strict=True)] == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "eps", "mean", "fab_alone"), [("Linf", 0.16, 203.2, 209), ("L2", 0.7, 159.2, 162)])
def test_own_noise_gives_the_same_robust_counts_over_seeds(norm: Norm, eps: float, mean: float, fab_alone: int) -> None:
    fab = run_ensemble(MODEL, IMAGES, LABELS, norm=norm, eps=eps, attacks="fab-t")
    assert abs(int(fab.robust["fab-t"].sum()) - fab_alone) <= 1
    counts = []
    for seed in range(5):
        attacks = {name: build_attack(name, norm, eps) for name in ("apgd-ce", "apgd-t", "square")}
        ensemble = {
            "apgd-ce": attacks["apgd-ce"],
            "apgd-t": attacks["apgd-t"],
            "fab-t": Remembered(images=fab.x_adv),
            "square": attacks["square"],
        }
        result = run_ensemble(MODEL, IMAGES, LABELS, norm=norm, eps=eps, attacks=ensemble, seed=seed)
        counts.append(int(result.robust["square"].sum()))
    assert abs(sum(counts) / 5 - mean) <= 1.0, counts
    assert all(abs(count - mean) <= 3 for count in counts), counts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "norm", "eps", "mean", "off"),
    [
        ("apgd-t", "Linf", 0.16, 204.6, 1.5),
        ("apgd-t", "L2", 0.7, 159.4, 1.5),
        ("square", "Linf", 0.16, 235.0, 3.0),
        ("square", "L2", 0.7, 250.0, 3.0),
    ],
)
def test_an_attack_alone_leaves_as_many_over_seeds(name: str, norm: Norm, eps: float, mean: float, off: float) -> None:
    counts = []
    for seed in range(5):
        result = run_ensemble(MODEL, IMAGES, LABELS, norm=norm, eps=eps, attacks=name, seed=seed)
        counts.append(int(result.robust[name].sum()))
    assert abs(sum(counts) / 5 - mean) <= off, counts
