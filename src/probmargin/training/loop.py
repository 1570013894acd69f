"""The training loop: the same for every method."""

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from probmargin.data.augment import epoch_augmentation, epoch_order
from probmargin.data.dataset import ImageSet
from probmargin.engine import checkpoints
from probmargin.engine.devices import Precision
from probmargin.engine.files import append_json_line, written_aside
from probmargin.methods.method import Method
from probmargin.methods.plain import at_epoch
from probmargin.runs.run import Run
from probmargin.training.network import Network
from probmargin.training.progress import Reporter
from probmargin.training.state import NUM_SUMS, TrainState
from probmargin.training.stepper import Stepper


class TrainingStopped(RuntimeError):
    """Training cannot go on; what was saved before stays."""


class Interrupted(Exception):
    """The user or the system asked to stop; the state is saved."""


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """How a run is carried out, beside its recipe."""

    seed: int = 1
    precision: Precision = "fp32"
    keep_epochs: tuple[int, ...] = ()
    """States after these many epochs are kept for good."""
    save_seconds: float = 10.0
    """Least time between two saved states that nobody asked for."""


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Set an event on Ctrl-C or SIGTERM instead of breaking off; a second one breaks off."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    found = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in found.items():
            signal.signal(number, handler)


class Trainer:
    """Trains a model by a recipe, from wherever its state stands."""

    def __init__(
        self,
        run: Run,
        method: Method,
        state: TrainState,
        train: ImageSet,
        *,
        settings: LoopSettings,
        reporter: Reporter,
    ) -> None:
        self.run = run
        self.method = method
        self.state = state
        self.train = train
        self.settings = settings
        self.reporter = reporter
        network = Network(state.model, settings.precision)
        self.stepper = Stepper(network, state, train, method.augment, settings.seed)
        self.num_batches = math.ceil(len(train) / method.batch_size)
        self._saved_at = time.monotonic()

    def fit(self) -> None:
        """Train to the end of the recipe; raises Interrupted when asked to stop, after saving."""
        remaining = [epoch for epoch in self.method.epoch_plan() if epoch >= self.state.epoch]
        done = self.state.batch
        self.reporter.start(self.method.method, len(remaining) * self.num_batches, done)
        try:
            with _stop_signals() as asked:
                for epoch in remaining:
                    self._train_epoch(epoch, asked)
        finally:
            self.reporter.stop()

    def _train_epoch(self, epoch: int, asked: threading.Event) -> None:
        state = self.state
        if state.batch == 0:
            state.epoch = epoch
            state.sums = torch.zeros(NUM_SUMS, dtype=torch.float64, device=self.train.images.device)
            if self.method.fresh_momentum_at(epoch):
                state.forget_momentum()
        began, images = time.perf_counter(), 0
        now = at_epoch(self.method, epoch)
        state.model.train()
        for batch, positions, draws in self._batches(epoch):
            lr = self.method.lr_at(epoch, batch, self.num_batches)
            self.stepper(now, epoch, lr, positions, draws)
            images += len(positions)
            state.batch = batch + 1
            self.reporter.advance()
            if asked.is_set() and state.batch < self.num_batches:
                self._count_time(began, images)
                self._interrupt()
        metrics = self._close_epoch(epoch, began, images)
        self.reporter.epoch(metrics, self.method.epochs)
        if asked.is_set() and state.epoch < self.method.epochs:
            self._interrupt()

    def _batches(self, epoch: int) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """Number, positions and augmentation of the batches that are left of an epoch."""
        device, seed = self.train.images.device, self.settings.seed
        order = epoch_order(len(self.train), seed=seed, epoch=epoch).to(device)
        settings = self.method.augment
        draws = epoch_augmentation(len(self.train), pad=settings.pad, flip=settings.flip, seed=seed, epoch=epoch)
        draws = draws.to(device)
        for batch in range(self.state.batch, self.num_batches):
            positions = order[batch * self.method.batch_size : (batch + 1) * self.method.batch_size]
            yield batch, positions, draws[positions]

    def _close_epoch(self, epoch: int, began: float, images: int) -> dict[str, Any]:
        """Write the epoch's line and, where due, the state."""
        state = self.state
        assert state.sums is not None
        sums = state.sums.tolist()
        if not math.isfinite(sums[1]):
            raise TrainingStopped(f"the loss of epoch {epoch} is not a number; lower the learning rate (--set lr=...)")
        seconds = self._count_time(began, images)
        metrics = {
            "epoch": epoch,
            "lr": self.method.lr_at(epoch, self.num_batches - 1, self.num_batches),
            "loss": sums[1] / sums[0],
            "natural_accuracy": None if math.isnan(sums[2]) else sums[2] / sums[0],
            "robust_accuracy": None if math.isnan(sums[3]) else sums[3] / sums[0],
            "weight_mean": sums[4] / sums[0],
            "effective_sample_size": sums[4] ** 2 / sums[5] if sums[5] > 0 else 0.0,
            "images_per_second": images / seconds if seconds > 0 else 0.0,
        }
        append_json_line(self.run.metrics_path, metrics)
        state.epoch, state.batch, state.sums = epoch + 1, 0, None
        if self._is_due():
            self.save()
        return metrics

    def _count_time(self, began: float, images: int) -> float:
        seconds = time.perf_counter() - began
        self.state.seconds += seconds
        self.state.images += images
        return seconds

    def _interrupt(self) -> None:
        path = self.save()
        raise Interrupted(f"interrupted; state saved as {path}; go on with --resume")

    def _is_due(self) -> bool:
        waited = time.monotonic() - self._saved_at >= self.settings.save_seconds
        asked_for = (*self.settings.keep_epochs, self.method.burn_in_epochs, self.method.epochs)
        return waited or self.state.epoch in asked_for

    def save(self) -> str:
        """Save the state; the last two and those asked for stay."""
        path = self.run.checkpoints_path / self.state.name
        checkpoints.save(path, self.state.checkpoint({"recipe_hash": self.method.hash()}))
        kept = {f"state-{epoch:04d}" for epoch in (*self.settings.keep_epochs, self.method.burn_in_epochs)}
        for old in [path for path in self.run.states() if path.name not in kept][:-2]:
            checkpoints.remove(old)
        self._saved_at = time.monotonic()
        return str(path)


def trim_metrics(run: Run, epoch: int) -> None:
    """Drop the lines of epochs that are trained again after a resume."""
    rows = [row for row in run.metrics if row["epoch"] < epoch]
    with written_aside(run.metrics_path) as aside:
        aside.touch()
        for row in rows:
            append_json_line(aside, row)
