"""A run's states, written beside its training.

A run that is killed at any moment goes on from its newest whole state, and ends as if nothing had happened. It relies
on the order in which things come to the disk:

1. the epoch's line in metrics.jsonl, which the loop writes before it hands over the state;
2. dynamics.npz with the epochs before the state;
3. the state, its tensors first and then the JSON by which it counts;
4. the removal of states that the newer one makes superfluous;
5. checkpoints/best, where the state is the best so far.

From 2 on it is one piece of work, beside the epochs that follow; the next one waits for it. So lines and rows are there
for every epoch before a state. Those of later epochs may be there too, as many as were trained while a state was
written or none was due: a resume drops them and trains those epochs again. A best state that a kill has cut off is
that of the newest state itself, from which `mend_best` writes it again. The record says that a run is finished after
all of this.
"""

from collections.abc import Collection
from dataclasses import replace

from probmargin.engine import checkpoints
from probmargin.engine.background import Background
from probmargin.engine.checkpoints import Checkpoint
from probmargin.engine.files import holds_json, read_json_object
from probmargin.runs.run import Run
from probmargin.training.examples import Dynamics
from probmargin.training.state import TrainState


class States(Background):
    """The saved states of a run: the last two, those to keep, and the best; used in a `with` block."""

    def __init__(self, run: Run, recipe_hash: str, kept: Collection[str], dynamics: Dynamics | None) -> None:
        super().__init__()
        self._run, self._recipe_hash, self._kept, self._dynamics = run, recipe_hash, kept, dynamics

    def save(self, state: TrainState, *, is_best: bool = False) -> None:
        """Take a copy of the state as it is now, once the one before is on disk, and begin to write it."""
        # Before the copy: there is room for one.
        self.wait()
        name, saved = state.name, state.checkpoint({"recipe_hash": self._recipe_hash}).copied()
        dynamics = None if self._dynamics is None else self._dynamics.so_far()
        self.start(lambda: self._write(name, saved, dynamics, is_best=is_best))

    def _write(self, name: str, saved: Checkpoint, dynamics: Dynamics | None, *, is_best: bool) -> None:
        if dynamics is not None:
            dynamics.write()
        checkpoints.write(self._run.checkpoints_path / name, saved)
        for old in [path for path in self._run.states() if path.name not in self._kept][:-2]:
            checkpoints.remove(old)
        if is_best:
            checkpoints.write(self._run.best_path, _without_momentum(saved))

    def mend_best(self, state: TrainState) -> None:
        """Write the best state where a kill came between it and the run's own state, which is the same."""
        if state.best is None or state.batch or state.best["epoch"] != state.epoch:
            return
        facts = self._run.best_path.with_suffix(".json")
        if not holds_json(facts, "epoch") or read_json_object(facts)["epoch"] != state.epoch:
            own = state.checkpoint({"recipe_hash": self._recipe_hash})
            checkpoints.save(self._run.best_path, _without_momentum(own))


def _without_momentum(saved: Checkpoint) -> Checkpoint:
    """The state without what only training needs."""
    return replace(saved, tensors={name: t for name, t in saved.tensors.items() if not name.startswith("momentum/")})
