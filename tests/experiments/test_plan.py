"""Which runs share a burn-in, and what is left to do."""

from pathlib import Path

import pytest

from probmargin.experiments.catalogue import find
from probmargin.experiments.grid import make_grid
from probmargin.experiments.plan import Place, Planned, plan_runs, shared_epochs
from probmargin.methods.plain import with_settings
from probmargin.methods.resolve import named


def planned(name: str, out: Path, **settings: object) -> dict[str, Planned]:
    grids = [make_grid(experiment, trials=1, **settings) for experiment in find(name)]  # type: ignore[arg-type]
    return {entry.row: entry for entry in plan_runs(grids, Place(out=out), [])}


def parents(name: str, out: Path, **settings: object) -> dict[str, tuple[str, int]]:
    found = {row: entry.task.parent for row, entry in planned(name, out, **settings).items()}
    return {row: (parent.run, parent.epochs) for row, parent in found.items() if parent is not None}


def test_table2_trains_each_burn_in_once(tmp_path: Path) -> None:
    run = "cifar10-resnet18-{}-s1".format
    assert parents("table2", tmp_path) == {
        "gairat": (run("at"), 74),
        "mail-at": (run("at"), 74),
        "mail-trades": (run("trades-beta5"), 74),
        "mail-mart": (run("mart-beta6"), 74),
    }
    found = planned("table2", tmp_path)
    assert found["at"].task.keep_epochs == (74,)
    assert found["trades"].task.keep_epochs == ()
    assert list(found).index("at") < list(found).index("mail-at")
    for field in ("monitor", "dynamics"):
        assert [row for row, entry in found.items() if getattr(entry.task, field)] == ["at", "gairat", "mail-at"]
    assert {entry.state for entry in found.values()} == {"to do"}


def test_the_two_by_two_forks_one_burn_in(tmp_path: Path) -> None:
    burn_in = "cifar10-resnet18-trades-official-kl-s1"
    assert parents("two-by-two", tmp_path) == {
        "trades-official-ce": (burn_in, 76),
        "mail-trades-official-kl": (burn_in, 76),
        "mail-trades-official-ce": (burn_in, 76),
        "mail-trades-official-2021": (burn_in, 70),
    }
    assert planned("two-by-two", tmp_path)["trades-official-kl"].task.keep_epochs == (70, 76)


def test_rows_fork_from_each_other_where_no_control_is_there(tmp_path: Path) -> None:
    first = "cifar10-resnet18-mail-trades-hinge-as-printed-s1"
    assert set(parents("table6", tmp_path).values()) == {(first, 74)}
    assert parents("table2", tmp_path, only=["mail-at"]) == {}


@pytest.mark.parametrize(
    ("parent", "child", "epochs"),
    [("at", "gairat", 74), ("trades", "mail-trades", 0), ("at", "awp", 0), ("at", "fat", 0), ("at", "mart", 0)],
)
def test_epochs_that_recipes_share(parent: str, child: str, epochs: int) -> None:
    assert shared_epochs(named(parent), named(child)) == epochs


def test_recipes_that_skip_the_same_epochs_share_a_state_that_there_is() -> None:
    """The first release goes on from the state after 70 epochs with epoch 75: there is none after 75."""
    first = named("mail-trades", "official-2021")
    assert shared_epochs(first, with_settings(first, {"weight.slope": "3"})) == 70


def test_seeds_do_not_mix(tmp_path: Path) -> None:
    grid = make_grid(find("table2")[0], trials=2, only=["at", "mail-at"])
    found = {entry.task.id: entry.task.parent for entry in plan_runs([grid], Place(out=tmp_path), [])}
    parent = found["cifar10-resnet18-mail-at-s2"]
    assert parent is not None
    assert parent.run == "cifar10-resnet18-at-s2"
    assert len(found) == 4
