"""`probmargin inspect` on a run with wrong labels, and on runs that lack a part."""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from training_runs import fit, recipe

from probmargin import cli
from probmargin.core.errors import UsageError
from probmargin.data.digits import load_digits
from probmargin.experiments import inspect
from probmargin.experiments.inspect import InspectRequest, inspect_run
from probmargin.methods.resolve import resolve
from probmargin.training.progress import Reporter
from probmargin.training.request import TrainRequest
from probmargin.training.train import train


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GAIRAT on digits for three short epochs, a fifth of the labels wrong, some images held out."""
    method = resolve("gairat", data="digits", epochs=3, settings={"attack.num_steps": "2", "attack.eps": "0.05"})
    folder = tmp_path_factory.mktemp("inspect") / "run"
    request = TrainRequest(
        out=folder, model="small-cnn", seed=1, device="cpu", dynamics=True, label_noise="symmetric:0.2", validation=37
    )
    train(method, load_digits(), request, Reporter(quiet=True))
    return folder


@pytest.fixture
def summary(noisy: Path) -> dict[str, Any]:
    return inspect_run(InspectRequest(run=noisy, top=5))


def test_labels_follow_the_examples_through_noise_and_split(noisy: Path, summary: dict[str, Any]) -> None:
    assert summary["examples"] == 1400
    with np.load(noisy / "label_noise.npz") as file:
        wrong = dict(zip(file["index"].tolist(), file["is_wrong"].tolist(), strict=True))
        labels = dict(zip(file["index"].tolist(), file["labels"].tolist(), strict=True))
    for example in summary["weight"]["largest"]:
        assert (example["is_wrong"], example["label"]) == (wrong[example["index"]], labels[example["index"]])
        assert example["class"] == str(example["label"])
    with np.load(noisy / "dynamics.npz") as file:
        kept = [wrong[index] for index in file["index"].tolist()]
        # Weighted epochs alone: the burn-in of three epochs is two.
        by_hand = file["weight"][2:][:, kept].sum() / file["weight"][2:].sum()
    assert summary["noise"]["share_of_weight"] == pytest.approx(by_hand, rel=1e-5)
    assert summary["noise"]["examples"] == sum(kept)
    assert summary["lps"]["source"] == "counted while training"


def test_the_command(noisy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(
        sys, "argv", ["probmargin", "inspect", str(noisy), "--top", "3", "--json", str(tmp_path / "a.json")]
    )
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    printed = capsys.readouterr().out
    for title in (
        "gairat on digits",
        "Largest weights",
        "Classes: who gains",
        "Suspected of a wrong label",
        "Wrong labels",
    ):
        assert title in printed
    table = printed[printed.index("Largest weights") :].splitlines()
    assert table[1].split() == ["example", "class", "weight", "margin", "wrong", "label"]
    assert len(table[2:5]) == 3
    stored = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert stored["label_noise"] == "symmetric:0.2"
    assert len(stored["weight"]["largest"]) == 3


def test_a_terminal_gets_the_same_words(noisy: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["probmargin", "inspect", str(noisy), "--top", "2"])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with pytest.raises(SystemExit):
        cli.main()
    printed = capsys.readouterr().out
    assert "Classes: who gains and loses weight" in printed
    assert "of the weight" in printed


def test_without_dynamics_it_names_the_command(noisy: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(noisy, copy)
    (copy / "dynamics.npz").unlink()
    with pytest.raises(
        UsageError, match=r"probmargin train --recipe .*recipe.json --data digits .* --dynamics$"
    ) as error:
        inspect_run(InspectRequest(run=copy))
    assert "\n" not in str(error.value)


def test_damaged_dynamics_are_one_line(noisy: Path, tmp_path: Path) -> None:
    shutil.copytree(noisy, tmp_path / "run")
    file = tmp_path / "run" / "dynamics.npz"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UsageError, match="cannot be read"):
        inspect_run(InspectRequest(run=tmp_path / "run"))


def test_an_example_has_one_weight_in_every_list(noisy: Path) -> None:
    """Averages are over the weighted epochs, in the list of suspects too."""
    summary = inspect_run(InspectRequest(run=noisy, top=1400))
    weights = {entry["index"]: entry["weight"] for entry in summary["weight"]["largest"]}
    assert summary["suspects"]["examples"]
    for entry in summary["suspects"]["examples"]:
        assert entry["weight"] == weights[entry["index"]]


def test_steps_are_counted_while_training_and_can_be_measured_again(tmp_path: Path) -> None:
    method = resolve("at", data="digits", epochs=1, settings={"attack.num_steps": "3", "attack.eps": "0.3"})
    request = TrainRequest(out=tmp_path / "run", model="small-cnn", seed=1, device="cpu", dynamics=True)
    train(method, load_digits(), request, Reporter(quiet=True))
    found = inspect_run(InspectRequest(run=tmp_path / "run"))
    assert found["lps"]["source"] == "counted while training"
    assert found["weight"]["is_uniform"]
    assert found["noise"] is None
    measured = inspect_run(InspectRequest(run=tmp_path / "run", measure_lps=50, top=4))["lps"]
    assert measured["source"] == "measured on the trained network, 50 examples"
    assert measured["lps_values"] <= 4
    assert len(measured["examples"]) == 4
    assert all(entry["lps"] in (0, 1, 2, 3) for entry in measured["examples"])
    with pytest.raises(UsageError, match="--measure-lps 2 or more"):
        InspectRequest(run=tmp_path / "run", measure_lps=1)


def test_measured_steps_are_all_that_were_survived(noisy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image may be wrong after one update and right again after two."""
    followed = SimpleNamespace(lps=np.array([2, 1, 0]), first_cross=np.array([1, 1, 0]), pm=np.array([0.5, -0.5, -1.0]))
    monkeypatch.setattr(inspect, "follow", lambda subject, attack: followed)
    measured = inspect_run(InspectRequest(run=noisy, measure_lps=3, top=3))["lps"]
    with np.load(noisy / "dynamics.npz") as file:
        places = {int(index): place for place, index in enumerate(file["index"][:3])}
    found = {places[entry["index"]]: (entry["lps"], entry["margin"]) for entry in measured["examples"]}
    assert found == {0: (2, 0.5), 1: (1, -0.5), 2: (0, -1.0)}


def test_data_that_is_not_there_costs_the_classes_alone(tmp_path: Path) -> None:
    fit(tmp_path / "run", recipe("mail-at", epochs=3), dynamics=True)
    found = inspect_run(InspectRequest(run=tmp_path / "run"))
    assert found["classes"] is None
    assert "labels and classes are not known: unknown data set 'blobs'" in found["notes"][0]
    assert len(found["weight"]["largest"]) == 10
    with pytest.raises(UsageError, match="--measure-lps needs the images"):
        inspect_run(InspectRequest(run=tmp_path / "run", measure_lps=5))
