"""A run that cannot be saved stops with a reason, and what it had saved is as it was."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training_runs import Listener, StopAfter, fit, recipe

from probmargin.attacks.lm_pgd import LMPGD
from probmargin.attacks.pgd import PGD, EarlyStopPGD, longer_step
from probmargin.core.errors import UsageError
from probmargin.core.settings import Augment
from probmargin.methods.method import Phase
from probmargin.methods.resolve import resolve
from probmargin.runs.run import open_run
from probmargin.training.guards import (
    TrainingStopped,
    above_chance,
    chance_line,
    check_collapse,
    luck,
    out_of_memory_named,
)
from probmargin.training.progress import Reporter
from probmargin.training.refusals import check_crop, check_every_epoch, check_last_batch
from probmargin.training.remarks import split_directions
from probmargin.training.stepper import Stepper
from probmargin.weights.hinge import Hinge
from probmargin.weights.normalizers import Fixed


@dataclass
class Spoil:
    """Does something to the model after each step from an epoch on."""

    epoch: int
    what: Any

    def into(self, monkeypatch: pytest.MonkeyPatch) -> None:
        original = Stepper.__call__
        spoil = self

        def call(stepper: Stepper, now: Any, epoch: int, lr: float, *batch: Any) -> None:
            original(stepper, now, epoch, lr, *batch)
            if epoch >= spoil.epoch:
                with torch.no_grad():
                    spoil.what(stepper)

        monkeypatch.setattr(Stepper, "__call__", call)


def states(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (path / "checkpoints").iterdir()}


def not_a_number(stepper: Stepper) -> None:
    next(stepper.state.model.parameters()).fill_(torch.nan)


def constant(stepper: Stepper) -> None:
    *_, weight, bias = stepper.state.model.parameters()
    weight.zero_()
    bias.copy_(torch.tensor([0.0, 9.0]))
    stepper.state.memory.forget()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (Spoil(3, not_a_number), "the loss of epoch (4) is not a number"),
        (Spoil(3, constant), r"collapsed: in epoch ([45]) every prediction is class 1, after an accuracy of"),
    ],
)
def test_the_last_good_state_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Spoil, words: str) -> None:
    spoil.into(monkeypatch)
    method = recipe("at", epochs=8, lr=0.05)
    with pytest.raises(TrainingStopped, match=words) as stopped:
        fit(tmp_path / "run", method)
    found = re.search(words, str(stopped.value))
    assert found is not None
    last = int(found[1]) - 1
    run = open_run(tmp_path / "run")
    assert run.states()[-1].name == f"state-{last:04d}"
    assert [row["epoch"] for row in run.metrics] == list(range(last))
    _, saved, notes = run.load_state()
    assert not notes
    assert all(tensor.isfinite().all() for tensor in saved.tensors.values())


def test_a_bad_weight_after_the_last_step_of_an_epoch_is_seen_before_it_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The epoch's losses were fine."""
    original = Stepper.__call__
    steps: list[int] = []

    def call(stepper: Stepper, now: Any, epoch: int, lr: float, *batch: Any) -> None:
        original(stepper, now, epoch, lr, *batch)
        steps.append(epoch)
        if len(steps) == 8:
            with torch.no_grad():
                not_a_number(stepper)

    monkeypatch.setattr(Stepper, "__call__", call)
    with pytest.raises(TrainingStopped, match="a parameter is not a number after epoch 2"):
        fit(tmp_path / "run", recipe("at"))
    assert open_run(tmp_path / "run").states()[-1].name == "state-0001"


def test_an_interrupted_epoch_that_went_wrong_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Spoil(2, not_a_number).into(monkeypatch)
    with pytest.raises(TrainingStopped, match="not a number"):
        fit(tmp_path / "run", recipe("at"), reporter=StopAfter(10))
    assert open_run(tmp_path / "run").states()[-1].name == "state-0002"


def test_weights_of_zero_stop_a_run(tmp_path: Path) -> None:
    """Hinge weights of examples that are all safe, with a fixed factor, are all zero."""
    method = recipe("mail-at", weight=Hinge(slope=1.0, bias=-1.0), normalizer=Fixed(), burn_in_epochs=2)
    with pytest.raises(TrainingStopped, match="every weight of epoch 3 is zero"):
        fit(tmp_path / "run", method)
    assert open_run(tmp_path / "run").states()[-1].name == "state-0002"


def test_a_constant_prediction_before_anything_was_learnt_is_no_collapse() -> None:
    labels = torch.arange(100) % 2
    learnt = above_chance(labels)
    assert 0.7 < learnt < 0.8
    sums = [100.0, 1.0, 50.0, 50.0, 100.0, 100.0, 100.0, 100.0]
    check_collapse(0, sums, top_accuracy=0.6, learnt=learnt)
    with pytest.raises(TrainingStopped, match="class 1"):
        check_collapse(0, sums, top_accuracy=0.9, learnt=learnt)
    check_collapse(0, [*sums[:6], 99.0, 99.0], top_accuracy=0.9, learnt=learnt)


def test_an_attack_that_cannot_leave_the_image_is_refused(tmp_path: Path) -> None:
    stuck = {"loss": "kl", "start": "zero", "eps": 0.1, "num_steps": 2}
    later = Phase(from_epoch=1, set={"attack.start": "zero"})
    attacks = [PGD(**stuck), EarlyStopPGD(**stuck), LMPGD(**stuck)]  # type: ignore[arg-type]
    for method in (*(recipe("trades", attack=one) for one in attacks), recipe("trades", phases=(later,))):
        with pytest.raises(UsageError, match=r"use attack\.start=normal_1e-3"):
            fit(tmp_path / "run", method)
    assert not (tmp_path / "run").exists()
    check_every_epoch(recipe("trades", attack=EarlyStopPGD(**stuck, step_noise=0.01)))  # type: ignore[arg-type]


def test_a_reflection_larger_than_the_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"augment\.pad is 4, and images of 4x4 .* lower it"):
        fit(tmp_path / "run", recipe(augment=Augment(pad=4, padding="reflect")))
    assert not (tmp_path / "run").exists()
    check_crop(Augment(pad=7, padding="reflect"), (8, 8))
    check_crop(Augment(pad=8), (8, 8))


def test_a_longer_step_reaches_the_surface() -> None:
    for eps in (0.1, 1 / 3, 0.7, 0.0123456):
        step = longer_step(PGD(eps=eps, step_size=0.0001, num_steps=4))
        assert step is not None
        assert 4 * step >= eps


def test_a_divergence_of_two_directions_is_said() -> None:
    later = Phase(from_epoch=1, set={"objective.kl_direction": "adv_nat"})
    assert split_directions(recipe("trades", phases=(later,))) is not None
    one = resolve("mail-trades", settings={"objective.kl_direction": "adv_nat"})
    assert "such as --set attack.kl_direction=adv_nat" in str(split_directions(one))
    both = resolve("trades", settings={"objective.kl_direction": "adv_nat", "attack.kl_direction": "adv_nat"})
    assert split_directions(both) is None
    assert split_directions(resolve("mart", settings={"objective.kl_direction": "adv_nat"})) is None, "its attack is CE"
    assert split_directions(resolve("at")) is None


def test_a_run_that_ends_at_chance_says_so(tmp_path: Path) -> None:
    spread = 4 * math.sqrt(0.09 / 1000)
    lucky = luck(torch.arange(1000) % 10)
    assert lucky == pytest.approx((0.1 - spread, 0.1 + spread))
    assert luck(torch.tensor([0] * 900 + [2] * 100)) == pytest.approx((0.1 - spread, 0.9 + spread))
    shares = {"natural_accuracy": None, "robust_accuracy": 0.13}
    said = "ends at chance: in its last epoch 13.0% of the attacked training images are right"
    assert said in str(chance_line(shares, lucky))
    assert "of the training images" in str(chance_line({**shares, "natural_accuracy": 0.11}, lucky))
    assert chance_line({**shares, "natural_accuracy": 0.5}, lucky) is None
    assert chance_line({"natural_accuracy": 0.2, "robust_accuracy": None}, lucky) is None
    assert chance_line({"natural_accuracy": None, "robust_accuracy": 0.02}, lucky) is None, "an attack that succeeds"
    for lr, is_stuck in ((1e-9, True), (0.1, False)):
        reporter = Listener()
        fit(tmp_path / f"run-{lr}", recipe("at", lr=lr), reporter=reporter)
        assert any("ends at chance" in line for line in reporter.said) == is_stuck


def too_much() -> None:
    torch.empty(2**60, dtype=torch.uint8)


def cuda_is_full() -> None:
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nmore lines")


def python_is_full() -> None:
    raise MemoryError


@pytest.mark.parametrize("fill", [cuda_is_full, too_much, python_is_full])
def test_memory_that_ends_names_a_batch_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fill: Callable[[], None]
) -> None:
    def full(*arguments: object) -> None:
        fill()

    _, path = fit(tmp_path / "run", recipe("at", epochs=2))
    kept = states(path)
    for state in open_run(path).states()[1:]:
        state.with_suffix(".json").unlink()
    monkeypatch.setattr(Stepper, "step", full)
    with pytest.raises(TrainingStopped, match="batch size 16; half of it should fit: --batch-size 8") as stopped:
        fit(path, recipe("at", epochs=2), resume=True)
    assert "\n" not in str(stopped.value)
    assert states(path)["state-0001.safetensors"] == kept["state-0001.safetensors"]


def test_another_failure_is_not_taken_for_memory_that_ends() -> None:
    with pytest.raises(RuntimeError, match="sizes differ"), out_of_memory_named(16):
        raise RuntimeError("sizes differ")


@pytest.mark.parametrize(
    ("images", "batch_size", "processes", "advice"),
    [
        (33, 16, 1, "33 images in batches of 16 leave one image by itself, .* use --batch-size 15"),
        (9, 1, 1, "use --batch-size 3"),
        (1437, 205, 2, "in batches of 205 over 2 processes leave one image by itself, .* use --batch-size 204"),
        (66, 3, 2, "use --batch-size 6"),
        (3, 3, 2, "use more images or fewer processes"),
    ],
)
def test_one_image_for_batch_norm_of_vectors_is_refused(
    images: int, batch_size: int, processes: int, advice: str
) -> None:
    shape = (1, 4, 4)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    with pytest.raises(UsageError, match=advice):
        check_last_batch(model, shape, images, batch_size, processes)
    check_last_batch(nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), shape, images, batch_size, processes)
    if found := re.search(r"batch-size (\d+)", advice):
        check_last_batch(model, shape, images, int(found[1]), processes)


def test_a_phase_that_would_be_ignored_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a phase cannot change weight_decay"):
        fit(tmp_path / "run", recipe(phases=(Phase(from_epoch=2, set={"weight_decay": 0.1}),)))
    assert not (tmp_path / "run").exists()


def test_a_bar_on_a_terminal_sees_a_bad_loss_within_the_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Live(Reporter):
        is_live = True

    monkeypatch.setattr("probmargin.training.loop._GLANCE_SECONDS", 0.0)
    Spoil(2, not_a_number).into(monkeypatch)
    reporter = Live(quiet=True)
    steps: list[int] = []
    monkeypatch.setattr(reporter, "advance", lambda: steps.append(1))
    with pytest.raises(TrainingStopped, match="not a number"):
        fit(tmp_path / "run", recipe("at"), reporter=reporter)
    assert len(steps) == 10
