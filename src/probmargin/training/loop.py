"""The training loop: the same for every method."""

import math
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from probmargin.core.errors import Interrupted
from probmargin.data.dataset import ImageSet
from probmargin.engine.distributed import is_lost_process
from probmargin.engine.files import append_json_line
from probmargin.engine.signals import stop_signals
from probmargin.methods.method import Method
from probmargin.reporting.dynamics import ROWS
from probmargin.runs.run import Run
from probmargin.training.assemble import Hardware, make_stepper
from probmargin.training.batches import Batches
from probmargin.training.board import Board
from probmargin.training.examples import Dynamics, unknown_rows
from probmargin.training.feed import Feed
from probmargin.training.forecast import Pace
from probmargin.training.guards import (
    TrainingStopped,
    above_chance,
    chance_line,
    check_collapse,
    check_finite,
    check_numbers,
    check_signs,
    check_weights,
    luck,
    out_of_memory_named,
)
from probmargin.training.layers import seed_layers
from probmargin.training.network import to_training_mode
from probmargin.training.progress import Reporter
from probmargin.training.saving import States
from probmargin.training.state import TrainState
from probmargin.training.validation import Judge, Monitors, Validation

_GLANCE_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """How a run is carried out, beside its recipe."""

    seed: int = 1
    hardware: Hardware = field(default_factory=Hardware)
    keep_epochs: tuple[int, ...] = ()
    """States after these many epochs are kept for good."""
    save_seconds: float = 30.0
    """Least time between two saved states that nobody asked for."""
    counts_steps: bool = False
    """Have attacks record which of their steps an example survived."""


@dataclass(frozen=True, kw_only=True)
class Watchers:
    """What looks at a run; none of it changes a step."""

    reporter: Reporter
    validation: Validation | None = None
    monitors: Monitors | None = None
    dynamics: Dynamics | None = None
    board: Board | None = None


def summary(epoch: int, lr: float, sums: list[float], images_per_second: float) -> dict[str, Any]:
    """An epoch's line from what its steps have added up."""
    return {
        "epoch": epoch,
        "lr": lr,
        "loss": sums[1] / sums[0],
        "natural_accuracy": None if math.isnan(sums[2]) else sums[2] / sums[0],
        "robust_accuracy": None if math.isnan(sums[3]) else sums[3] / sums[0],
        "weight_mean": sums[4] / sums[0],
        "effective_sample_size": sums[4] ** 2 / sums[5] if sums[5] > 0 else 0.0,
        "images_per_second": images_per_second,
    }


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
        watchers: Watchers,
        feed: Feed | None = None,
    ) -> None:
        self.run = run
        self.method = method
        self.state = state
        self.train = train
        self.settings = settings
        self.watchers = watchers
        self.reporter = watchers.reporter
        self.world = settings.hardware.world
        self.feed = feed
        self.stepper = make_stepper(state, train, method, settings.seed, settings.hardware)
        self.stepper.say = self.reporter.say
        self.stepper.counts_steps = settings.counts_steps
        for note in self.stepper.network.notes:
            self.reporter.say(note)
        own_batch = math.ceil(method.batch_size / self.world.size)
        self.judge = Judge(self.stepper.network, self.world, own_batch)
        self.batches = Batches(train, feed, method, settings.seed, self.world)
        self.num_batches = self.batches.count
        self.learnt = above_chance(train.labels)
        self.luck = luck(train.labels)
        self._last: dict[str, Any] | None = None
        kept = [run.state_path(epochs).name for epochs in (*settings.keep_epochs, method.burn_in_end)]
        self.states = States(run, method.hash(), kept, watchers.dynamics)
        self._saved_at = -math.inf
        self._glanced_at = 0.0
        self._steps_left = 0
        self._pace = Pace(train.labels.device, self.reporter.say)

    @property
    def is_finished(self) -> bool:
        """Is every epoch trained, or has patience run out?"""
        validation = self.watchers.validation
        is_over = validation is not None and validation.is_over(self.state.best)
        return self.state.batch == 0 and (self.state.epoch >= self.method.epochs or is_over)

    def fit(self) -> None:
        """Train to the end of the recipe; raises Interrupted when asked to stop, after saving."""
        remaining = [epoch for epoch in self.method.epoch_plan() if epoch >= self.state.epoch]
        done = self.state.batch
        self._steps_left = len(remaining) * self.num_batches - done
        self.reporter.start(self.method.method, len(remaining) * self.num_batches, done)
        try:
            # A first signal while the last state is written finds the run at its end.
            with stop_signals(patient=self.world.size > 1) as asked, self.states:
                for epoch in remaining:
                    if self.is_finished:
                        break
                    self._train_epoch(epoch, asked)
        except RuntimeError as error:
            if self.world.size == 1 or isinstance(error, TrainingStopped) or not is_lost_process(error):
                raise
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise TrainingStopped(f"a process of this run is lost; go on with --resume ({reason})") from error
        finally:
            self.reporter.stop()
        if self._last is not None and (line := chance_line(self._last, self.luck)):
            self.reporter.say(line)

    def _train_epoch(self, epoch: int, asked: threading.Event) -> None:
        state = self.state
        if state.batch == 0:
            state.begin_epoch(epoch)
            if self.method.fresh_momentum_at(epoch):
                state.memory.forget()
        began, images = time.perf_counter(), 0
        now = self.method.at(epoch)
        to_training_mode(state.model)
        for batch, chosen in self.batches.of_epoch(epoch, state.batch):
            lr = self.method.lr_at(epoch, batch, self.num_batches)
            seed_layers(self.train.labels.device, self.settings.seed, epoch, batch, self.world.rank)
            with out_of_memory_named(self.method.batch_size):
                self.stepper(now, epoch, lr, chosen)
            if self.feed is not None:
                self.feed.step_done()
            images += min(self.method.batch_size, len(self.train) - batch * self.method.batch_size)
            state.batch = batch + 1
            self._show(epoch, lr, images / (time.perf_counter() - began))
            if self.world.any(asked.is_set()) and state.batch < self.num_batches:
                self._count_time(began, images)
                self._interrupt()
        metrics = self._close_epoch(epoch, began, images)
        self.reporter.epoch(metrics, self.method.epochs)
        if self.world.any(asked.is_set()) and not self.is_finished:
            self._interrupt()

    def _show(self, epoch: int, lr: float, images_per_second: float) -> None:
        """Tell the user how it goes; the device is waited for once a second at most, and only for a bar."""
        self.reporter.advance()
        self._steps_left -= 1
        self._pace.step(self._steps_left)
        if self.reporter.is_live and time.monotonic() - self._glanced_at > _GLANCE_SECONDS:
            self._glanced_at = time.monotonic()
            assert self.state.sums is not None
            sums = self.state.sums.tolist()
            check_finite(epoch, sums[1])
            self.reporter.glance(summary(epoch, lr, sums, images_per_second), self.method.epochs)

    def _close_epoch(self, epoch: int, began: float, images: int) -> dict[str, Any]:
        """Judge the epoch, write its line and, where due, begin to write the state."""
        state = self.state
        assert state.sums is not None
        sums = self.world.reduce(state.sums).tolist()
        self._check(epoch, sums)
        seconds = self._count_time(began, images)
        lr = self.method.lr_at(epoch, self.num_batches - 1, self.num_batches)
        metrics = summary(epoch, lr, sums, images / seconds if seconds > 0 else 0.0)
        state.top_accuracy = max(state.top_accuracy, metrics["robust_accuracy"] or metrics["natural_accuracy"] or 0.0)
        if self.feed is not None:
            metrics["data_wait_share"] = round(min(self.feed.waited() / seconds, 1.0), 4) if seconds > 0 else 0.0
        is_best = self._look(epoch, metrics)
        self._record(epoch, metrics)
        self._last = metrics
        state.epoch, state.batch, state.sums = epoch + 1, 0, None
        if is_best or self._is_due():
            self._save(is_best=is_best)
        return metrics

    def _check(self, epoch: int, sums: list[float]) -> None:
        assert self.state.examples is not None
        weights, margins = (self.state.examples[ROWS.index(name)] for name in ("weight", "recipe_margin"))
        name = self.method.at(epoch).weight.registered_name
        is_lost = bool((~weights.isfinite() & margins.isfinite()).any())
        check_numbers(epoch, name, self.world.any(is_lost))
        check_finite(epoch, sums[1])
        check_weights(epoch, list(self.state.model.parameters()))
        check_collapse(epoch, sums, self.state.top_accuracy, self.learnt)
        check_signs(epoch, name, self.world.any(bool((weights < 0).any())))

    def _look(self, epoch: int, metrics: dict[str, Any]) -> bool:
        """Judge the model where due; is it the best so far on the held-out images?"""
        validation, monitors = self.watchers.validation, self.watchers.monitors
        if monitors is not None and monitors.is_due(epoch):
            with self.state.averaged():
                metrics["monitors"] = monitors.look(self.judge)
        if validation is None or not validation.is_due(epoch):
            return False
        with self.state.averaged():
            metrics["validation"] = validation.look(self.judge)
        self.state.best, is_best = validation.update(self.state.best, metrics["validation"], epoch + 1)
        return is_best

    def _record(self, epoch: int, metrics: dict[str, Any]) -> None:
        """Write the epoch's line, its events, and what its examples did."""
        assert self.state.examples is not None
        examples = self.world.reduce(self.state.examples)
        if not self.world.is_writer:
            return
        append_json_line(self.run.metrics_path, metrics)
        values = examples.cpu().numpy()
        if self.watchers.board is not None:
            parts = {name: values[ROWS.index(name)] for name in ("margin", "weight")}
            self.watchers.board.epoch(metrics, **parts)
        if self.watchers.dynamics is not None:
            now = self.method.at(epoch)
            self.watchers.dynamics.add(epoch, values, unknown_rows(now), now.margin.registered_name)

    def mend_best(self) -> None:
        """Write the best state where a kill has cut it off."""
        if self.world.is_writer:
            self.states.mend_best(self.state)

    def _count_time(self, began: float, images: int) -> float:
        seconds = time.perf_counter() - began
        self.state.seconds += seconds
        self.state.images += images
        return seconds

    def _interrupt(self) -> None:
        self._save()
        self.states.wait()
        path = self.run.checkpoints_path / self.state.name
        # The first process to end makes torchrun end the others: none goes before the state is written.
        self.world.wait()
        raise Interrupted(f"interrupted; state saved as {path}; go on with --resume")

    def _is_due(self) -> bool:
        # The writer's clock decides, since all processes must save together.
        waited = self.world.is_writer and time.monotonic() - self._saved_at >= self.settings.save_seconds
        asked_for = (*self.settings.keep_epochs, self.method.burn_in_end, self.method.epochs)
        return self.world.any(waited) or self.state.epoch in asked_for or self.is_finished

    def _save(self, *, is_best: bool = False) -> None:
        """Begin to write the state as it is now, where this process writes."""
        if self.state.batch and self.state.sums is not None:
            self._gather()
        if self.world.is_writer:
            self.states.save(self.state, is_best=is_best)
        self._saved_at = time.monotonic()

    def _gather(self) -> None:
        """Bring what an epoch under way has added up to the process that writes."""
        assert self.state.sums is not None
        total = self.world.reduce(self.state.sums)
        examples = None if self.state.examples is None else self.world.reduce(self.state.examples)
        check_finite(self.state.epoch, total.tolist()[1])
        check_weights(self.state.epoch, list(self.state.model.parameters()))
        self.state.sums, self.state.examples = total, examples
