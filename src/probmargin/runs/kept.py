"""What is kept of a run where its folder is not: its record, and its curves beside it."""

from dataclasses import dataclass
from pathlib import Path

from probmargin.core.errors import UsageError
from probmargin.engine import checkpoints
from probmargin.methods.method import Method
from probmargin.methods.plain import from_plain
from probmargin.runs.run import Run


@dataclass(frozen=True)
class KeptRun(Run):
    """A run as FOLDER/ID.json, ID.metrics.jsonl and ID.dynamics.npz; `path` is FOLDER/ID, which is no folder."""

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{suffix}")

    @property
    def record_path(self) -> Path:
        """Seed, commit, hardware, versions, times, evaluation."""
        return self._beside("json")

    @property
    def recipe_path(self) -> Path:
        """The record, which has the recipe too."""
        return self.record_path

    @property
    def metrics_path(self) -> Path:
        """One JSON object an epoch."""
        return self._beside("metrics.jsonl")

    @property
    def dynamics_path(self) -> Path:
        """What each training example did, where that is kept."""
        return self._beside("dynamics.npz")

    @property
    def recipe(self) -> Method:
        """The resolved recipe."""
        self.check_plugins()
        return from_plain(self.record["recipe"])

    def load_state(self, named: Path | None = None) -> tuple[Path, checkpoints.Checkpoint, list[str]]:
        """There is none: what needs weights needs the run itself."""
        raise UsageError(
            f"of {self.path.name} only record and curves are kept, in {self.path.parent}, and not its weights; "
            "give the --out that has its folder, or train it again with probmargin train"
        )


def kept_run(folders: tuple[Path | None, ...], name: str) -> KeptRun | None:
    """A run whose record and curves lie in one of these folders."""
    found = (KeptRun(folder / name) for folder in folders if folder is not None)
    return next((run for run in found if run.record_path.exists() and run.metrics_path.exists()), None)
