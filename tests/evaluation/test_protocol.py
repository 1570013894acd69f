"""Names of attacks and protocols: what each means is pinned."""

import pytest

from probmargin import api as pm
from probmargin.attacks.apgd import APGD
from probmargin.attacks.fab import FAB
from probmargin.attacks.pgd import PGD
from probmargin.attacks.square import Square
from probmargin.core.errors import UsageError
from probmargin.evaluation.protocol import DESCRIPTIONS, PROTOCOLS, build_attack, make_plan
from probmargin.evaluation.subject import EvaluationRequest, settings_of

NAMES = "nat fgsm pgd-20 pgd-100 cw cw-100 apgd-ce apgd-t fab-t square aa aa-plus aa-rand".split()
EPS = 8 / 255


def pgd(**changes: object) -> PGD:
    pinned: dict[str, object] = {
        "norm": "Linf",
        "eps": EPS,
        "step_size": 0.003,
        "num_steps": 20,
        "loss": "ce",
        "start": "uniform_eps",
        "clamp_start": True,
    }
    return PGD(**(pinned | changes))  # type: ignore[arg-type]


def test_every_name_is_listed_with_its_meaning() -> None:
    printed = "\n".join(pm.catalogue("attacks"))
    for name in NAMES:
        assert f"  {name} " in printed
        assert DESCRIPTIONS[name] in printed


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pgd-20", pgd()),
        ("pgd-100", pgd(num_steps=100)),
        ("pgd-7", pgd(num_steps=7)),
        ("cw", pgd(loss="cw")),
        ("cw-100", pgd(loss="cw", num_steps=100)),
        ("fgsm", PGD(eps=EPS, step_size=EPS, num_steps=1, start="zero")),
        ("apgd-ce", APGD(eps=EPS, loss="ce", num_steps=100)),
        ("apgd-t", APGD(eps=EPS, loss="dlr_targeted", num_steps=100, num_targets=9)),
        ("fab-t", FAB(eps=EPS, num_steps=100, num_targets=9)),
        ("square", Square(eps=EPS, num_queries=5000)),
    ],
)
def test_a_single_attack_means_this(name: str, expected: object) -> None:
    plan = make_plan(name, "Linf", EPS)
    assert [stage.attack for stage in plan.stages] == [expected]
    assert plan.begins_with_all == isinstance(expected, PGD)
    assert build_attack(name, "Linf", EPS) == expected


@pytest.mark.parametrize(
    ("name", "stages", "restarts", "eot"),
    [
        ("aa", "apgd-ce apgd-t fab-t square", [1, 1, 1], 1),
        ("aa-plus", "apgd-ce apgd-dlr fab square apgd-t fab-t", [5, 5, 5, 1, 1], 1),
        ("aa-rand", "apgd-ce apgd-dlr", [1, 1], 20),
    ],
)
def test_an_ensemble_means_this(name: str, stages: str, restarts: list[int], eot: int) -> None:
    plan = make_plan(name, "L2", 0.5)
    assert [stage.name for stage in plan.stages] == stages.split()
    attacks = [stage.attack for stage in plan.stages]
    assert [attack.restarts for attack in attacks if isinstance(attack, APGD | FAB)] == restarts
    assert {attack.eot for attack in attacks if isinstance(attack, APGD)} == {eot}
    assert all(getattr(attack, "norm", None) == "L2" for attack in attacks)
    assert list(plan.meaning()["stages"]) == stages.split()


def test_restarts_differ_in_noise_alone() -> None:
    plan = make_plan("pgd-20x5", "Linf", EPS)
    assert [stage.round for stage in plan.stages] == [0, 1, 2, 3, 4]
    assert {stage.attack for stage in plan.stages} == {pgd()}
    assert plan.meaning()["restarts"] == 5
    assert make_plan("cw-30x2", "Linf", EPS).stages[1].attack == pgd(loss="cw", num_steps=30)


def test_protocols_are_pinned() -> None:
    standard, official = PROTOCOLS["standard"], PROTOCOLS["official-1000"]
    assert (standard.norm, standard.eps, standard.step_size, standard.aa_examples) == ("Linf", EPS, 0.003, None)
    assert (official.norm, official.eps, official.step_size, official.aa_examples) == ("Linf", 0.031, 0.003, 1000)


def test_the_standard_protocol_is_on_every_image() -> None:
    names = {
        count: settings_of(EvaluationRequest(num_examples=count), None, 360).protocol for count in (None, 360, 359)
    }
    assert names == {None: "standard", 360: "standard", 359: "custom"}


@pytest.mark.parametrize("name", ["pgd-0", "pgd20", "pgd-20x0", "aa-standard", "pgd-20x", "fab"])
def test_other_names_are_refused_unless_they_are_attacks(name: str) -> None:
    if name == "fab":
        assert make_plan(name, "Linf", EPS).stages[0].attack == FAB(eps=EPS, targeted=False, restarts=5)
        return
    with pytest.raises(UsageError, match="unknown attack"):
        make_plan(name, "Linf", EPS)


def test_an_ensemble_is_no_single_attack() -> None:
    with pytest.raises(UsageError, match="ensemble"):
        build_attack("aa", "Linf", EPS)
