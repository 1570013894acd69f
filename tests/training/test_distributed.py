"""Several processes train as one does. Gloo on CPUs: NCCL is not run here."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from training_runs import recipe

from probmargin.core.errors import UsageError
from probmargin.engine.compile import CompileMode
from probmargin.engine.distributed import World, process_group
from probmargin.runs.run import open_run
from probmargin.training import assemble
from probmargin.training.distributed import check_shares, with_sync_bn
from probmargin.training.guards import TrainingStopped
from probmargin.training.loop import Trainer
from probmargin.training.network import Network
from probmargin.training.progress import Reporter
from probmargin.training.state import TrainState

HERE = Path(__file__).parent


def torchrun(processes: int, *arguments: str) -> list[str]:
    head = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [*head, *arguments]


def worker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gloo_worker", HERE / "gloo_worker.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("processes", "size"), [(2, 128), pytest.param(3, 65, marks=pytest.mark.slow)])
def test_processes_share_one_batch_as_one_process_does(tmp_path: Path, processes: int, size: int) -> None:
    """Two of 64 are one of 128, and shares of 21, 22 and 22 are one of 65: gradients, new weights and sums.

    So it is in a loop of one's own, by `mail_loss`, also where torch's wrapper lies inside another, and where a network
    has a parameter that nothing uses.
    """
    out = tmp_path / "found.safetensors"
    command = torchrun(processes, str(HERE / "gloo_worker.py"), str(out), str(size))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)
    assert result.returncode == 0, result.stderr[-3000:]
    shared, module = load_file(out), worker()
    for name in module.METHODS:
        alone = module.one_step(name, World(), size)
        assert max(float(value.abs().max()) for key, value in alone.items() if "grad" in key) > 1e-4
        for key, value in alone.items():
            torch.testing.assert_close(shared[f"{name}: {key}"], value, rtol=0, atol=1e-9, equal_nan=True, msg=name)
    for name in module.OWN_LOOP:
        for how in ("wrapped", "averaged", *(module.AROUND if name in module.HIDDEN else ())):
            for key, value in module.own_loop(name, World(), size, wrapped=True).items():
                found = shared[f"{name}, {how}: {key}"]
                torch.testing.assert_close(found, value, rtol=0, atol=1e-9, msg=f"{name}, {how}: {key}")
    for name in module.HIDDEN:
        for key, value in module.left_out(name, World(), size).items():
            torch.testing.assert_close(
                shared[f"{name}, left out: {key}"], value, rtol=0, atol=1e-9, msg=f"{name}: {key}"
            )
    means = torch.stack([module.statistics(World(), World(rank, processes), size) for rank in range(processes)])
    assert means.std(dim=0).max() > 1e-4
    torch.testing.assert_close(shared["statistics"], means.mean(dim=0), rtol=0, atol=1e-12)
    torch.testing.assert_close(shared["statistics of all"], processes * shared["statistics"], rtol=0, atol=1e-12)

    check_buffers(shared, [module.followed(World(), World(rank, processes), size) for rank in range(processes)])


def check_buffers(shared: dict[str, torch.Tensor], each: list[dict[str, torch.Tensor]]) -> None:
    """Floating buffers have become the mean of what each process alone would have; whole numbers stay its own."""
    for name, value in each[0].items():
        alone = torch.stack([buffers[name] for buffers in each]).double()
        is_still = name in ("1.stays", "1.counts", "2.num_batches_tracked")
        assert is_still or alone.std(dim=0).max() > 1e-6
        found = shared[f"followed: {name}"]
        assert found.dtype == value.dtype
        torch.testing.assert_close(found.double(), alone.mean(dim=0), rtol=0, atol=1e-7 if is_still else 1e-12)
    assert torch.equal(shared["followed: 1.stays"], each[0]["1.stays"])


def test_every_row_belongs_to_one_process() -> None:
    for count in (1, 7, 64, 65):
        for size in (1, 2, 3, 8):
            rows = [row for rank in range(size) for row in range(count)[World(rank, size).rows(count)]]
            assert rows == list(range(count))


def test_alone_nothing_is_sent() -> None:
    with process_group(torch.device("cpu")) as world:
        total = torch.ones(2)
        assert world == World()
        assert world.reduce(total) is total
        assert world.any(True)
        assert not world.any(False)
        assert world.from_writer(lambda: 3) == 3


def test_where_the_writing_process_fails_the_others_end_with_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def received(answer: list[Any], **_: object) -> None:
        answer[:] = [None, 2]

    monkeypatch.setattr(torch.distributed, "broadcast_object_list", received)
    with pytest.raises(SystemExit, match=r"^2$"):
        World(1, 2).from_writer(lambda: pytest.fail("the writing process alone makes it"))


def test_a_batch_too_small_for_the_processes_is_refused() -> None:
    check_shares(65, 16, World(0, 1))
    with pytest.raises(UsageError, match="1 images for 2 processes"):
        check_shares(65, 16, World(0, 2))
    with pytest.raises(UsageError, match="--sync-bn"):
        with_sync_bn(torch.nn.BatchNorm2d(3), torch.device("cpu"))


@pytest.mark.parametrize(
    ("is_cuda", "mode"), [(True, "default"), (True, "max-autotune"), (True, "off"), (False, "default")]
)
def test_processes_on_cuda_say_that_nothing_is_compiled(
    monkeypatch: pytest.MonkeyPatch, is_cuda: bool, mode: CompileMode
) -> None:
    monkeypatch.setattr(assemble, "DistributedNetwork", lambda model, precision, *_: Network(model, precision))
    images: Any = SimpleNamespace(labels=SimpleNamespace(is_cuda=is_cuda), images=torch.zeros(1, 2))
    state = TrainState.fresh(torch.nn.Linear(2, 2), recipe("at"))
    stepper = assemble.make_stepper(state, images, recipe("at"), 1, assemble.Hardware("fp32", World(0, 2), mode))
    said = [note for note in stepper.network.notes if "operation by operation: nothing is compiled" in note]
    assert len(said) == (is_cuda and mode != "off")


@pytest.mark.parametrize(
    ("said", "is_lost"), [("[/gloo/transport/tcp/pair.cc:553] Connection closed by peer", True), ("bad shapes", False)]
)
def test_only_a_lost_process_is_called_one(said: str, is_lost: bool) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError(said)

    state = SimpleNamespace(epoch=0, batch=0)
    trainer: Any = SimpleNamespace(method=recipe("at"), state=state, num_batches=1, is_finished=False)
    trainer.reporter, trainer.world, trainer.states = Reporter(quiet=True), World(0, 2), nullcontext()
    trainer._train_epoch = fails
    kind, words = (TrainingStopped, "a process of this run is lost") if is_lost else (RuntimeError, "^bad shapes$")
    with pytest.raises(kind, match=words):
        Trainer.fit(trainer)


TRAIN = ("-m", "probmargin", "train", "--data", "digits", "--model", "small-cnn", "--device", "cpu", "--method", "at")


@pytest.mark.slow
def test_a_run_of_two_processes_stops_together_and_goes_on_with_one(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    options = (
        "--epochs",
        "12",
        "--batch-size",
        "64",
        "--set",
        "attack.num_steps=2",
        "--dynamics",
        "--validation",
        "100",
    )
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    done = subprocess.run(
        torchrun(2, *TRAIN, *options, "--out", str(whole)),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("judge it with") == 1
    assert len(open_run(whole).metrics) == 12
    process = subprocess.Popen(
        torchrun(2, *TRAIN, *options, "--out", str(cut)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    while not (cut / "metrics.jsonl").exists() or len(open_run(cut).metrics) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode != 0
    assert open_run(cut).states()
    rows = len(open_run(cut).metrics)
    assert 2 <= rows < 12
    resumed = subprocess.run(
        [sys.executable, *TRAIN, *options, "--out", str(cut), "--resume"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=300,
    )
    assert resumed.returncode == 0, resumed.stderr
    assert [row["epoch"] for row in open_run(cut).metrics] == list(range(12))
    for first, second in zip(open_run(whole).metrics[:rows], open_run(cut).metrics[:rows], strict=True):
        assert first["loss"] == pytest.approx(second["loss"], rel=1e-9)
    # Alone, batch norm sees 64 images at once where each of two processes saw 32: the ends are alike, not equal.
    ends = [open_run(path).metrics[-1]["robust_accuracy"] for path in (whole, cut)]
    assert min(ends) > 0.9
    assert ends[0] == pytest.approx(ends[1], abs=0.03)


@pytest.mark.slow
def test_a_lost_process_ends_the_run_with_its_state_intact(tmp_path: Path) -> None:
    run = tmp_path / "run"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = torchrun(2, *TRAIN, "--epochs", "200", "--keep-epochs", "1,2", "--out", str(run))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    while not (run / "checkpoints" / "state-0002.json").exists():
        assert process.poll() is None
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode not in (0, None)
    assert "a process of this run is lost" in err
    _, saved, notes = open_run(run).load_state()
    assert not notes
    assert saved.facts["epoch"] >= 2
