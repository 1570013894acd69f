"""Held-out images choose the best state; test images are looked at for curves alone."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from blobs import blobs
from torch import nn
from training_runs import Listener, StopAfter, fit, let_accuracy_fall, recipe, same

from probmargin import api as pm
from probmargin.attacks.pgd import PGD
from probmargin.core.errors import Interrupted, UsageError
from probmargin.core.noise import KeyedNoise
from probmargin.core.settings import EMA
from probmargin.data.dataset import ImageSet, split_validation
from probmargin.engine import checkpoints
from probmargin.engine.distributed import World
from probmargin.evaluation.protocol import build_attack
from probmargin.runs.run import open_run
from probmargin.training.network import Network
from probmargin.training.validation import Judge, Validation, parse_monitors, score


def best_of(path: Path) -> checkpoints.Checkpoint:
    return checkpoints.load(path / "checkpoints" / "best")


def test_held_out_images_are_not_trained_on(tmp_path: Path) -> None:
    """Changing a held-out image changes no weight; changing another does."""
    data = blobs()
    rest, held = split_validation(data.train, 20, seed=1)
    weights, path = fit(tmp_path / "a", recipe(), validation=20)
    for position, is_seen in ((int(held.index[3]), False), (int(rest.index[3]), True)):
        images = data.train.images.clone()
        images[position] = 255 - images[position]
        other = replace(data, train=ImageSet(images, data.train.labels, data.train.index))
        again, _ = fit(tmp_path / f"b{position}", recipe(), validation=20, data=other)
        assert same(weights, again) is not is_seen
    record = open_run(path).record
    assert record["validation"] == 20
    assert "held out" in record["held_out"]


def test_the_best_state_is_the_best_look_and_the_first_among_equals(tmp_path: Path) -> None:
    listener = Listener()
    _, path = fit(
        tmp_path / "run",
        recipe("at", epochs=8, lr=0.05),
        validation=20,
        keep_epochs=tuple(range(1, 9)),
        reporter=listener,
    )
    looks = {row["epoch"] + 1: score(row["validation"]) for row in open_run(path).metrics}
    assert len(looks) == 8
    best = best_of(path)
    assert looks[best.facts["epoch"]] == max(looks.values())
    assert best.facts["epoch"] == min(epoch for epoch, value in looks.items() if value == max(looks.values()))
    kept = checkpoints.load(path / "checkpoints" / f"state-{best.facts['epoch']:04d}")
    assert same(best.part("model"), kept.part("model"))
    assert not best.part("momentum")
    summary = open_run(path).record["held_out_accuracy"]
    assert summary["best"]["epoch"] == best.facts["epoch"]
    assert summary["last"]["epoch"] == 8
    assert any(f"best {100 * max(looks.values()):.1f}% after epoch" in text for text in listener.said)


def test_a_look_is_the_accuracy_of_the_average_on_the_held_out_images(tmp_path: Path) -> None:
    method = recipe("at", ema=EMA(decay=0.5))
    _, path = fit(tmp_path / "run", method, validation=20)
    _, held = split_validation(blobs().train, 20, seed=1)
    model = open_run(path).model
    expected = pm.evaluate(model, (held.floats(), held.labels), ["nat"])["nat"]["accuracy"]
    last = open_run(path).metrics[-1]["validation"]
    assert last["natural_accuracy"] == pytest.approx(expected)
    validation = Validation(held, method)
    assert validation.attack is not None
    judge = Judge(Network(model), World(), 16)
    assert last["robust_accuracy"] == pytest.approx(judge.accuracy(held, validation.attack))


def test_a_look_attacks_by_ten_steps_of_a_quarter_of_the_radius() -> None:
    expected = PGD(
        norm="Linf", eps=0.1, step_size=0.025, num_steps=10, loss="ce", start="uniform_eps", clamp_start=True
    )
    assert Validation(blobs().train, recipe("trades")).attack == expected


def test_monitors_are_of_the_average(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def total(model: nn.Module) -> float:
        return sum(float(parameter.detach().sum()) for parameter in model.parameters())

    monkeypatch.setattr(Judge, "accuracy", lambda judge, images, attack: total(judge.network.model))
    _, path = fit(tmp_path / "run", recipe("standard", epochs=1, ema=EMA(decay=0.5)), monitor="nat", validation=20)
    (row,) = open_run(path).metrics
    average = pytest.approx(total(open_run(path).model))
    assert (row["monitors"]["nat"], row["validation"]["natural_accuracy"]) == (average, average)


def test_looking_changes_nothing(tmp_path: Path) -> None:
    """Monitors, dynamics and the average's turn in the model's place leave the trained weights alone."""
    method = recipe("mail-at", ema=EMA(decay=0.9), lr=0.05)
    plain, path = fit(tmp_path / "plain", method)
    watched, other = fit(tmp_path / "watched", method, monitor="nat,pgd-5:10", monitor_every=1, dynamics=True)
    assert same(plain, watched)
    assert [row["loss"] for row in open_run(path).metrics] == [row["loss"] for row in open_run(other).metrics]


def test_looks_begin_with_the_weights(tmp_path: Path) -> None:
    _, path = fit(tmp_path / "a", recipe("mail-at"), validation=20)
    assert [row["epoch"] for row in open_run(path).metrics if "validation" in row] == [4, 5]
    _, path = fit(tmp_path / "b", recipe("mail-at"), validation=20, validation_every=4)
    assert [row["epoch"] for row in open_run(path).metrics if "validation" in row] == [3, 5]


def test_patience_ends_a_run_and_a_resume_knows(tmp_path: Path) -> None:
    listener = Listener()
    _, path = fit(tmp_path / "run", recipe("at", epochs=40, lr=0.05), validation=20, early_stopping=3)
    rows = open_run(path).metrics
    best = best_of(path).facts["epoch"]
    assert len(rows) == best + 3 < 40
    request: dict[str, Any] = {"validation": 20, "early_stopping": 3, "resume": True}
    fit(tmp_path / "run", recipe("at", epochs=40, lr=0.05), reporter=listener, **request)
    assert any("it stopped early" in text for text in listener.said)
    assert open_run(path).metrics == rows


def test_the_best_so_far_survives_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look is the best, so that a resume that forgets it chooses another."""
    let_accuracy_fall(monkeypatch)
    method = recipe("at", epochs=8)
    fit(tmp_path / "whole", method, validation=20, early_stopping=6)
    for steps in (14, 15, 16, 17):
        cut = tmp_path / f"cut-{steps}"
        with pytest.raises(Interrupted):
            fit(cut, method, validation=20, early_stopping=6, reporter=StopAfter(steps))
        fit(cut, method, validation=20, early_stopping=6, resume=True)
        facts = [best_of(run).facts for run in (tmp_path / "whole", cut)]
        assert facts[0]["best"] == facts[1]["best"]
        assert same(best_of(tmp_path / "whole").part("model"), best_of(cut).part("model"))
        assert len(open_run(tmp_path / "whole").metrics) == len(open_run(cut).metrics)


def test_a_best_state_lost_to_a_kill_is_written_again(tmp_path: Path) -> None:
    """The run's own state comes first; where the kill came between, it is the best one too."""
    method = recipe("at", epochs=8, lr=0.05)
    _, path = fit(tmp_path / "run", method, validation=20, keep_epochs=tuple(range(1, 9)))
    best = best_of(path)
    for state in open_run(path).states():
        if int(state.name.split("-")[1]) > best.facts["epoch"]:
            checkpoints.remove(state)
    checkpoints.remove(path / "checkpoints" / "best")
    fit(path, method, validation=20, resume=True)
    assert best_of(path).facts["best"]["epoch"] == best.facts["epoch"]
    assert same(best_of(path).part("model"), best.part("model"))


def test_monitors_are_test_images_and_labelled_so(tmp_path: Path) -> None:
    _, path = fit(tmp_path / "run", recipe("at", epochs=5), monitor="pgd-5:10,nat", monitor_every=2)
    run = open_run(path)
    assert [row["epoch"] for row in run.metrics if "monitors" in row] == [1, 3, 4]
    assert run.record["monitors"]["used_for_selection"] is False
    assert run.record["monitors"]["images"] == "test set"
    test = blobs().test
    model = run.model
    images = (test.floats()[:10], test.labels[:10])
    judged = pm.evaluate(model, images, ["pgd-5"], eps=0.1)["pgd-5"]["robust_accuracy"]
    last = run.metrics[-1]["monitors"]
    assert last.keys() == {"pgd-5", "nat"}
    assert last["pgd-5"] == pytest.approx(judged)
    assert not (path / "checkpoints" / "best.json").exists()


def test_shares_of_processes_add_up_to_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise follows an example's place in the whole set, so every process finds what one process finds."""
    _, path = fit(tmp_path / "run", recipe("at", epochs=2))
    images = blobs().test
    attack = build_attack("pgd-2", "Linf", 0.1)
    seen: list[torch.Tensor] = []
    counts: list[float] = []

    class Part(World):
        def reduce(self, total: torch.Tensor) -> torch.Tensor:
            counts.append(float(total))
            return total

    def ids(self: KeyedNoise, shape: tuple[int, ...], *, stream: str, target: int = 0, step: int = 0) -> torch.Tensor:
        seen.append(self.ids.clone())
        return original(self, shape, stream=stream, target=target, step=step)

    original = KeyedNoise.uniform
    monkeypatch.setattr(KeyedNoise, "uniform", ids)
    network = Network(open_run(path).model)
    whole = Judge(network, World(), 16).accuracy(images, attack)
    seen.clear()
    for rank in range(3):
        Judge(network, Part(rank, 3), 16).accuracy(images, attack)
    assert sum(counts) / len(images) == pytest.approx(whole)
    assert set(torch.cat(seen).tolist()) == set(range(len(images)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pgd20", "did you mean pgd-20"),
        ("pgd-20:", "ATTACK:IMAGES"),
        ("pgd-20:9,pgd-20", "twice"),
        ("cw:99", "64 test"),
    ],
)
def test_wrong_monitors(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_monitors(text, 64)


def test_wrong_requests_leave_no_folder(tmp_path: Path) -> None:
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"early_stopping": 3}, "--validation N"),
        ({"validation_every": 3}, "--validation N"),
        ({"validation": 64}, "cannot hold out 64 of 64"),
        (
            {"validation": 63},
            "--validation 63 leaves a class without training images: give 62 at most, or leave it out",
        ),
        ({"validation": 20, "early_stopping": 0}, "1 or more"),
        ({"monitor": "cw:0"}, "64 test images"),
        ({"label_noise": "symetric:0.2"}, "did you mean symmetric"),
    )
    for request, words in wrong:
        with pytest.raises(UsageError, match=words):
            fit(tmp_path / "run", recipe(), **request)
        assert not (tmp_path / "run").exists()


def test_a_resume_with_another_split_is_refused(tmp_path: Path) -> None:
    fit(tmp_path / "run", recipe("at", epochs=2), validation=20)
    with pytest.raises(UsageError, match="validation is 20 there and None here"):
        fit(tmp_path / "run", recipe("at", epochs=2), resume=True)


def test_the_best_state_is_a_file_that_others_can_start_from(tmp_path: Path) -> None:
    _, path = fit(tmp_path / "run", recipe("at", epochs=4), validation=20)
    start = path / "checkpoints" / "best.safetensors"
    again, _ = fit(tmp_path / "again", recipe("at", epochs=1, lr=1e-12, burn_in_epochs=0), checkpoint=start)
    torch.testing.assert_close(again["head.1.weight"], best_of(path).part("model")["head.1.weight"])
    assert json.loads((path / "checkpoints" / "best.json").read_text())["best"]["looks_since"] == 0
