"""Start a run from a state of another that has trained the same way so far."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probmargin.core.errors import UsageError
from probmargin.engine import checkpoints
from probmargin.engine.checkpoints import Checkpoint
from probmargin.engine.files import write_json_lines
from probmargin.engine.shapes import misfit_state
from probmargin.methods.method import Method
from probmargin.runs.run import Run, open_run
from probmargin.training.agreement import differences, moved, recipe_differences
from probmargin.training.validation import Monitors, Validation

_SAME = ("seed", "data", "data_fingerprint", "model", "model_settings", "validation", "label_noise", "precision")


OWN_FILES = ("plugins", "model_files")
"""Entries of a record on files of the user's own: of components, and of the network."""


@dataclass(frozen=True)
class Fork:
    """Where a run branches off: the state of another after some epochs."""

    run: Run
    epochs: int

    @property
    def state_path(self) -> Path:
        """The state to start from."""
        return self.run.state_path(self.epochs)


def parse_fork(text: str) -> Fork:
    """Read RUN@EPOCH: the state after so many epochs of the run in a folder."""
    folder, at, number = text.rpartition("@")
    if not at or not folder or not number.isdecimal():
        raise UsageError(f"--fork takes RUN@EPOCH, such as runs/a@74, not {text!r}")
    if int(number) == 0:
        raise UsageError("a run has learnt nothing after 0 epochs: leave out --fork, or name an epoch from 1 on")
    return Fork(open_run(folder), int(number))


def is_tuned(fork: str | None) -> bool:
    """Did the run that is forked begin with given weights, or the one that it was forked from?"""
    if fork is None:
        return False
    record = parse_fork(fork).run.record
    return bool(record.get("checkpoint") or (record.get("forked_from") or {}).get("checkpoint"))


def check_fork(fork: Fork, method: Method, identity: dict[str, Any], num_examples: int) -> None:
    """Refuse a fork whose result would not be that of training from scratch."""
    parent = fork.run.recipe
    record = moved(fork.run.record, identity)
    wanted = {key: identity[key] for key in _SAME}
    found = differences({key: record.get(key) for key in _SAME}, wanted)
    # These decide every step, whatever a phase says.
    fixed = ("optimizer", "momentum", "nesterov", "weight_decay", "batch_size")
    found += differences({k: parent.plain()[k] for k in fixed}, {k: method.plain()[k] for k in fixed})
    if not found:
        found = recipe_differences(parent, method, fork.epochs, math.ceil(num_examples / method.batch_size))
    if found:
        raise UsageError(
            f"{fork.run.path} is another run before epoch {fork.epochs}: {'; '.join(found)}; fork one that agrees"
        )
    if fork.epochs >= method.epochs:
        raise UsageError(
            f"nothing is left to train after {fork.epochs} of {method.epochs} epochs; fork at an earlier one"
        )


def load_fork(fork: Fork) -> Checkpoint:
    """The state to start from."""
    if not fork.state_path.with_suffix(".json").exists():
        kept = ", ".join(path.name.removeprefix("state-").lstrip("0") or "0" for path in fork.run.states())
        raise UsageError(
            f"{fork.run.path} has not kept its state after {fork.epochs} epochs (it has {kept or 'none'}); fork it at "
            f"one it has, or train it into another --out with --keep-epochs {fork.epochs}"
        )
    return checkpoints.load(fork.state_path, misfit_state)


@dataclass(frozen=True)
class Wishes:
    """What a new run looks at and keeps: of its parent's past it is given this and no more."""

    validation: Validation | None = None
    monitors: Monitors | None = None
    keep_epochs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Legacy:
    """What a run takes over from the one it branches off from."""

    state: Checkpoint
    metrics: list[dict[str, Any]]
    best: Checkpoint | None
    kept: dict[int, Checkpoint]
    """Earlier states to keep, by their epochs, as far as the other run has them."""

    def hand_over(self, run: Run, method: Method) -> Checkpoint:
        """Write it into the new run's folder and return the state."""
        write_json_lines(run.metrics_path, self.metrics)
        if self.best is not None:
            checkpoints.save(run.best_path, _owned(self.best, method))
        for epochs, state in self.kept.items():
            checkpoints.save(run.state_path(epochs), _owned(state, method))
        # Last of all: a start that was killed before goes on from an earlier one, and ends the same.
        own = _owned(self.state, method)
        checkpoints.save(run.state_path(own.facts["epoch"]), own)
        return own


def _owned(state: Checkpoint, method: Method) -> Checkpoint:
    return replace(state, facts={**state.facts, "recipe_hash": method.hash()})


def legacy_of(fork: Fork, wishes: Wishes) -> Legacy:
    """Read the parent's states, its metrics so far and its best state, or say what is missing."""
    saved = {fork.epochs: load_fork(fork)}
    for epochs in sorted(wishes.keep_epochs):
        path = fork.run.state_path(epochs)
        if epochs < fork.epochs and path.with_suffix(".json").exists():
            saved[epochs] = checkpoints.load(path, misfit_state)
    rows = [row for row in fork.run.metrics if row["epoch"] < fork.epochs]
    states = {}
    for epochs, state in saved.items():
        best = _best_so_far([row for row in rows if row["epoch"] < epochs], wishes.validation, fork)
        states[epochs] = replace(state, facts={**state.facts, "best": best})
    counts = monitored(fork.run.record)
    own = states.pop(fork.epochs)
    best = own.facts["best"]
    return Legacy(
        state=own,
        metrics=[_as_own(row, wishes, counts) for row in rows],
        best=None if best is None else _best_state(fork, best),
        kept=states,
    )


def monitored(record: dict[str, Any]) -> dict[str, int]:
    """The attacks whose numbers are all of equally many test images, and of how many."""
    counts = dict((record.get("monitors") or {}).get("counts") or {})
    for entry in record.get("resumes") or []:
        earlier = ((entry.get("before") or {}).get("monitors") or {}).get("counts") or {}
        counts = {name: count for name, count in counts.items() if earlier.get(name, count) == count}
    return counts


def _as_own(row: dict[str, Any], wishes: Wishes, counts: dict[str, int]) -> dict[str, Any]:
    """An epoch's line without the looks that the new run does not ask for."""
    own = {key: value for key, value in row.items() if key not in ("monitors", "validation")}
    if wishes.monitors is not None and wishes.monitors.is_due(row["epoch"]):
        asked, found = wishes.monitors.counts, row.get("monitors") or {}
        numbers = {name: found[name] for name in asked if name in found and counts.get(name) == asked[name]}
        own |= {"monitors": numbers} if numbers else {}
    if wishes.validation is not None and wishes.validation.is_due(row["epoch"]):
        own["validation"] = row["validation"]
    return own


def _best_so_far(rows: list[dict[str, Any]], validation: Validation | None, fork: Fork) -> dict[str, Any] | None:
    """The best epoch as the new run would have found it; where its patience would have run out, there is no fork."""
    best: dict[str, Any] | None = None
    over_after, longest = 0, 0
    for row in rows:
        if validation is None or not validation.is_due(row["epoch"]):
            continue
        if row.get("validation") is None:
            raise UsageError(
                f"{fork.run.path} was not validated after epoch {row['epoch'] + 1}; look later, with "
                f"--validation-every {fork.epochs + 1} or more, or train it again with the same, into another --out"
            )
        best, _ = validation.update(best, row["validation"], row["epoch"] + 1)
        longest = max(longest, best["looks_since"])
        if validation.is_over(best):
            over_after = over_after or row["epoch"] + 1
    if validation is not None and over_after:
        raise UsageError(
            f"with --early-stopping {validation.patience} training from scratch ends after epoch {over_after}, so "
            f"nothing is left to train after {fork.epochs}; fork {fork.run.path} at an epoch before {over_after}, or "
            f"give --early-stopping {longest + 1}"
        )
    return best


def _best_state(fork: Fork, best: dict[str, Any]) -> Checkpoint:
    """The best state, which the parent must still have, as it is saved when it is the best."""
    epochs = best["epoch"]
    for path in (fork.run.best_path, fork.run.state_path(epochs)):
        if path.with_suffix(".json").exists():
            saved = checkpoints.load(path, misfit_state)
            if saved.facts["epoch"] == epochs:
                tensors = {name: tensor for name, tensor in saved.tensors.items() if not name.startswith("momentum/")}
                return Checkpoint(tensors, {**saved.facts, "best": {**best, "looks_since": 0}})
    raise UsageError(
        f"{fork.run.path} has not kept its best state, after {epochs} epochs; train it into another --out with "
        f"--keep-epochs {epochs}"
    )


def compiled_otherwise(fork: Fork, own: str | None) -> str | None:
    """Another `--compile` than `own` that the state came about with; it rounds otherwise. None where none is known."""
    known = (place.get("compile") for place in _history(fork))
    return next((mode for mode in known if own is not None and mode not in (None, own)), None)


def own_files_of(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All that a record says of files of the user's own."""
    return [file for entry in OWN_FILES for file in record.get(entry) or ()]


def other_files(fork: Fork, own: Mapping[str, Any], entry: str) -> list[dict[str, Any]]:
    """Files of the user's own that the state came about with and that are not those of the new run's record."""
    mine = {file["sha256"] for file in own.get(entry) or ()}
    found = [file for place in _history(fork) for file in place.get(entry) or ()]
    return list({file["sha256"]: file for file in found if file["sha256"] not in mine}.values())


def _history(fork: Fork) -> list[dict[str, Any]]:
    """Records of what the state came about under: the run it comes from, what that began with, and its resumes."""
    record = fork.run.record
    resumes = [place for place in record.get("resumes") or () if place["epoch"] < fork.epochs]
    return [record.get("forked_from") or {}, record, *resumes]


def described(fork: Fork, own: Mapping[str, Any]) -> dict[str, Any]:
    """What the record of a new run says of its origin; `own` is that record, with what it begins under."""
    record = fork.run.record
    origin = {"run": fork.run.path.name, "epoch": fork.epochs, "recipe_hash": record.get("recipe_hash")}
    # How the other run came by its state is part of this one.
    further = record.get("forked_from") or {}
    has_shares = (record.get("processes") or 1) > 1 and not record.get("sync_bn")
    taken_over = {
        "checkpoint": record.get("checkpoint") or further.get("checkpoint"),
        "processes": record["processes"] if has_shares else further.get("processes"),
        "compile": compiled_otherwise(fork, own.get("compile")),
    } | {entry: other_files(fork, own, entry) for entry in OWN_FILES}
    return origin | {key: value for key, value in taken_over.items() if value}
