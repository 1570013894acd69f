"""Figures and benches from runs to pictures, on a handful of digits."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from probmargin.attacks.pgd import PGD
from probmargin.core.errors import UsageError
from probmargin.data.dataset import DataSet
from probmargin.data.digits import load_digits
from probmargin.experiments import (
    figure1a,
    figure1b,
    figure1c,
    figure2,
    figure3,
    figure4,
    reliability,
    study as study_module,
    work,
)
from probmargin.experiments.catalogue import STUDIES
from probmargin.experiments.figure3 import places
from probmargin.experiments.followed import Followed, Subject
from probmargin.experiments.reproduce import _bench, dry_run, make_plan, render, reproduce
from probmargin.experiments.request import ReproduceRequest
from probmargin.experiments.weight_functions import measure as weight_functions
from probmargin.experiments.work import Parent
from probmargin.reporting.figures import DRAWINGS
from probmargin.runs.kept import kept_run
from probmargin.runs.run import Run, open_run

ROOT = Path(__file__).resolve().parents[2]
QUICK = tuple(name for name in STUDIES if name != "label-noise")


def few_digits(*_: object, **__: object) -> DataSet:
    data = load_digits()
    return DataSet("digits", data.train.take(range(96)), data.test.take(range(24)), data.classes)


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study_module, "load", few_digits)
        patch.setattr(work, "load", few_digits)
        patch.setattr(study_module, "SMOKE_EPOCHS", 3)
        patch.setattr(figure1a, "NUM_STEPS", 6)
        patch.setattr(figure2, "_GRID", 15)
        work._load.cache_clear()
        yield
    work._load.cache_clear()


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("figures") / "runs"


def request(name: str, out: Path, **changes: Any) -> ReproduceRequest:
    return ReproduceRequest(**{"name": name, "scale": "smoke", "device": "cpu", "out": out, **changes})


@pytest.fixture(scope="module")
def drawn(out: Path) -> dict[str, dict[str, Any]]:
    """Every quick study carried out, in one folder; what it recorded."""
    records = {}
    for name in QUICK:
        assert reproduce(request(name, out), lambda _: None) == []
        records[name] = json.loads((out / "figures" / f"{name}.json").read_text(encoding="utf-8"))
    return records


def test_every_study_can_be_drawn() -> None:
    assert set(STUDIES) == set(DRAWINGS)


@pytest.mark.slow
def test_pictures_and_records(drawn: dict[str, dict[str, Any]], out: Path) -> None:
    for name, record in drawn.items():
        with Image.open(out / "figures" / f"{name}.png") as picture:
            assert picture.width >= 600
        pdf = (out / "figures" / f"{name}.pdf").read_bytes()
        assert pdf.startswith(b"%PDF")
        assert b"/FontFile2" in pdf  # TrueType, embedded
        assert b"/Type3" not in pdf
        assert record["command"] == f"probmargin reproduce {name} --scale smoke"
        assert record["hardware"]
        assert record["data"]["summary"]
        assert all(run["recipe_hash"] and run["seed"] == 1 for run in record["runs"])
    assert len(drawn["figure1c"]["runs"]) == 3


@pytest.mark.slow
def test_what_is_there_is_not_trained_again(
    drawn: dict[str, dict[str, Any]], out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "train", None)
    assert reproduce(request("figure1c", out), lambda _: None) == []
    assert Run(out / "figures-digits-small-cnn-gairat-s1").record["forked_from"]["epoch"] == 2


@pytest.mark.slow
def test_a_record_is_drawn_again_without_its_runs(
    drawn: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    with pytest.raises(UsageError, match="make it with probmargin reproduce figure4 --scale smoke"):
        render(request("figure4", tmp_path / "other"), said.append)
    (tmp_path / "other" / "figures").mkdir(parents=True)
    (tmp_path / "other" / "figures" / "figure4.json").write_text(json.dumps(drawn["figure4"]), encoding="utf-8")
    render(request("figure4", tmp_path / "other"), said.append)
    assert (tmp_path / "other" / "figures" / "figure4.pdf").exists()
    assert "Rank correlation of LPS with PM-nat" in said[0]


@pytest.mark.slow
def test_numbers_agree_between_figures(drawn: dict[str, dict[str, Any]]) -> None:
    histogram, boxes = drawn["figure1b"]["data"], drawn["figure4"]["data"]
    assert sum(histogram["counts"]) == histogram["examples"] == 96
    assert {box["lps"]: box["count"] for box in boxes["boxes"]["pm_nat"]} == {
        lps: count for lps, count in enumerate(histogram["counts"]) if count
    }
    assert histogram["critical"] == histogram["wrong_at_end"] + histogram["only_cw"] <= histogram["counts"][-1]
    path = drawn["figure2"]["data"]
    assert len(path["pm"]) == path["num_steps"] + 1
    assert [value > 0 for value in path["pm"]] == path["correct"]
    share = drawn["figure3"]["data"]["areas"]["attacked"]
    assert sum(share.values()) == pytest.approx(1.0)
    table = drawn["reliability"]["data"]["path_dependence"]
    assert table["all"]["PM-nat"]["path_share"] == 0.0
    assert table["all"]["LPS"]["paths"] == 13
    assert table["starts"]["LPS"]["path_share"] > 0.0


def test_a_kept_record_is_drawn_again_at_its_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "results" / "figures", tmp_path / "results" / "figures")
    monkeypatch.chdir(tmp_path)
    for scale, data in (("full", "cifar10"), ("smoke", "digits")):
        said: list[str] = []
        render(request("figure1c", tmp_path / scale, scale=scale), said.append)
        assert f"; {data}, " in said[0]
    render(request("weight-functions", tmp_path / "other", scale="full"), said.append)


def test_a_run_is_kept_where_its_record_has_its_curves_beside_it(tmp_path: Path) -> None:
    (tmp_path / "a.json").touch()
    assert kept_run((None, tmp_path), "a") is None
    (tmp_path / "a.metrics.jsonl").touch()
    found = kept_run((None, tmp_path), "a")
    assert found is not None
    assert found.metrics_path == tmp_path / "a.metrics.jsonl"


def test_full_scale_trains_the_tables_runs_that_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PROBMARGIN_DATA", raising=False)
    bench = _bench(request("figure1c", tmp_path, scale="full", data_dir=Path("there"), device="cuda"), print)
    tasks = {task.id: task for task in STUDIES["figure1c"].tasks(bench)}
    assert list(tasks) == [f"cifar10-resnet18-{row}-s1" for row in ("at", "gairat", "mail-at")]
    parent = Parent(run="cifar10-resnet18-at-s1", epochs=74)
    assert [task.parent for task in tasks.values()] == [None, parent, parent]
    assert all(task.monitor and task.dynamics and not task.columns for task in tasks.values())
    assert {(task.data_dir, task.device) for task in tasks.values()} == {(Path("there"), "cuda")}
    wanted = make_plan(request("table2", tmp_path, scale="full", trials=1))
    assert [tasks[one.task.id].recipe for one in wanted if one.task.id in tasks] == [
        task.recipe for task in tasks.values()
    ]
    with pytest.raises(UsageError, match="cifar"):
        reproduce(request("figure1c", tmp_path, scale="full"), lambda _: None)


def test_what_a_study_cannot_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leave out --only"):
        reproduce(request("figure1c", tmp_path, only=("at",)), lambda _: None)
    with pytest.raises(UsageError, match="--trials"):
        reproduce(request("label-noise", tmp_path, trials=0), lambda _: None)
    with pytest.raises(UsageError, match="did you mean figure1"):
        reproduce(request("figure1d", tmp_path), lambda _: None)


def test_dry_run_lists_the_runs(tmp_path: Path) -> None:
    said: list[str] = []
    dry_run(request("figure1c", tmp_path), said.append)
    assert said[1] == "  figures-digits-small-cnn-at-s1: 3 epochs; to do"
    assert said[2].endswith("from figures-digits-small-cnn-at-s1 after epoch 2; to do")
    assert said[-1].startswith("forecast: about 0:00:")
    assert not any(tmp_path.iterdir())
    dry_run(request("weight-functions", tmp_path), said.append)
    assert said[-1] == "  it needs no run"


def followed(first_cross: list[float], last_loss: list[float]) -> Followed:
    nothing = np.zeros(len(first_cross))
    loss = np.array([nothing, np.array(last_loss)])
    return Followed(loss, loss > 9, nothing, np.array(first_cross), nothing, nothing, torch.zeros(1))


def walked(crossings: list[int], num_steps: int) -> Followed:
    """Images that are right until they cross, and wrong from then on; at `num_steps` they never do."""
    cross = np.array(crossings)
    correct = (np.arange(num_steps + 1)[:, None] < cross) | (cross == num_steps)
    return replace(followed([*crossings], [0.0] * len(crossings)), correct=correct, lps=cross)


def asked(logits: list[list[float]], num_steps: int) -> Subject:
    """Images of the first class that are their own logits; they are numbers 10, 11, ... of the data."""
    run: Any = SimpleNamespace(recipe=SimpleNamespace(final_attack=PGD(eps=0.1, num_steps=num_steps)))
    zeros = torch.zeros(len(logits), dtype=torch.long)
    return Subject(run, torch.nn.Identity(), torch.tensor(logits), zeros, 10 + torch.arange(len(logits)), "abcd")


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """A study's numbers, of a subject and of what one attack after the other does to it."""

    def measured(study: ModuleType, subject: Subject, *paths: Followed) -> dict[str, Any]:
        left = iter(paths)
        monkeypatch.setattr(study, "subject_of", lambda *_: subject)
        monkeypatch.setattr(study, "follow", lambda *_: next(left))
        numbers: dict[str, Any] = study.measure(SimpleNamespace(scale="smoke"))
        return numbers

    return measured


def test_the_example_where_two_attacks_differ_most() -> None:
    pgd = followed([50, 50, 50, 50, 1, 50], [0.1, 0.1, 0.1, 0.1, 9.0, 0.1])
    lm_pgd = followed([50, 14, 14, 2, 50, 20], [0.1, 0.5, 0.9, 9.0, 0.1, 5.0])
    right = np.array([True, True, True, False, True, True])
    # The fourth is misclassified as it stands, on the fifth PGD is the better one, the sixth gains most loss and fewer
    # steps; the third gains more loss than the second.
    assert figure1a.most_different(pgd, lm_pgd, right) == 2


def test_figure_1a_counts_what_falls_to_one_attack_alone(found: Callable[..., dict[str, Any]]) -> None:
    """Images 1 and 4 fall to PGD, images 1 to 3 to LM-PGD; image 2 is wrong as it stands."""
    subject = asked([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]], 6)
    data = found(figure1a, subject, walked([6, 3, 6, 6, 2], 6), walked([6, 3, 1, 4, 6], 6))
    assert (data["only_lm_pgd"], data["only_pgd"], data["examples"]) == (2, 1, 5)
    assert (data["index"], data["largest_gaps"], data["share_differs"]) == (13, [2, 4], 3 / 5)
    curves = data["curves"]
    assert (curves["pgd"]["lps"], curves["pgd"]["right_at_end"]) == (6, True)
    assert (curves["lm_pgd"]["lps"], curves["lm_pgd"]["right_at_end"]) == (4, False)


def test_figure_1b_tells_what_is_critical_at_the_highest_lps(found: Callable[..., dict[str, Any]]) -> None:
    """Five of six images are at the top, image 1 of them wrong after the last step; CW breaks images 0 to 2."""
    path = walked([2, 6, 6, 6, 6, 6], 6)
    path.correct[-1, 1] = False
    cw = replace(path, x_adv=torch.tensor([[0.0, 1.0]] * 3 + [[1.0, 0.0]] * 3))
    data = found(figure1b, asked([[1.0, 0.0]] * 6, 6), path, cw)
    assert data["counts"] == [0, 0, 1, 0, 0, 0, 5]
    assert (data["wrong_at_end"], data["only_cw"], data["critical"], data["share_critical"]) == (1, 1, 2, 2 / 5)


def test_figure_1c_says_where_the_curves_end() -> None:
    looks = [
        {"epoch": 1, "monitors": {"pgd-20": 0.7, "cw": 0.65}},
        {"epoch": 2},
        {"epoch": 3, "monitors": {"pgd-20": 0.5, "cw": 0.4}},
    ]
    recipe = SimpleNamespace(burn_in_epochs=1, epochs=4, final_attack=None)
    record = {"monitors": {"counts": {"pgd-20": 100, "cw": 50}}}
    bench: Any = SimpleNamespace(run=lambda row: SimpleNamespace(metrics=looks, record=record, recipe=recipe))
    data = figure1c.measure(bench)
    assert data["curves"][0] == {"row": "at", "epochs": [2, 4], "accuracy": {"pgd-20": [0.7, 0.5], "cw": [0.65, 0.4]}}
    assert (data["num_images"], data["standard_error"]) == (50, pytest.approx((0.4 * 0.6 / 50) ** 0.5))
    assert data["summary"][0] == "at ends at 50.0% under PGD-20 and 40.0% under CW-20: a drop of 10.0 points."


def test_the_papers_attacks_at_the_papers_radius() -> None:
    built = figure1a.attacks(8 / 255, 50)
    assert getattr(built["pgd"], "step_size", None) == pytest.approx(2 / 255)
    lm_pgd = built["lm_pgd"]
    sizes = [getattr(lm_pgd, name, None) for name in ("step_max", "step_min", "momentum", "warm_steps", "num_steps")]
    assert sizes == [pytest.approx(6 / 255), pytest.approx(4 / 255), 0.8, 15, 50]


def test_the_plane_of_a_path() -> None:
    points = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 0.0], [3.0, 0.0, 0.0]]).view(3, 1, 1, 3)
    axes, along, across = figure2.plane(points)
    assert along.tolist() == pytest.approx([0.0, 1.0, 3.0])
    assert across.tolist() == pytest.approx([0.0, -1.0, 0.0])
    assert axes[0].tolist() == pytest.approx([1.0, 0.0, 0.0])


def test_a_path_that_crosses_once_near_step_six_is_chosen() -> None:
    def path(crossing: int, comes_back: bool) -> list[bool]:
        right = [step < crossing for step in range(11)]
        return [*right[:-1], True] if comes_back else right

    columns = [path(6, True), path(3, False), path(7, False), path(11, False)]
    correct = np.array(columns).T
    chosen = figure2.choose(SimpleNamespace(correct=correct, first_cross=correct[:10].sum(axis=0)))  # type: ignore[arg-type]
    assert chosen == 2


def test_an_image_on_the_simplex() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.1, 0.1], [0.2, 0.5, 0.2, 0.1]]).log()
    subject = Subject(Run(Path()), torch.nn.Identity(), logits, torch.tensor([0, 0]), torch.arange(2), "abcd")
    assert places(subject, logits).flatten().tolist() == pytest.approx([0.5, 0.3, 0.2, 0.2, 0.5, 0.3])


def test_figure_3_counts_areas_by_the_most_likely_other_class(found: Callable[..., dict[str, Any]]) -> None:
    """Margins of the clean images: 0.7, 0.1, -0.3 and 0.05; of the attacked ones three of -0.5 and one of 0.1."""
    clean = torch.tensor([[0.8, 0.1, 0.1], [0.45, 0.35, 0.2], [0.3, 0.6, 0.1], [0.5, 0.45, 0.05]]).log()
    attacked = torch.tensor([[0.2, 0.7, 0.1]] * 3 + [[0.45, 0.35, 0.2]]).log()
    data = found(figure3, asked(clean.tolist(), 6), replace(walked([6] * 4, 6), x_adv=attacked))
    assert data["areas"] == {
        "clean": {"safe": 1 / 4, "boundary": 2 / 4, "wrong": 1 / 4},
        "attacked": {"safe": 0.0, "boundary": 1 / 4, "wrong": 3 / 4},
    }


def test_figure_4_has_a_box_for_each_margin_and_lps(found: Callable[..., dict[str, Any]]) -> None:
    """Over rising LPS the margin of clean images falls and that of attacked ones rises."""
    clean = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]]).log()
    path = replace(walked([0, 1, 2, 3], 3), pm=np.array([-0.5, -0.25, 0.25, 0.5]))
    data = found(figure4, asked(clean.tolist(), 3), path)
    medians = {name: [box["median"] for box in boxes] for name, boxes in data["boxes"].items()}
    assert medians["pm_nat"] == pytest.approx([0.8, 0.6, 0.4, 0.2])
    assert medians["pm_adv"] == [-0.5, -0.25, 0.25, 0.5]
    assert data["rank_correlation"] == pytest.approx({"pm_nat": -1.0, "pm_adv": 1.0})
    assert "PM-nat -1.00, with PM-adv 1.00, over 4 training images; 25.0% share the highest LPS" in data["summary"][0]


def test_paths_differ_in_start_in_step_and_in_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reliability, "follow", lambda subject, attack, seed=0: (attack, seed))
    built: dict[str, Any] = reliability.paths(asked([[1.0, 0.0]], 6))
    assert [(attack.start, seed) for attack, seed in built["starts"]] == [("uniform_eps", seed) for seed in range(5)]
    assert [attack.step_size for attack, _ in built["step sizes"]] == pytest.approx([0.01, 0.015, 0.025, 0.04, 0.06])
    assert [getattr(attack, "lookahead", None) for attack, _ in built["LM-PGD"]] == [None, False, True]


def test_weight_functions_at_known_points() -> None:
    data = weight_functions(None)  # type: ignore[arg-type]
    at = {round(margin, 2): place for place, margin in enumerate(data["margin"])}
    curves = {curve["component"]["name"]: curve["weight"] for curve in data["of_margin"][::-1]}
    assert curves["sigmoid"][at[-0.5]] == pytest.approx(0.5)
    assert curves["hinge"][at[-1.0]] == pytest.approx(2.0)
    assert curves["hinge_as_printed"][at[0.5]] == pytest.approx(1.0)
    assert (curves["step"][at[-0.5]], curves["step"][at[0.5]]) == pytest.approx((0.8, 0.2))
    steps = {curve["component"]["name"]: curve["weight"] for curve in data["of_steps"]}
    assert steps["gairat_tanh"][4] == pytest.approx(0.5)
    assert steps["gairat_discrete"][10] == pytest.approx(1 / 11)


@pytest.mark.slow
def test_full_scale_reads_the_runs_of_the_tables(
    drawn: dict[str, dict[str, Any]], out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With digits in the place of CIFAR-10: a run of a table is read where it lies, and nothing is trained."""
    monkeypatch.setattr(study_module, "FULL_DATA", "digits")
    monkeypatch.setattr(study_module, "FULL_MODEL", "small-cnn")
    monkeypatch.setattr(work, "train", None)
    for row in ("at", "gairat", "mail-at"):
        shutil.copytree(out / f"figures-digits-small-cnn-{row}-s1", tmp_path / f"digits-small-cnn-{row}-s1")
    with pytest.raises(UsageError, match="is not the run of table2's row at"):
        reproduce(request("figure1b", tmp_path, scale="full"), lambda _: None)
    monkeypatch.setattr(
        study_module, "full_recipe", lambda _, row: open_run(tmp_path / f"digits-small-cnn-{row.id}-s1").recipe
    )
    for name in ("figure1b", "figure1c"):
        assert reproduce(request(name, tmp_path, scale="full"), lambda _: None) == []
        record = json.loads((tmp_path / "figures" / f"{name}.json").read_text(encoding="utf-8"))
        assert record["command"] == f"probmargin reproduce {name}"
        assert record["data"] == drawn[name]["data"]
    lines = (tmp_path / "digits-small-cnn-at-s1" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [{key: value for key, value in json.loads(line).items() if key != "monitors"} for line in lines]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "digits-small-cnn-at-s1" / "metrics.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="without monitors of pgd-20, cw: train with --monitor"):
        reproduce(request("figure1c", tmp_path, scale="full"), lambda _: None)
    (tmp_path / "digits-small-cnn-gairat-s1" / "dynamics.npz").unlink()
    with pytest.raises(UsageError, match=r"gairat-s1 has no dynamics.npz: train with --dynamics"):
        reproduce(request("reliability", tmp_path, scale="full"), lambda _: None)
