"""What is to be reproduced, how much of it, where and on what."""

from dataclasses import dataclass
from pathlib import Path

from probmargin.core.errors import UsageError, unknown_name
from probmargin.core.records import coerce
from probmargin.experiments.catalogue import find
from probmargin.experiments.grid import Grid, ScaleName, make_grid


@dataclass(frozen=True, kw_only=True)
class ReproduceRequest:
    """What is to be reproduced, how much of it, where and on what."""

    name: str | None = None
    scale: str = "full"
    trials: int | None = None
    seeds: tuple[int, ...] = ()
    """Of the trials, those to run here; all of them where it is empty."""
    only: tuple[str, ...] = ()
    aa_examples: int | None = None
    data_dir: Path | None = None
    download: bool = False
    device: str | None = None
    out: Path = Path("runs/reproduce")
    keep_records: Path | None = None
    """Where records are copied to; `records` in the folder of the runs unless given."""
    executor: str = "local"
    address: str | None = None
    gpus_per_run: float | None = None

    def __post_init__(self) -> None:
        if self.executor not in ("local", "ray"):
            raise unknown_name("executor", self.executor, ["local", "ray"])
        if self.executor == "local" and self.address is not None:
            raise UsageError("--address is for Ray: give --executor ray, or leave it out")
        if self.gpus_per_run is not None and self.gpus_per_run < 0:
            raise UsageError(f"--gpus-per-run must be 0 or more, not {self.gpus_per_run}")
        if self.executor == "local" and not 0.01 <= (1.0 if self.gpus_per_run is None else self.gpus_per_run) <= 1:
            raise UsageError(
                f"--gpus-per-run is {self.gpus_per_run}: give a share from 0.01 to 1, or another with --executor ray"
            )

    @property
    def records(self) -> Path:
        """Where records are copied to."""
        return self.keep_records or self.out / "records"

    @property
    def filters(self) -> list[str]:
        """Options given that leave something out of the tables."""
        given = {
            "--scale": self.scale != "full",
            "--trials": self.trials is not None,
            "--only": bool(self.only),
            "--aa-examples": self.aa_examples is not None,
        }
        return [option for option, is_given in given.items() if is_given]

    def grids(self) -> list[Grid]:
        """The experiments at their scale; `only` may name rows of any of them."""
        experiments = find(self.name)
        known = [row.id for experiment in experiments for row in experiment.rows]
        for row in self.only:
            if row not in known:
                raise unknown_name(f"row of {self.name}", row, dict.fromkeys(known))
        scale = coerce(self.scale, ScaleName, "--scale")
        wanted = [(one, [row.id for row in one.rows if row.id in self.only]) for one in experiments]
        grids = [
            make_grid(one, scale, trials=self.trials, only=only, aa_examples=self.aa_examples)
            for one, only in wanted
            if only or not self.only
        ]
        most = max(grid.trials for grid in grids)
        for seed in self.seeds:
            if not 1 <= seed <= most:
                raise UsageError(
                    f"--seeds has {seed}: the trials here are seeds 1 to {most}; name one of these, or raise --trials"
                )
        return grids
