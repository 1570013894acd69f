"""Dropout and its like draw from the run's seed alone."""

from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from blobs import blobs
from torch import nn
from training_runs import StopAfter, fit, recipe, same

from probmargin.core.errors import Interrupted
from probmargin.engine.distributed import World
from probmargin.engine.graphs import capture
from probmargin.models.build import build_model
from probmargin.runs.run import Run
from probmargin.training.layers import own_draws, seed_layers
from probmargin.training.loop import LoopSettings, Trainer


def forgetful() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))


@pytest.mark.parametrize("steps", [2, 9])
def test_a_model_with_dropout_trains_and_goes_on_to_the_bit(tmp_path: Path, steps: int) -> None:
    method = recipe("mail-trades", epochs=3)
    torch.manual_seed(1)
    whole, _ = fit(tmp_path / "whole", method, model=forgetful())
    torch.manual_seed(2)
    assert same(whole, fit(tmp_path / "again", method, model=forgetful())[0])
    with pytest.raises(Interrupted):
        fit(tmp_path / "cut", method, model=forgetful(), reporter=StopAfter(steps))
    torch.manual_seed(3)
    resumed, _ = fit(tmp_path / "cut", method, model=forgetful(), resume=True)
    assert same(whole, resumed)
    assert not same(whole, fit(tmp_path / "other", method, model=forgetful(), seed=2)[0])


def test_training_leaves_the_callers_generator_alone(tmp_path: Path) -> None:
    model = forgetful()
    before = torch.get_rng_state()
    fit(tmp_path / "run", recipe("at", epochs=2), model=model)
    assert torch.equal(before, torch.get_rng_state())


def test_a_check_of_a_last_image_leaves_the_callers_generator_alone(tmp_path: Path) -> None:
    model, method = forgetful(), recipe("at", epochs=1)
    before = torch.get_rng_state()
    fit(tmp_path / "run", replace(method, batch_size=len(blobs().train) - 1), model=model)
    assert torch.equal(before, torch.get_rng_state())


def test_building_a_network_seeds_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail(f"GPUs are seeded with {seed}"))
    before = torch.get_rng_state()
    first, second = (build_model("small-cnn", num_classes=2, in_channels=1, seed=seed) for seed in (3, 3))
    assert same(first.state_dict(), second.state_dict())
    assert torch.equal(before, torch.get_rng_state())


def test_a_run_builds_its_network_again_by_its_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (
        "import torch",
        "class Net(torch.nn.Linear):",
        "    def __init__(self):",
        "        super().__init__(2, 2)",
        "        self.mix = torch.rand(4)",
    )
    (tmp_path / "mixed_net.py").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    settings: dict[str, Any] = {"num_classes": 2, "in_channels": 1}
    trained = cast(Any, build_model("mixed_net:Net", **settings, seed=7))
    kept = SimpleNamespace(path=tmp_path, record={"model": "mixed_net:Net", "model_settings": settings, "seed": 7})
    again = cast(Any, Run.rebuild(cast(Run, kept), trained.state_dict()))
    assert torch.equal(again.mix, trained.mix)
    assert not again.training


def test_steps_epochs_and_processes_draw_differently() -> None:
    device = torch.device("cpu")
    drawn = set()
    with own_draws(device):
        for keys in ((1, 0, 0, 0), (2, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1)):
            seed_layers(device, *keys)
            drawn.add(float(torch.rand(())))
    assert len(drawn) == 5


def test_a_step_draws_otherwise_on_each_process_of_a_run() -> None:
    drawn: list[float] = []
    data = blobs().train
    trainer: Any = SimpleNamespace(method=recipe("at"), train=data, settings=LoopSettings(), num_batches=1, feed=None)
    trainer.batches = SimpleNamespace(of_epoch=lambda epoch, done: [(0, slice(16))])
    trainer.stepper = lambda *_: drawn.append(float(torch.rand(())))
    trainer.reporter = SimpleNamespace(epoch=lambda *_: None)
    trainer._show = trainer._close_epoch = trainer.reporter.epoch
    with own_draws(torch.device("cpu")):
        for rank in (0, 1, 1):
            trainer.world, trainer.state = World(rank), SimpleNamespace(batch=1, model=forgetful())
            Trainer._train_epoch(trainer, 0, Event())
    assert drawn[0] != drawn[1] == drawn[2]


@pytest.mark.gpu
def test_a_captured_step_draws_from_the_seed_that_comes_before_it() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    drawn = torch.zeros(8, device=device)
    before = torch.cuda.get_rng_state()

    def work() -> None:
        drawn.copy_(torch.rand(8, device=device))

    graph = capture(work, [drawn])
    assert torch.equal(before, torch.cuda.get_rng_state())
    found = []
    for seed in (1, 2, 1):
        seed_layers(device, seed)
        graph.replay()
        found.append(drawn.clone())
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="asks for a second GPU")
def test_a_step_is_captured_on_the_device_of_its_tensors() -> None:
    count = torch.zeros((), device="cuda:1")

    def work() -> None:
        count.add_(1)

    graph = capture(work, [count])
    for _ in range(3):
        graph.replay()
    assert count.item() == 3
