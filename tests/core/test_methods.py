"""Recipes: presets, resolution, settings by path, round trips."""

import json
from pathlib import Path
from typing import Any

import pytest

from probmargin.attacks.pgd import PGD
from probmargin.core.errors import UsageError
from probmargin.methods.method import Method
from probmargin.methods.plain import from_plain, parse_assignments, with_settings
from probmargin.methods.resolve import METHODS, named, read_recipe, resolve, with_epochs
from probmargin.objectives.mart import Mart
from probmargin.objectives.trades import Trades
from probmargin.reporting.folder import final_attack

ALL = [(name, preset) for name, presets in METHODS.items() for preset in presets]
NAMES = (
    "standard at trades mart fat fat-trades fat-mart awp trades-awp gairat gair-trades gair-mart "
    "mail-at mail-trades mail-mart mail-awp"
).split()


def test_the_names_are_those_of_the_contract() -> None:
    assert list(METHODS) == NAMES
    for name in ("mail-at", "mail-trades", "mail-mart"):
        assert list(METHODS[name]) == ["paper", "official", "official-2021"]
    for name in ("gair-mart", "mail-awp"):
        assert list(METHODS[name]) == ["paper"]
    assert all("official" in METHODS[name] for name in NAMES if name not in ("gair-mart", "mail-awp"))


@pytest.mark.parametrize(("name", "preset"), ALL)
def test_a_recipe_survives_json(name: str, preset: str) -> None:
    method = named(name, preset)
    again = from_plain(json.loads(json.dumps(method.plain(), allow_nan=False)))
    assert again == method
    assert again.hash() == method.hash()
    assert (method.method, method.preset) == (name, preset)


def test_hashes_tell_recipes_apart() -> None:
    hashes = {named(name, preset).hash() for name, preset in ALL}
    assert len(hashes) == len(ALL)
    assert with_settings(named("at"), {"attack.eps": "8/255"}).hash() == named("at").hash()


def test_the_contracts_example_recipe() -> None:
    """The recipe printed in the architecture, field by field."""
    plain = resolve("mail-trades").plain()
    expected: dict[str, Any] = {
        "method": "mail-trades",
        "preset": "paper",
        "epochs": 100,
        "batch_size": 128,
        "lr": 0.01,
        "lr_milestones": [74, 89],
        "lr_decay": 0.1,
        "momentum": 0.9,
        "weight_decay": 0.0035,
        "burn_in_epochs": 74,
        "margin": {"name": "pm_adv"},
        "weight": {"name": "sigmoid", "slope": 2.0, "bias": 0.0},
        "awp": None,
        "ema": None,
        "phases": [],
    }
    for key, value in expected.items():
        assert plain[key] == value, key
    attack = {"name": "pgd", "loss": "kl", "norm": "Linf", "eps": 8 / 255, "step_size": 2 / 255, "num_steps": 10}
    attack |= {"start": "normal_1e-3", "clamp_start": False, "model_mode": "eval"}
    assert attack.items() <= plain["attack"].items()
    assert plain["normalizer"]["name"] == "mean_one"
    assert {"name": "trades", "beta": 5.0, "kl_direction": "nat_adv"}.items() <= plain["objective"].items()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "standard"])
def test_paper_recipes_share_all_but_the_method(name: str) -> None:
    method = named(name)
    shared = ("epochs", "batch_size", "lr", "lr_milestones", "weight_decay", "burn_in_epochs", "augment")
    for field in shared:
        assert getattr(method, field) == getattr(named("at"), field), field
    attack = method.attack
    assert attack is not None
    assert getattr(attack, "loss") == ("kl" if "trades" in name else "ce")  # noqa: B009
    for field in ("eps", "step_size", "num_steps", "start", "clamp_start", "model_mode"):
        assert getattr(attack, field) == getattr(PGD(), field), field


BETAS = {
    "trades": (6, 5),
    "mart": (5, 5),
    "mail-trades": (5, 5),
    "mail-mart": (6, 5),
    "gair-trades": (5, 6),
    "fat-trades": (6, 6),
    "fat-mart": (6, 6),
    "trades-awp": (6, 6),
    "gair-mart": (6, None),
}


@pytest.mark.parametrize("name", BETAS)
def test_betas(name: str) -> None:
    for preset, beta in zip(("paper", "official"), BETAS[name], strict=True):
        if beta is not None:
            objective = named(name, preset).objective
            assert isinstance(objective, Trades | Mart)
            assert objective.beta == beta


def test_recipes_agree_up_to_the_end_of_the_burn_in() -> None:
    """AT, GAIRAT and MAIL-AT are one run until then, and so are TRADES at beta 5, GAIR-TRADES and MAIL-TRADES."""
    beta5 = with_settings(named("trades"), {"objective.beta": 5})
    groups = [
        [named(name) for name in ("at", "gairat", "mail-at")],
        [beta5, named("gair-trades"), named("mail-trades")],
    ]
    for group in groups:
        for epoch in (0, 73):
            resolved = [method.at(epoch).plain() | {"method": ""} for method in group]
            assert all(plain == resolved[0] for plain in resolved)
        assert len({json.dumps(m.at(74).plain() | {"method": ""}) for m in group}) == 3


def test_official_2021_jumps_from_70_to_75_with_the_ce_attack() -> None:
    method = named("mail-trades", "official-2021")
    plan = method.epoch_plan()
    assert plan == [*range(70), *range(75, 101)]
    assert [method.fresh_momentum_at(epoch) for epoch in (69, 75, 76)] == [False, True, False]
    losses = [getattr(method.at(epoch).attack, "loss") for epoch in (69, 75, 100)]  # noqa: B009
    assert losses == ["kl", "ce", "ce"]
    assert [method.lr_at(epoch) for epoch in (69, 75, 90, 100)] == pytest.approx([1e-2, 1e-3, 1e-4, 1e-5])
    assert method.at(75).normalizer.factor == 3.0  # type: ignore[attr-defined]


def test_wide_networks_bring_their_own_rate() -> None:
    wide, narrow = resolve("mart", model="wrn-34-10"), resolve("mart", model="resnet18")
    assert (wide.lr, wide.weight_decay) == (0.1, 7e-4)
    assert (narrow.lr, narrow.weight_decay) == (0.01, 3.5e-3)
    assert isinstance(wide.objective, Mart)
    assert wide.objective.beta == 6
    assert resolve("mart", preset="official", model="wrn-34-10").lr == 0.01


@pytest.mark.parametrize(("name", "preset"), ALL)
def test_digits_bring_their_own_scale(name: str, preset: str) -> None:
    method = resolve(name, preset=preset, data="digits")
    assert method.epochs == 30
    for attack in (method.attack, method.second_attack):
        if attack is not None:
            assert (attack.eps, attack.step_size, attack.num_steps) == (0.15, 0.03, 10)  # type: ignore[attr-defined]
    assert not method.augment.flip
    assert method.burn_in_epochs < 30


@pytest.mark.parametrize(("name", "preset"), ALL)
@pytest.mark.parametrize("epochs", [1, 2, 7, 33, 400])
def test_any_number_of_epochs_keeps_the_schedule_in_order(name: str, preset: str, epochs: int) -> None:
    method = with_epochs(named(name, preset), epochs)
    assert list(method.lr_milestones) == sorted(set(method.lr_milestones))
    assert 0 <= method.burn_in_epochs <= epochs - 1
    plan = method.epoch_plan()
    assert plan == sorted(set(plan))
    assert plan[-1] == epochs - 1


def test_epochs_scale_and_settings_win() -> None:
    method = resolve("mail-at", epochs=50, settings={"lr_milestones": "10,20", "burn_in_epochs": "first_lr_drop"})
    assert method.lr_milestones == (10, 20)
    assert method.burn_in_epochs == 10
    assert resolve("mail-at", epochs=50).lr_milestones == (37, 45)
    assert resolve("mail-at", settings={"epochs": "50"}).lr_milestones == (74, 89)


def test_settings_by_path() -> None:
    changes = parse_assignments(
        [
            "attack.eps=4/255",
            "weight=step",
            "weight.alpha=0.1",
            "margin=mm_adv",
            "awp.gamma=0.02",
            "ema.decay=0.9",
            "normalizer.name=fixed",
            "normalizer.factor=3",
            "augment.flip=false",
            "lr_decay=0.1,0.5",
        ]
    )
    plain = with_settings(named("mail-at"), changes).plain()
    assert plain["attack"]["eps"] == pytest.approx(4 / 255)
    assert plain["weight"] == {"name": "step", "alpha": 0.1, "bias": -0.5}
    assert plain["margin"] == {"name": "mm_adv"}
    assert plain["awp"] == {"gamma": 0.02, "warmup_epochs": 0}
    assert plain["ema"] == {"decay": 0.9}
    assert plain["normalizer"] == {"name": "fixed", "factor": 3.0}
    assert plain["augment"]["flip"] is False
    assert plain["lr_decay"] == [0.1, 0.5]
    assert with_settings(with_settings(named("awp"), {"awp": "none"}), {}).awp is None


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("attack.eps=8", "(0, 1]"),
        ("attack.eps=-1/255", "above 0, not -0.00392"),
        ("attack.eps=abc", "not a number"),
        ("attack.eps=__import__('os')", "not a number"),
        ("attack.epsilon=0.1", "did you mean eps"),
        ("weight=sigmoyd", "did you mean sigmoid"),
        ("weight.slope=-2", "0 or more"),
        ("margin=pm", "pm_adv"),
        ("epochs=0", "1 or more"),
        ("epochs=2.5", "whole number"),
        ("lrr=0.1", "did you mean lr"),
        ("attack.loss=mse", "known: ce, cw, kl"),
        ("augment.flip=maybe", "true or false"),
        ("lr_milestones=89,74", "must rise"),
        ("objective.beta=-1", "0 or more"),
        ("attack.step_size=0", "above 0"),
        ("attack=none", "needs an attack"),
        ("passes=nat", "must contain adv"),
        ("nonsense", "PATH=VALUE"),
        ("burn_in_epochs=-5", "0 or more"),
        ("method=at", "choose another with --method"),
        ("preset=official", "choose another with --preset"),
        ("lr_milestones=-1,5", "0 or more"),
        ("lr_decay=-1", "above 0"),
        ("lr=inf", "finite"),
        ("awp.warmup_epochs=-3", "0 or more"),
        ("phases=x", "JSON list"),
        ("phases=3", "JSON list"),
        ('phases=[{"from_epoch": 1, "start_from_epoch": 2}]', "must be from 0 to its from_epoch 1, not 2"),
        ('phases=[{"from_epoch": -1}]', "must be from 0 to its from_epoch -1, not -1"),
        (
            'phases=[{"from_epoch": 100, "start_from_epoch": 99}]',
            "goes on from the state after 99 epochs with epoch 100, and epochs=100 ends before; use --epochs 100, "
            "which scales phases too, or epochs=101 or more",
        ),
        (
            'phases=[{"from_epoch": 9, "start_from_epoch": 5}, {"from_epoch": 12, "start_from_epoch": 7}]',
            "the state after 7 epochs, which another phase skips; choose a start_from_epoch that is trained",
        ),
    ],
)
def test_bad_settings_name_the_fix(setting: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        with_settings(named("mail-trades"), parse_assignments([setting]))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_plan_goes_past_the_end() -> None:
    """The first release's phase, at the length that digits give it, with another number of epochs set as it is."""
    release = resolve("mail-trades", preset="official-2021", data="digits")
    (phase,) = release.phases
    assert (phase.start_from_epoch, phase.from_epoch) == (21, 22)
    for epochs in range(1, 40):
        if epochs == 22:
            with pytest.raises(UsageError, match="use --epochs 22, which scales phases too, or epochs=23 or more"):
                with_settings(release, {"epochs": "22"})
        else:
            assert with_settings(release, {"epochs": str(epochs)}).epoch_plan()[-1] == epochs - 1
        assert with_epochs(release, epochs).epoch_plan()[-1] == epochs - 1


def test_a_component_without_settings_says_so() -> None:
    recipe = named("mail-trades")
    margin = recipe.plain()["margin"]["name"]
    for settings in ({"margin.foo": "1"}, {"margin": {"name": margin, "foo": 1}}):
        with pytest.raises(UsageError, match=rf"^margin {margin} takes no settings: leave out margin\.foo$"):
            with_settings(recipe, settings)


def test_a_margin_of_steps_needs_an_attack_that_records_them() -> None:
    with pytest.raises(UsageError, match="the margin lps needs an attack that records its steps"):
        with_settings(named("gairat"), {"attack": "apgd"})


def test_burn_in_follows_the_first_drop_unless_it_is_given() -> None:
    assert with_settings(named("mail-at"), {"lr_milestones": "5,10"}).burn_in_epochs == 5
    both = {"lr_milestones": "5,10", "burn_in_epochs": "7"}
    assert with_settings(named("mail-at"), both).burn_in_epochs == 7
    free = with_settings(named("mail-at"), {"burn_in_epochs": "50"})
    assert with_settings(free, {"lr_milestones": "5,10"}).burn_in_epochs == 50
    without = with_settings(named("mail-at"), {"lr_milestones": "5"})
    with pytest.raises(UsageError, match="needs lr_milestones"):
        from_plain({**without.plain(), "lr_milestones": [], "burn_in_epochs": "first_lr_drop"})


def test_burn_in_of_a_mixture_is_plain_trades() -> None:
    method = named("gair-trades", "official")
    first, last = method.at(0), method.at(method.epochs - 1)
    assert first.second_attack is None
    assert "second" not in first.passes
    assert first.objective.weighted_part == "kl"  # type: ignore[attr-defined]
    assert last.second_attack is not None
    assert "second" in last.passes


@pytest.mark.parametrize(
    ("name", "preset", "end"), [("mail-at", "paper", 74), ("mail-trades", "official-2021", 70), ("at", "paper", 74)]
)
def test_burn_in_ends_with_the_last_state_without_weights(name: str, preset: str, end: int) -> None:
    assert named(name, preset).burn_in_end == end


def test_unknown_names_offer_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean mail-trades"):
        named("mail-trade")
    with pytest.raises(UsageError, match="it has paper"):
        named("mail-awp", "official")


def test_a_recipe_file_is_read_back_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(named("gairat").plain()), encoding="utf-8")
    assert read_recipe(path) == named("gairat")
    path.write_text("{", encoding="utf-8")
    with pytest.raises(UsageError, match="not a recipe in JSON"):
        read_recipe(path)
    path.write_text(json.dumps(named("gairat").plain() | {"lrr": 1}), encoding="utf-8")
    with pytest.raises(UsageError, match="did you mean lr"):
        read_recipe(path)
    with pytest.raises(UsageError, match="no recipe file"):
        read_recipe(tmp_path / "none.json")


@pytest.mark.parametrize("schedule", ["linear", "piecewise"])
def test_gairats_lambda_schedules_move_the_weight(schedule: str) -> None:
    method = with_settings(named("gairat"), {"weight.lam_max": 4, "weight.schedule": schedule})
    lams = [getattr(method.at(epoch).weight, "lam") for epoch in (74, 99)]  # noqa: B009
    assert lams == pytest.approx({"linear": [4 - 0.75 * 5, -1.0], "piecewise": [-3.0, -3.0]}[schedule])


def test_a_linear_schedule_from_infinity_is_refused() -> None:
    with pytest.raises(UsageError, match="finite start"):
        with_settings(named("gairat"), {"weight.schedule": "linear"})


def test_phases_apply_by_their_epoch_in_whatever_order_they_are_listed() -> None:
    early, late = ({"from_epoch": epoch, "set": {"attack.eps": eps}} for epoch, eps in ((2, 0.1), (4, 0.2)))
    ordered, other = (resolve("at", epochs=6, settings={"phases": both}) for both in ([early, late], [late, early]))
    for epoch in range(6):
        assert other.at(epoch) == ordered.at(epoch)
    assert getattr(other.final_attack, "eps", None) == final_attack(other.plain())["eps"] == 0.2
    assert [phase.from_epoch for phase in other.phases] == [4, 2]
    assert other.hash() != ordered.hash(), "a recipe keeps the hash it was written with"
    same = [{"from_epoch": 2, "set": {"attack.eps": eps}} for eps in (0.1, 0.2)]
    assert getattr(resolve("at", epochs=6, settings={"phases": same}).at(2).attack, "eps", None) == 0.2


def test_perturbed_weights_come_with_the_first_epoch_after_their_warm_up() -> None:
    method = resolve("awp", settings={"awp.warmup_epochs": 3})
    assert [method.at(epoch).awp is None for epoch in (0, 2, 3, 4)] == [True, True, False, False]
    shorter = with_epochs(resolve("awp", settings={"awp.warmup_epochs": 10}), 50).awp
    assert shorter is not None
    assert shorter.warmup_epochs == 5


def test_a_weight_of_steps_takes_the_number_of_its_attacks_steps() -> None:
    method = resolve("gairat", settings={"attack.num_steps": 6})
    assert getattr(method.at(method.epochs - 1).weight, "num_steps", None) == 6


def test_methods_are_frozen() -> None:
    method: Method = named("at")
    with pytest.raises(AttributeError):
        method.lr = 1.0  # type: ignore[misc]


def test_a_preset_beside_a_method_is_refused() -> None:
    """It would change nothing, since a Method is resolved already."""
    with pytest.raises(UsageError, match="a Method is a recipe already, of preset paper; leave preset='official' out"):
        resolve(named("at"), preset="official")
    assert resolve(named("mail-at", "official"), preset="official").preset == "official"
    assert resolve(named("mail-at", "official")).preset == "official"


def test_another_objective_brings_its_own_passes() -> None:
    for settings in ({"objective": "at"}, {"objective.name": "at"}):
        assert resolve("mail-trades", settings=settings).passes == ("adv",)
    assert resolve("mail-at", settings={"objective": "trades"}).passes == ("nat", "adv")
    assert resolve("at", settings={"objective": "trades", "passes": "adv,nat"}).passes == ("adv", "nat")
    for same in ({"objective.beta": 2}, {"objective": "trades"}):
        assert resolve("trades-awp", preset="official", settings=same).passes == ("adv", "nat", "nat")
    later = resolve("mail-at", settings={"phases": [{"from_epoch": 50, "set": {"objective": "trades"}}]})
    assert [later.at(epoch).passes for epoch in (49, 50)] == [("adv",), ("nat", "adv")]


def test_a_data_set_brings_no_batch_of_its_own() -> None:
    """GAIR-RST's script takes batches of 256, whatever the data."""
    for data in ("cifar10", "digits"):
        assert resolve("gair-trades", preset="official", data=data).batch_size == 256
        assert resolve("at", data=data).batch_size == 128
