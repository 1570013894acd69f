"""The numbers of every preset of every method, written down a second time and compared field by field."""

from typing import Any

import pytest

from probmargin.methods.resolve import METHODS, named, resolve

Row = dict[str, Any]

# Parts of rows: literal values by path.
PAPER: Row = {
    "epochs": 100,
    "batch_size": 128,
    "lr": 0.01,
    "lr_milestones": [74, 89],
    "lr_decay": 0.1,
    "lr_schedule": "step",
    "lr_per": "epoch",
    "optimizer": "sgd",
    "momentum": 0.9,
    "nesterov": False,
    "weight_decay": 0.0035,
    "burn_in_epochs": 74,
    "reduction": "mean",
    "augment.pad": 4,
    "augment.padding": "zero",
    "augment.flip": True,
    "attack": None,
    "second_attack": None,
    "awp": None,
    "ema": None,
    "phases": [],
    "margin.name": "none",
    "weight.name": "uniform",
    "normalizer.name": "mean_one",
    "normalizer.scope": "global",
}
MAIL_CODE = PAPER | {"epochs": 120, "lr_milestones": [75, 90, 100], "burn_in_epochs": 76}
OTHERS_CODE = {key: value for key, value in PAPER.items() if key != "burn_in_epochs"}

PGD_PAPER: Row = {
    "attack.name": "pgd",
    "attack.norm": "Linf",
    "attack.loss": "ce",
    "attack.eps": 8 / 255,
    "attack.step_size": 2 / 255,
    "attack.num_steps": 10,
    "attack.start": "normal_1e-3",
    "attack.clamp_start": False,
    "attack.model_mode": "eval",
    "attack.kl_direction": "nat_adv",
}
PGD_CODE = PGD_PAPER | {"attack.eps": 0.031, "attack.step_size": 0.007}
KL: Row = {"attack.loss": "kl"}
UNIFORM_START: Row = {"attack.start": "uniform_eps", "attack.clamp_start": True}
CLAMPED: Row = {"attack.clamp_start": True}
EARLY_STOP: Row = {"attack.name": "early_stop_pgd", "attack.tau": 0, "attack.step_noise": 0.0}
FAT_NOISE: Row = {"attack.step_noise": 0.001}

STANDARD: Row = {"objective.name": "standard", "passes": ["nat"]}
AT: Row = {"objective.name": "at", "passes": ["adv"]}


def trades(beta: float) -> Row:
    parts = {"objective.name": "trades", "objective.weighted_part": "kl", "objective.kl_direction": "nat_adv"}
    return parts | {"objective.beta": beta, "passes": ["nat", "adv"]}


def mart(beta: float) -> Row:
    parts = {"objective.name": "mart", "objective.kl_direction": "nat_adv"}
    return parts | {"objective.beta": beta, "passes": ["nat", "adv"]}


def mail(slope: float, bias: float) -> Row:
    return {"margin.name": "pm_adv", "weight.name": "sigmoid", "weight.slope": slope, "weight.bias": bias}


def gair(lam: float, half: str) -> Row:
    weight = {"weight.name": "gairat_tanh", "weight.lam": lam, "weight.half": half}
    return weight | {"weight.schedule": "fixed", "weight.lam_max": "inf"} | LPS


def awp(gamma: float, warmup: int) -> Row:
    return {"awp.gamma": gamma, "awp.warmup_epochs": warmup}


def phase(epoch: int, settings: Row, start: int | None = None, fresh: bool = False) -> Row:
    return {"from_epoch": epoch, "start_from_epoch": start, "fresh_momentum": fresh, "set": settings}


def tau(steps: dict[int, int]) -> Row:
    """Tau from each epoch on."""
    return {"phases": [phase(epoch, {"attack.tau": value}) for epoch, value in steps.items()]}


LPS: Row = {"margin.name": "lps", "margin.mode": "count_correct"}
TIMES_3: Row = {"normalizer.name": "fixed", "normalizer.factor": 3.0}
FIRST_RELEASE = TIMES_3 | {
    "epochs": 101,
    "burn_in_epochs": 75,
    "phases": [phase(75, {"attack.loss": "ce"}, start=70, fresh=True)],
}
FAT_TAU, FAT_TRADES_TAU = tau({50: 1, 90: 2}), tau({30: 1, 50: 2, 70: 3})
FAT_MART_TAU = tau({20: 1, 40: 2, 60: 3, 80: 4})
FAT_CODE = OTHERS_CODE | PGD_CODE | EARLY_STOP | {"lr": 0.1, "weight_decay": 2e-4}
AWP_CODE = OTHERS_CODE | PGD_PAPER | {"lr": 0.1, "weight_decay": 5e-4, "epochs": 200}
SECOND_ATTACK: Row = {
    "second_attack.name": "pgd",
    "second_attack.norm": "Linf",
    "second_attack.loss": "cw",
    "second_attack.eps": 0.031,
    "second_attack.step_size": 0.007,
    "second_attack.num_steps": 10,
    "second_attack.model_mode": "eval",
}
GAIR_RST = SECOND_ATTACK | {
    "epochs": 200,
    "batch_size": 256,
    "lr": 0.1,
    "lr_milestones": [],
    "lr_schedule": "cosine",
    "nesterov": True,
    "weight_decay": 5e-4,
    "weight.name": "gairat_tanh",
    "weight.lam": 3.0,
    "weight.half": "int",
    "normalizer.name": "fixed",
    "normalizer.factor": 1.0,
    "objective.weighted_part": "rst_mixture",
    "passes": ["adv", "second", "nat"],
}

TABLE: dict[tuple[str, str], Row] = {
    ("standard", "paper"): PAPER | STANDARD,
    ("at", "paper"): PAPER | PGD_PAPER | AT,
    ("trades", "paper"): PAPER | PGD_PAPER | KL | trades(6.0),
    ("mart", "paper"): PAPER | PGD_PAPER | mart(5.0),
    ("fat", "paper"): PAPER | PGD_PAPER | EARLY_STOP | FAT_NOISE | AT | FAT_TAU,
    ("fat-trades", "paper"): PAPER | PGD_PAPER | EARLY_STOP | KL | trades(6.0) | FAT_TRADES_TAU,
    ("fat-mart", "paper"): PAPER | PGD_PAPER | EARLY_STOP | mart(6.0) | FAT_MART_TAU,
    ("awp", "paper"): PAPER | PGD_PAPER | AT | awp(0.01, 0),
    ("trades-awp", "paper"): PAPER | PGD_PAPER | KL | trades(6.0) | awp(0.005, 9),
    ("gairat", "paper"): PAPER | PGD_PAPER | AT | gair(-1.0, "real"),
    ("gair-trades", "paper"): PAPER | PGD_PAPER | KL | trades(5.0) | gair(-1.0, "real"),
    ("gair-mart", "paper"): PAPER | PGD_PAPER | mart(6.0) | gair(-1.0, "real"),
    ("mail-at", "paper"): PAPER | PGD_PAPER | AT | mail(10.0, -0.5),
    ("mail-trades", "paper"): PAPER | PGD_PAPER | KL | trades(5.0) | mail(2.0, 0.0),
    ("mail-mart", "paper"): PAPER | PGD_PAPER | mart(6.0) | mail(2.0, 0.0),
    ("mail-awp", "paper"): PAPER | PGD_PAPER | AT | mail(10.0, -0.5) | awp(0.01, 0),
    ("standard", "official"): MAIL_CODE | STANDARD,
    ("at", "official"): MAIL_CODE | PGD_CODE | AT,
    ("trades", "official"): MAIL_CODE | PGD_CODE | KL | trades(5.0),
    ("mart", "official"): MAIL_CODE | PGD_CODE | mart(5.0),
    ("mail-at", "official"): MAIL_CODE | PGD_CODE | AT | mail(10.0, -0.5) | TIMES_3,
    ("mail-trades", "official"): MAIL_CODE | PGD_CODE | KL | trades(5.0) | mail(2.0, 0.0) | TIMES_3,
    ("mail-mart", "official"): MAIL_CODE | PGD_CODE | mart(5.0) | mail(2.0, 0.0) | TIMES_3,
    ("mail-at", "official-2021"): MAIL_CODE | PGD_CODE | AT | mail(10.0, -0.5) | FIRST_RELEASE,
    ("mail-trades", "official-2021"): MAIL_CODE | PGD_CODE | KL | trades(5.0) | mail(2.0, 0.0) | FIRST_RELEASE,
    ("mail-mart", "official-2021"): MAIL_CODE | PGD_CODE | mart(5.0) | mail(2.0, 0.0) | FIRST_RELEASE,
    ("fat", "official"): FAT_CODE
    | (UNIFORM_START | FAT_NOISE | AT | FAT_TAU)
    | {"epochs": 120, "lr_milestones": [59, 89, 109], "lr_decay": [0.1, 0.1, 0.5]},
    ("fat-trades", "official"): FAT_CODE
    | (CLAMPED | KL | trades(6.0) | FAT_TRADES_TAU)
    | {"epochs": 85, "lr_milestones": [74]},
    ("fat-mart", "official"): FAT_CODE
    | (CLAMPED | mart(6.0) | FAT_MART_TAU)
    | {"epochs": 90, "lr_milestones": [59, 89], "passes": ["adv", "nat"]},
    ("awp", "official"): AWP_CODE
    | (UNIFORM_START | AT | awp(0.01, 0))
    | {"lr_milestones": [100, 150], "lr_per": "iteration"}
    | {"attack.model_mode": "train", "augment.padding": "reflect"},
    ("trades-awp", "official"): AWP_CODE
    | (KL | trades(6.0) | awp(0.005, 9))
    | {"lr_milestones": [99, 149], "passes": ["adv", "nat", "nat"]},
    ("gairat", "official"): OTHERS_CODE
    | (PGD_CODE | UNIFORM_START | AT | gair(-1.0, "int"))
    | {"epochs": 100, "lr": 0.1, "lr_milestones": [29, 59], "weight_decay": 2e-4, "burn_in_epochs": 29},
    ("gair-trades", "official"): OTHERS_CODE | PGD_CODE | KL | trades(6.0) | LPS | GAIR_RST,
}

# What no source gives, or what does nothing there.
UNSPECIFIED = {"method", "preset", "weight.num_steps"}
LEFT_OUT: dict[tuple[str, str], set[str]] = {
    ("fat-mart", "paper"): {"passes"},
    ("fat", "official"): {"burn_in_epochs"},
    ("fat-trades", "official"): {"burn_in_epochs"},
    ("fat-mart", "official"): {"burn_in_epochs"},
    ("awp", "official"): {"burn_in_epochs"},
    ("trades-awp", "official"): {"burn_in_epochs"},
    ("gair-trades", "official"): {
        "burn_in_epochs",
        "phases",
        "weight.schedule",
        "weight.lam_max",
        *("lr_decay", "lr_per"),
        "second_attack.start",
        "second_attack.clamp_start",
        "second_attack.kl_direction",
    },
}


def flat(plain: Row) -> Row:
    """Values by path."""
    values: Row = {}
    for key, value in plain.items():
        values |= {f"{key}.{name}": part for name, part in value.items()} if isinstance(value, dict) else {key: value}
    return values


def expected(key: tuple[str, str]) -> Row:
    """A row without what it leaves out, and without a `None` or a scope that a later part has replaced."""
    row = {path: value for path, value in TABLE[key].items() if path not in LEFT_OUT.get(key, set())}
    heads = {path.partition(".")[0] for path in row if "." in path}
    if "normalizer.factor" in row:
        del row["normalizer.scope"]
    return {path: value for path, value in row.items() if path not in heads}


def test_every_preset_has_its_row() -> None:
    assert set(TABLE) == {(name, preset) for name, presets in METHODS.items() for preset in presets}


@pytest.mark.parametrize("key", TABLE, ids=" ".join)
def test_a_preset_has_the_numbers_of_its_source(key: tuple[str, str]) -> None:
    recipe = flat(named(*key).plain())
    for path in LEFT_OUT.get(key, set()) | UNSPECIFIED:
        recipe.pop(path, None)
    assert recipe == expected(key)


LR_FROM: dict[str, dict[tuple[str, str], dict[int, float]]] = {
    "one recipe for all": {(name, "paper"): {0: 1e-2, 74: 1e-3, 89: 1e-4} for name in METHODS},
    "MAIL's script": {
        (name, "official"): {0: 1e-2, 75: 1e-3, 90: 1e-4, 100: 1e-5}
        for name in ("standard", "at", "trades", "mart", "mail-at", "mail-trades", "mail-mart")
    },
    "MAIL's first release": {
        (name, "official-2021"): {0: 1e-2, 75: 1e-3, 90: 1e-4, 100: 1e-5}
        for name in ("mail-at", "mail-trades", "mail-mart")
    },
    "their own": {
        ("fat", "official"): {0: 0.1, 59: 0.01, 89: 0.001, 109: 5e-4},
        ("fat-trades", "official"): {0: 0.1, 74: 0.01},
        ("fat-mart", "official"): {0: 0.1, 59: 0.01, 89: 0.001},
        ("gairat", "official"): {0: 0.1, 29: 0.01, 59: 0.001},
        ("trades-awp", "official"): {0: 0.1, 99: 0.01, 149: 0.001},
    },
}


@pytest.mark.parametrize("group", LR_FROM)
def test_the_rate_changes_at_these_epochs_and_no_others(group: str) -> None:
    for key, rates in LR_FROM[group].items():
        method = named(*key)
        wanted, now = [], 0.0
        for epoch in range(method.epochs):
            now = rates.get(epoch, now)
            wanted.append(now)
        assert [method.lr_at(epoch) for epoch in range(method.epochs)] == pytest.approx(wanted), key


def test_awps_rate_drops_with_the_last_batch_before_the_milestone() -> None:
    method = named("awp", "official")
    times = [(0, 0), (99, 389), (99, 390), (149, 389), (149, 390), (199, 390)]
    rates = [method.lr_at(epoch, batch, 391) for epoch, batch in times]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_gair_rsts_rate_is_a_cosine() -> None:
    method = named("gair-trades", "official")
    assert [method.lr_at(epoch) for epoch in (0, 100)] == pytest.approx([0.1, 0.05])


@pytest.mark.parametrize("key", TABLE, ids=" ".join)
def test_digits_scale_every_recipe(key: tuple[str, str]) -> None:
    name, preset = key
    recipe = flat(resolve(name, preset=preset, data="digits", model="small-cnn").plain())
    wanted: Row = {"epochs": 30, "lr": 0.1, "augment.pad": 0, "augment.flip": False}
    if name != "standard":
        wanted |= {"attack.eps": 0.15, "attack.step_size": 0.03, "attack.num_steps": 10}
    if key == ("gair-trades", "official"):
        wanted |= {"second_attack.eps": 0.15, "second_attack.step_size": 0.03, "second_attack.num_steps": 10}
    if preset == "paper":
        wanted |= {"lr_milestones": [22, 27], "burn_in_epochs": 22}
    assert {path: recipe[path] for path in wanted} == wanted
    scaled = {"lr_milestones", "burn_in_epochs", "phases", "awp.warmup_epochs", "weight_decay", "batch_size"}
    rest = {path: value for path, value in expected(key).items() if path not in wanted.keys() | scaled}
    rest.pop("augment.padding")
    assert {path: recipe[path] for path in rest} == rest


@pytest.mark.parametrize("name", METHODS)
def test_the_wide_network_changes_rate_and_decay_of_the_paper(name: str) -> None:
    recipe = flat(resolve(name, model="wrn-34-10").plain())
    wanted = expected((name, "paper")) | {"lr": 0.1, "weight_decay": 7e-4}
    if name == "mart":
        wanted["objective.beta"] = 6.0
    assert {path: recipe[path] for path in wanted} == wanted
