"""A run's folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from probmargin.core.arguments import checked
from probmargin.core.errors import UsageError
from probmargin.core.shell import is_typed, typed
from probmargin.engine import checkpoints
from probmargin.engine.files import holds_json, read_json_lines, read_json_object, write_json
from probmargin.engine.shapes import misfit_epoch, misfit_record, misfit_state
from probmargin.methods.method import Method
from probmargin.methods.plugins import check_plugins
from probmargin.methods.resolve import read_recipe
from probmargin.models.build import build_model
from probmargin.models.own_code import changed_files, fingerprints, modules_of


@dataclass(frozen=True)
class Run:
    """One training run on disk."""

    path: Path

    @property
    def recipe_path(self) -> Path:
        """The resolved recipe."""
        return self.path / "recipe.json"

    @property
    def metrics_path(self) -> Path:
        """One JSON object an epoch."""
        return self.path / "metrics.jsonl"

    @property
    def dynamics_path(self) -> Path:
        """What each training example did, epoch by epoch, where that was asked for."""
        return self.path / "dynamics.npz"

    @property
    def label_noise_path(self) -> Path:
        """The labels it was trained on, where some were made wrong on purpose."""
        return self.path / "label_noise.npz"

    @property
    def record_path(self) -> Path:
        """Seed, commit, hardware, versions, times, evaluation."""
        return self.path / "record.json"

    @property
    def evaluation_path(self) -> Path:
        """Results of the latest evaluation."""
        return self.path / "evaluation.json"

    @property
    def audit_path(self) -> Path:
        """What an audit of it found."""
        return self.path / "audit.json"

    @property
    def checkpoints_path(self) -> Path:
        """Folder of the saved states."""
        return self.path / "checkpoints"

    @property
    def best_path(self) -> Path:
        """The state that did best on held-out images."""
        return self.checkpoints_path / "best"

    def state_path(self, epochs: int) -> Path:
        """The state after so many epochs."""
        return self.checkpoints_path / f"state-{epochs:04d}"

    @property
    def recipe(self) -> Method:
        """The resolved recipe."""
        self.check_plugins()
        return read_recipe(self.recipe_path)

    def check_plugins(self) -> None:
        """Refuse a recipe with components of the user's own that are not loaded."""
        if holds_json(self.record_path, "recipe"):
            check_plugins(self.record, self.path)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One object an epoch."""
        return read_json_lines(self.metrics_path, misfit_epoch)

    @property
    def record(self) -> dict[str, Any]:
        """What the run says of itself."""
        return read_json_object(self.record_path, misfit_record)

    def update_record(self, **entries: Any) -> None:
        """Add entries to the record, or replace them."""
        known = self.record if self.record_path.exists() else {}
        write_json(self.record_path, {**known, **entries})

    def states(self) -> list[Path]:
        """Saved states in the order of training, without their suffix; only those that are complete."""
        return checkpoints.in_order(path.with_suffix("") for path in self.checkpoints_path.glob("state-*.json"))

    def load_state(self, named: Path | None = None) -> tuple[Path, checkpoints.Checkpoint, list[str]]:
        """The state that is named, or the latest that is whole, with a sentence for each damaged one passed over."""
        if named is not None:
            self._check_is_state(named)
            return named, checkpoints.load(named, misfit_state), []
        damaged: list[str] = []
        for path in reversed(self.states()):
            try:
                state = checkpoints.load(path, misfit_state)
                return path, state, [f"{reason}; the state before it is used" for reason in damaged]
            except UsageError as error:
                damaged.append(str(error).rpartition("; ")[0])
        found = f" ({'; '.join(damaged)})" if damaged else ""
        raise UsageError(
            f"{self.path} holds no whole checkpoint{found}; empty its checkpoints folder and train it with --resume"
        )

    def _check_is_state(self, path: Path) -> None:
        """Refuse weights that are not this run's own, whose recipe and record would not be theirs."""
        own = sorted(self.checkpoints_path.glob("*.safetensors"))
        if path.with_suffix(".safetensors").resolve() not in [file.resolve() for file in own]:
            names = ", ".join(file.stem for file in own) or "none"
            raise UsageError(
                f"{path} is no state of {self.path}, which has {names}; name a file of its checkpoints folder, "
                "or judge other weights by --model and --checkpoint"
            )

    @property
    def model(self) -> nn.Module:
        """The trained network in eval mode: the moving average where the recipe keeps one."""
        return self.load_model()[0]

    def load_model(self, state: Path | None = None) -> tuple[nn.Module, list[str]]:
        """The same, or that of another state, with sentences on what a user should know of it: a damaged state that was
        passed over, training that is not finished, a network that was edited since."""
        _, saved, notes = self.load_state(state)
        left = [] if state is not None else self.unfinished(saved)
        model = self.rebuild(saved.part("ema") or saved.part("model"))
        return model, [*notes, *left, *self.edited(model)]

    def edited(self, model: nn.Module) -> list[str]:
        """A sentence where the network of this run is not as it was in training."""
        changed = self.changed_since(model)
        if not changed:
            return []
        have = "has" if len(changed) == 1 else "have"
        return [
            f"{', '.join(changed)} {have} changed since {self.path} was trained: its weights are taken in the network "
            "as it is now"
        ]

    def changed_since(self, model: nn.Module) -> list[str]:
        """Files that the network of this run is written in and that are not as they were when it was last trained."""
        record = self.record
        last = (record.get("resumes") or [{}])[-1]
        known = last.get("model_files") or record.get("model_files") or ()
        if not known:
            return []
        here = model_files(model, record["model"])
        gone, new = ({one["file"] for one in side} for side in (known, here))
        gone, new = gone - new, new - gone
        # A file that is imported by a pass alone may not be there yet; one in whose place another stands has moved.
        return [*changed_files(known, here), *(sorted(gone) if new else ())]

    def unfinished(self, last: checkpoints.Checkpoint) -> list[str]:
        """A sentence where the last state is not the end of training: a run that ended by itself knows its time."""
        record = self.record
        # As the run began with: a resume has the same, and a damaged recipe.json is named by who needs it.
        done, total = int(last.facts["epoch"]), int(record["recipe"].get("epochs", 0))
        if "train_seconds" in record or done >= total:
            return []
        where = f"in epoch {done + 1}" if last.facts.get("batch") else f"after epoch {done}"
        how = "train it with --resume" if is_typed(record) else "go on with pm.train(..., resume=True)"
        return [f"{self.path} is not finished: its state {where} of {total} is taken; {how}"]

    def rebuild(self, weights: dict[str, torch.Tensor]) -> nn.Module:
        """The run's network with these weights."""
        record = self.record
        if record.get("model_settings") is None:
            raise UsageError(
                f"the model of {self.path} was given as an object; build it and load its weights yourself, or judge it "
                "by --model package.module:factory, --checkpoint, a file of its checkpoints folder, --norm and --eps"
            )
        # By the run's seed: what a network draws and its weights do not hold is then as it was in training.
        model = build_model(record["model"], **record["model_settings"], seed=record["seed"])
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            raise UsageError(
                f"the weights of {self.path} do not fit {record['model']} as its record.json describes it ({reason}); "
                "bring back a copy of record.json, or the code of the model as it was"
            ) from None
        return model.eval()


def model_files(model: nn.Module, name: str) -> list[dict[str, str]]:
    """What a record says of the user's own files that a network is written in; nothing of networks of ours."""
    return list(fingerprints(modules_of(model, name)).values())


@checked
def open_run(path: Path | str) -> Run:
    """Open a run's folder, or say what is wrong with it."""
    run = Run(Path(path))
    if not run.path.exists():
        raise UsageError(f"there is no run at {path}; train one with --out {typed(path)}, or check the name")
    if not run.recipe_path.exists() or not run.record_path.exists():
        raise UsageError(
            f"{path} is not a run's folder, it has no recipe.json and record.json; name the --out of a run"
        )
    # A damaged record is found here, before a command has written anything.
    read_json_object(run.record_path, misfit_record)
    return run
