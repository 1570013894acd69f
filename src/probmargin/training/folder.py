"""A run's folder at the start: new, gone on with, or branched off from another run."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from probmargin.core.errors import UsageError
from probmargin.core.shell import typed
from probmargin.core.words import counted
from probmargin.engine.checkpoints import Checkpoint
from probmargin.engine.files import write_json, write_json_lines, written_aside
from probmargin.engine.lock import LOCK
from probmargin.methods.method import Method
from probmargin.methods.plain import completed
from probmargin.models.own_code import changed_files
from probmargin.runs.run import Run
from probmargin.training.agreement import differences, moved
from probmargin.training.examples import Dynamics
from probmargin.training.fork import (
    OWN_FILES,
    Fork,
    Legacy,
    Wishes,
    check_fork,
    compiled_otherwise,
    described,
    legacy_of,
    own_files_of,
)
from probmargin.training.progress import Reporter

_CONDITIONS = ("hardware", "precision", "compile", "processes", "sync_bn", *OWN_FILES)
"""What a run may be gone on under that it did not begin under; the record says so."""

_OF_THE_END = frozenset(
    {
        "train_seconds",
        "train_seconds_after_fork",
        "images_per_second",
        "weights",
        "held_out_accuracy",
        "epochs_trained",
    }
)
"""What the record gets when training has ended."""


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """Everything that decides what is in a run's folder before its first step."""

    run: Run
    method: Method
    identity: dict[str, Any]
    """What must be the same for a run to be gone on with."""
    environment: dict[str, Any]
    """What else the record says."""
    num_examples: int
    shapes: dict[str, torch.Size]
    """Of the network's weights by name."""
    resume: bool
    fork: Fork | None = None
    wishes: Wishes = field(default_factory=Wishes)
    wrong_labels: dict[str, torch.Tensor] | None = None
    """Arrays of label_noise.npz."""
    dynamics: Dynamics | None = None
    """With what the run that this one branches off from has kept."""

    def open(self, reporter: Reporter) -> Checkpoint | None:
        """Claim or reopen the folder; return the state to go on from, None for a fresh start."""
        if self._is_claimed():
            return self._resume(reporter)
        # Read before anything is written: what the other run lacks is found here.
        legacy = self._legacy(self.fork) if self.fork else None
        self._write(legacy)
        if self.fork is None or legacy is None:
            return None
        reporter.say(f"forked from {self.fork.state_path.name} of {self.fork.run.path}")
        self._say_changed(self.fork.run, reporter)
        if other := compiled_otherwise(self.fork, self.environment.get("compile")):
            reporter.say(
                f"{self.fork.run.path} was trained with --compile {other}: rounding differs from training from scratch "
                f"with --compile {self.environment['compile']}"
            )
        for epochs in self.wishes.keep_epochs:
            if epochs < self.fork.epochs and epochs not in legacy.kept:
                reporter.say(f"{self.fork.run.path} has not kept its state after {epochs} epochs: it is not kept here")
        if self.dynamics is not None:
            # Before the state: once that is there, a start that was killed goes on without asking the other run again.
            self.dynamics.write()
        return legacy.hand_over(self.run, self.method)

    def check(self) -> None:
        """Refuse the folder or the fork that `open` would refuse, and write nothing."""
        if not self._is_claimed() and self.fork is not None:
            self._legacy(self.fork)

    def _legacy(self, fork: Fork) -> Legacy:
        """What the other run hands over, if it fits; the end of burn-in is kept whether asked for or not."""
        check_fork(fork, self.method, self.identity | self.environment, self.num_examples)
        kept = (*self.wishes.keep_epochs, self.method.burn_in_end)
        legacy = legacy_of(fork, replace(self.wishes, keep_epochs=kept))
        self._check_fits(fork.run, legacy.state)
        return legacy

    def _is_claimed(self) -> bool:
        """True where an earlier start of the same run is there to go on from."""
        run = self.run
        if not run.record_path.exists():
            # A start that was killed before its record was there leaves a part at most.
            if self.resume and _others(run.path):
                raise UsageError(f"{run.path} holds no run to resume; leave --resume out, or name the run's folder")
            self._check_foreign()
            return False
        if not self.resume:
            raise UsageError(f"{run.path} already holds a run; go on with --resume, or choose another --out")
        known = moved(run.record, self.identity) | {"recipe": completed(run.record["recipe"])}
        found = differences(known, json.loads(json.dumps(self.identity)))
        origin = run.record.get("forked_from")
        wanted = described(self.fork, run.record) if self.fork else origin
        if wanted:
            # Records of earlier versions do not tell.
            untold = {"compile", *OWN_FILES} - set(origin or ())
            wanted = {key: value for key, value in wanted.items() if key not in untold}
        if origin != wanted:
            found.append(f"forked_from is {origin!r} there and {wanted!r} here")
        if found:
            raise UsageError(f"{run.path} is another run: {'; '.join(found)}; choose another --out")
        if origin is not None and self.fork is None and not run.states():
            raise UsageError(f"{run.path} has no state yet; give --fork DIR/{origin['run']}@{origin['epoch']} again")
        return bool(run.states())

    def _check_fits(self, run: Run, saved: Checkpoint) -> None:
        """Refuse a state of a network that has changed since, in the user's own file for one."""
        found = {name: tensor.shape for name, tensor in saved.part("model").items()}
        for name in {**found, **self.shapes}:
            if found.get(name) != self.shapes.get(name):
                there, here = (tuple(shapes[name]) if name in shapes else "missing" for shapes in (found, self.shapes))
                raise UsageError(
                    f"{run.path} was trained with another network: {name} is {there} there and {here} here; bring back "
                    "the model as it was, or train anew into another --out"
                )

    def _check_foreign(self) -> None:
        """Refuse to move in with files that no run of ours has left: a run's record comes first."""
        kind, _, place = str(self.identity.get("data", "")).partition(":")
        out = self.run.path
        if kind == "folder" and out.resolve().is_relative_to(Path(place).expanduser().resolve()):
            raise UsageError(f"{out} lies in the data folder {place}, which is left as it is; choose another --out")
        if found := _others(out):
            raise UsageError(
                f"{out} holds {found[0]} but no run; name a new folder with --out, such as {typed(out / 'run')}"
            )

    def _write(self, legacy: Legacy | None) -> None:
        """Write what a new run's folder begins with; the record first, since it makes the folder this run's."""
        run = self.run
        origin: dict[str, Any] = {"forked_from": described(self.fork, self.environment)} if self.fork else {}
        if legacy is not None:
            origin["train_seconds_before_fork"] = round(legacy.state.facts["seconds"], 3)
        write_json(run.record_path, {**self.identity, **self.environment, **origin, "resumes": []})
        sweep(run)
        write_json(run.recipe_path, self.method.plain())
        trim_metrics(run, 0)
        if self.wrong_labels is not None:
            arrays: dict[str, Any] = {name: tensor.cpu().numpy() for name, tensor in self.wrong_labels.items()}
            with written_aside(run.label_noise_path) as aside, aside.open("wb") as file:
                np.savez(file, **arrays)

    def _resume(self, reporter: Reporter) -> Checkpoint:
        run = self.run
        path, saved, notes = run.load_state()
        for note in notes:
            reporter.say(note)
        self._check_fits(run, saved)
        sweep(run)
        write_json(run.recipe_path, self.method.plain())
        trim_metrics(run, saved.facts["epoch"])
        validation = self.wishes.validation
        patience_is_over = validation is not None and validation.is_over(saved.facts.get("best"))
        if saved.facts["epoch"] >= self.method.epochs:
            reporter.say(f"{run.path} is finished: it has trained for {counted(self.method.epochs, 'epoch')}")
        elif patience_is_over and saved.facts["batch"] == 0:
            reporter.say(f"{run.path} is finished: it stopped early after {counted(saved.facts['epoch'], 'epoch')}")
        else:
            place = {key: saved.facts[key] for key in ("epoch", "batch")}
            now = {key: self.environment[key] for key in _CONDITIONS if key in self.environment}
            known = {**{key: [] for key in OWN_FILES}, **run.record}
            changed = {key: value for key, value in now.items() if value != known.get(key, value)}
            asked, before = self._asked_anew()
            listed = [*run.record.get("resumes", []), place | changed | before]
            # What tells the end of a run that patience had ended is not so of one that goes on.
            record = moved(run.record, self.identity)
            record = {key: value for key, value in record.items() if key not in _OF_THE_END}
            write_json(run.record_path, {**record, **asked, "resumes": listed})
            reporter.say(f"going on from {path.name} of {run.path}")
            self._say_changed(run, reporter)
            if run.record.get("monitors") and "monitors" not in self.environment:
                reporter.say("its curves on test images end here: give --monitor again to go on with them")
        return saved

    def _say_changed(self, run: Run, reporter: Reporter) -> None:
        there, here = (own_files_of(facts) for facts in (run.record, self.environment))
        if found := list(dict.fromkeys(changed_files(there, here))):
            reporter.say(f"not as {run.path} began with: {', '.join(found)}; what follows is by the code of now")

    def _asked_anew(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The record's entries on looks and kept states as this start asks for them; what they were, if different."""
        record, monitors = self.run.record, self.environment.get("monitors")
        asked: dict[str, Any] = {"options": dict(self.environment["options"])}
        known = record.get("monitors")
        if monitors is not None:
            # The numbers of attacks that are not asked for any more stay in the metrics.
            counts = {**(known or {}).get("counts", {}), **monitors["counts"]}
            asked["monitors"] = {**monitors, "counts": counts}
        elif known is not None and "monitor_every" in (record.get("options") or {}):
            asked["options"]["monitor_every"] = record["options"]["monitor_every"]
        before = {key: record.get(key) for key, value in asked.items() if value != record.get(key)}
        return asked, {"before": before} if before else {}


def kept_so_far(run: Run) -> list[int]:
    """Epochs whose states earlier starts of a run asked to keep, in older records in `before` alone."""
    record = run.record
    starts = [(place.get("before") or {}).get("options") for place in record.get("resumes") or []]
    return [epoch for options in (*starts, record.get("options")) for epoch in (options or {}).get("keep_epochs") or ()]


def _others(folder: Path) -> list[str]:
    """What is in a folder beside its lock and the unfinished files of a start that was killed."""
    paths = folder.iterdir() if folder.exists() else ()
    return sorted(path.name for path in paths if path.suffix != ".part" and path.name != LOCK)


def sweep(run: Run) -> None:
    """Remove the unfinished files of a start that was killed."""
    for folder in (run.path, run.checkpoints_path):
        for part in folder.glob(".*.part"):
            part.unlink(missing_ok=True)


def trim_metrics(run: Run, epoch: int) -> None:
    """Drop the lines of epochs that are trained again."""
    rows = [row for row in run.metrics if row["epoch"] < epoch]
    write_json_lines(run.metrics_path, rows)
