"""Start, resume and finish a run."""

import math
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from probmargin.core.records import coerce
from probmargin.data.balance import imbalance
from probmargin.data.dataset import DataSet
from probmargin.data.files import FileImageSet
from probmargin.engine.checkpoints import Checkpoint, file_hash
from probmargin.engine.compile import CompileMode
from probmargin.engine.devices import pick_device, pick_precision, set_precision
from probmargin.engine.distributed import World, local_device, process_group
from probmargin.engine.environment import surroundings
from probmargin.engine.files import check_folder
from probmargin.engine.lock import held
from probmargin.evaluation.parts import weights_hash
from probmargin.methods.method import Method
from probmargin.methods.resolve import title
from probmargin.models.build import origin
from probmargin.runs.run import Run, model_files
from probmargin.training.assemble import Hardware
from probmargin.training.board import Board
from probmargin.training.distributed import check_shares, with_sync_bn
from probmargin.training.examples import Dynamics, empty_examples
from probmargin.training.feed import Placement, check_placement, place
from probmargin.training.folder import Beginning, kept_so_far
from probmargin.training.fork import Fork, Wishes, parse_fork
from probmargin.training.layers import own_draws
from probmargin.training.loop import LoopSettings, Trainer, Watchers
from probmargin.training.model import make_model
from probmargin.training.own_parts import check_own_parts
from probmargin.training.perturbation import moved_by_awp
from probmargin.training.plugins import of_no_file, plugin_facts
from probmargin.training.progress import Reporter, chosen_line
from probmargin.training.refusals import (
    check_batch,
    check_computes_once,
    check_crop,
    check_every_epoch,
    check_kept_epochs,
    check_last_batch,
    check_outside,
    check_phases,
)
from probmargin.training.remarks import remarks
from probmargin.training.request import TrainRequest
from probmargin.training.state import TrainState
from probmargin.training.training_set import prepare
from probmargin.training.validation import Monitors, Validation, parse_monitors


def train(method: Method, data: DataSet, request: TrainRequest, reporter: Reporter) -> tuple[Run, nn.Module]:
    """Train, or go on training, and return the run with the trained model."""
    device = pick_device(request.device)
    with torch.inference_mode(False), torch.enable_grad(), process_group(device) as world:
        own = reporter if world.is_writer else Reporter(quiet=True)
        device = local_device(device, world)
        with own_draws(device), ExitStack() as stack:
            return Training(method, data, request, own, world, device).carry_out(stack)


class Training:
    """One call of `train`: what it was given, and the pieces it makes of it."""

    def __init__(
        self,
        method: Method,
        data: DataSet,
        request: TrainRequest,
        reporter: Reporter,
        world: World,
        device: torch.device,
    ) -> None:
        self.method, self.data, self.request = method, data, request
        self.reporter, self.world, self.device = reporter, world, device
        self.run = Run(request.out)
        self.precision, note = pick_precision(request.precision, device)
        if note:
            reporter.say(note)
        set_precision(self.precision)
        check_phases(method)
        check_every_epoch(method)
        check_crop(method.augment, data.image_size)
        check_kept_epochs(request.keep_epochs, method.epochs, method.epoch_plan())
        self.images = prepare(data, request)
        self.placement = coerce(request.placement, Placement, "--placement")
        check_placement(self.images.train, self.placement)
        check_shares(len(self.images.train), method.batch_size, world)
        # A run that follows its examples goes on to: what is not recorded in an epoch cannot be had later.
        began = world.from_writer(lambda: request.resume and Run(request.out).dynamics_path.exists())
        self.follows_examples = request.dynamics or began
        self.keep_epochs = world.from_writer(self._kept_epochs)

    def _kept_epochs(self) -> tuple[int, ...]:
        """States kept for good: what an earlier start has kept, this one does not delete."""
        earlier = kept_so_far(self.run) if self.request.resume and self.run.record_path.exists() else []
        return tuple(dict.fromkeys((*earlier, *self.request.keep_epochs)))

    def carry_out(self, stack: ExitStack) -> tuple[Run, nn.Module]:
        """Open the folder, train, close the record; the folder is held until the stack is closed."""
        self.introduce()
        network = self.network()
        model, beginning = network[0], self.beginning(*network)
        dynamics, wishes = beginning.dynamics, beginning.wishes
        if self.request.sync_bn and self.world.size > 1:
            model = with_sync_bn(model, self.device)
        saved = self.world.from_writer(lambda: self._open(beginning, stack))
        state = TrainState.fresh(model.to(self.device), self.method)
        state.examples = empty_examples(len(self.images.train), self.device)
        if saved is not None:
            state.restore(saved)
        if dynamics is not None:
            dynamics.read(dynamics.path, state.epoch)
        if not self.world.is_writer:
            state.forget_sums()
        watchers = Watchers(
            reporter=self.reporter,
            validation=wishes.validation,
            monitors=wishes.monitors,
            dynamics=dynamics,
            board=Board(self.run.path, state.epoch) if self.world.is_writer else None,
        )
        self._fit(state, watchers)
        return self.run, _trained(state)

    def beginning(self, model: nn.Module, name: str, model_settings: dict[str, Any] | None) -> Beginning:
        """What decides the folder's contents before the first step; nothing is written yet."""
        identity = {
            "id": self.request.out.name,
            "recipe": self.method.plain(),
            "recipe_hash": self.method.hash(),
            "seed": self.request.seed,
            "data": self.data.name,
            "data_fingerprint": self._fingerprint(),
            "model": name,
            "model_settings": model_settings,
            "validation": self.request.validation,
            "label_noise": self.request.label_noise,
            "checkpoint": self._checkpoint(),
        }
        validation, monitors = self._validation(), self._monitors()
        fork = parse_fork(self.request.fork) if self.request.fork else None
        return Beginning(
            run=self.run,
            method=self.method,
            identity=identity,
            environment=self._environment(monitors)
            | plugin_facts(self.method, monitors.counts if monitors else ())
            | ({"model_files": files} if (files := model_files(model, name)) else {}),
            num_examples=len(self.images.train),
            shapes={name: tensor.shape for name, tensor in model.state_dict().items()},
            resume=self.request.resume,
            fork=fork,
            wishes=Wishes(validation, monitors, self.keep_epochs),
            wrong_labels=self.images.wrong_labels,
            dynamics=self._dynamics(fork),
        )

    def network(self) -> tuple[nn.Module, str, dict[str, Any] | None]:
        """The model, once it is known to train on these images; its name, and what builds it again."""
        model, name, model_settings = make_model(
            self.request.model,
            self.data,
            seed=self.request.seed,
            mean_std=self._mean_std() if self.request.normalize else None,
            checkpoint=self.request.checkpoint,
            new_head=self.request.new_head,
            log=self.reporter.say,
        )
        shape = (self.data.channels, *self.data.image_size)
        alone = 1 if self.request.sync_bn else self.world.size
        check_last_batch(model, shape, len(self.images.train), self.method.batch_size, alone)
        check_outside(model, self.images.train.take(range(1)).floats(), self.method.attack)
        if not isinstance(self.request.model, str) or ":" in self.request.model:
            whole = self.images.train.take(range(min(self.method.batch_size, len(self.images.train))))
            check_batch(model.to(self.device), whole.floats().to(self.device))
        check_own_parts(self.method, model, self.images.train, self.world.size)
        epochs = [self.method.at(epoch) for epoch in self.method.epoch_plan()]
        if any(now.awp for now in epochs):
            moved_by_awp(model)
        check_computes_once(model, shape, epochs, in_place=True)
        return model, name, model_settings

    def _open(self, beginning: Beginning, stack: ExitStack) -> Checkpoint | None:
        stack.enter_context(held(self.run.path))
        return beginning.open(self.reporter)

    def introduce(self) -> None:
        """Say what is imported and what the data is like, before time is spent."""
        check_folder(self.request.out, "--out")
        named = origin(self.request.model) if isinstance(self.request.model, str) else None
        for line in filter(
            None, (named, *self.data.notes, imbalance(self.data), of_no_file(self.method), *remarks(self.method))
        ):
            self.reporter.say(line)

    def _mean_std(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Of the training pixels; pictures that stay in files are read for it by one process."""
        if isinstance(self.data.train, FileImageSet):
            self.reporter.say(f"reading {len(self.data.train):,} training pictures for --normalize")
        return self.world.from_writer(self.data.mean_std)

    def _fingerprint(self) -> str:
        """What identifies the data; pictures that stay in files are read for it by one process, unless they were."""
        if isinstance(self.data.train, FileImageSet):
            count = f"{len(self.data.train):,}"
            self.reporter.say(
                f"fingerprinting {count} training pictures: they are read, unless they were and are unchanged"
            )
        return self.world.from_writer(lambda: self.data.fingerprint)

    def _checkpoint(self) -> dict[str, Any] | None:
        """What identifies the weights a run starts from; a file may move."""
        path = self.request.checkpoint
        return None if path is None else {"sha256": file_hash(path), "new_head": self.request.new_head}

    def _fit(self, state: TrainState, watchers: Watchers) -> None:
        settings = LoopSettings(
            seed=self.request.seed,
            hardware=Hardware(self.precision, self.world, coerce(self.request.compile, CompileMode, "--compile")),
            keep_epochs=self.keep_epochs,
            save_seconds=self.request.save_seconds,
            counts_steps=self.follows_examples,
        )
        size = math.ceil(self.method.batch_size / self.world.size)
        images, feed = place(self.images.train, self.device, self.placement, size)
        if feed is not None:
            self.reporter.say(f"training images stay {feed.where} and are brought to the device batch by batch")
        trainer = Trainer(self.run, self.method, state, images, settings=settings, watchers=watchers, feed=feed)
        try:
            trainer.mend_best()
            trainer.fit()
        finally:
            if watchers.board is not None:
                watchers.board.close()
        if self.world.is_writer:
            self._close(state)

    def _environment(self, monitors: Monitors | None) -> dict[str, Any]:
        """What the record says beside the run's identity."""
        facts: dict[str, Any] = {
            "method": title(self.method),
            **surroundings(self.device),
            "precision": self.precision,
            "compile": self.request.compile,
            "processes": self.world.size,
            "image_shape": [self.data.channels, *self.data.image_size],
            "class_counts": dict(zip(self.data.classes, self.data.class_counts(), strict=True)),
            "sync_bn": self.request.sync_bn,
        }
        facts["options"] = {
            "validation_every": self.request.validation_every,
            "early_stopping": self.request.early_stopping,
            "monitor_every": self.request.monitor_every,
            "keep_epochs": list(self.keep_epochs),
            "dynamics": self.follows_examples,
        }
        if self.request.checkpoint is not None:
            facts["checkpoint_file"] = str(self.request.checkpoint)
        if self.request.validation is not None:
            facts["held_out"] = f"{self.request.validation} training images are held out to choose the best state"
        if monitors is not None:
            facts["monitors"] = {"images": "test set", "used_for_selection": False, "counts": dict(monitors.counts)}
        return facts

    def _validation(self) -> Validation | None:
        if self.images.held_out is None:
            return None
        images = self.images.held_out.to(self.device)
        return Validation(images, self.method, self.request.validation_every, self.request.early_stopping)

    def _monitors(self) -> Monitors | None:
        if self.request.monitor is None:
            return None
        counts = parse_monitors(self.request.monitor, len(self.data.test))
        images = self.data.test.take(range(max(counts.values()))).to(self.device)
        return Monitors(images, counts, self.method, self.request.monitor_every)

    def _dynamics(self, fork: Fork | None) -> Dynamics | None:
        """What each example does, with what the run that this one branches off from has kept of it."""
        if not self.follows_examples or not self.world.is_writer:
            return None
        dynamics = Dynamics(self.run.dynamics_path, self.images.train.index)
        if fork is not None:
            dynamics.read(fork.run.dynamics_path, fork.epochs)
        return dynamics

    def _close(self, state: TrainState) -> None:
        """Finish the record, and show what choosing the best state would change."""
        rate = state.images / state.seconds if state.seconds else 0.0
        # All at once: the seconds say that the run is finished, the weights which evaluations are of its end.
        self.run.update_record(
            **_spent(state.seconds, self.run.record.get("train_seconds_before_fork")),
            images_per_second=round(rate, 1),
            weights=weights_hash(_trained(state)),
        )
        looks = [row for row in self.run.metrics if row.get("validation")]
        if state.best is None or not looks:
            return
        last = {"epoch": looks[-1]["epoch"] + 1, **looks[-1]["validation"]}
        best = {key: value for key, value in state.best.items() if key != "looks_since"}
        self.run.update_record(held_out_accuracy={"best": best, "last": last}, epochs_trained=state.epoch)
        self.reporter.say(chosen_line(self.run, self.request.validation, best, last))


def _spent(seconds: float, before_fork: float | None) -> dict[str, float]:
    """Seconds of training for the record: those of the run it was forked from count in the total.

    >>> _spent(70.0, None), _spent(70.0, 50.0)
    ({'train_seconds': 70.0}, {'train_seconds': 70.0, 'train_seconds_after_fork': 20.0})
    """
    total = {"train_seconds": round(seconds, 3)}
    return total if before_fork is None else {**total, "train_seconds_after_fork": round(seconds - before_fork, 3)}


def _trained(state: TrainState) -> nn.Module:
    if state.average:
        state.model.load_state_dict(state.average.tensors)
    return state.model.eval()
