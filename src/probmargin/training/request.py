"""What a run needs beside recipe and data."""

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from probmargin.core.errors import UsageError
from probmargin.core.records import coerce
from probmargin.core.settings import check_seed
from probmargin.engine.compile import CompileMode
from probmargin.training.feed import Placement


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """Everything a run needs beside recipe and data."""

    out: Path
    model: str | nn.Module = "resnet18"
    seed: int = 1
    device: str | None = None
    precision: str | None = None
    compile: str = "default"
    """default, max-autotune or off: how the fast path compiles on CUDA; off is another rounding on a CPU too."""
    resume: bool = False
    normalize: bool = False
    """Put the training data's mean and standard deviation inside the model."""
    checkpoint: Path | None = None
    """Weights to start from."""
    new_head: bool = False
    """Start the last layer afresh, for other classes than the checkpoint's."""
    fork: str | None = None
    """RUN@EPOCH: start from another run's state, as if trained from scratch."""
    keep_epochs: tuple[int, ...] = ()
    validation: int | None = None
    """Training images held out to choose the best state."""
    validation_every: int | None = None
    early_stopping: int | None = None
    monitor: str | None = None
    """Attacks on test images for curves, such as pgd-20:1000."""
    monitor_every: int = 5
    dynamics: bool = False
    label_noise: str | None = None
    sync_bn: bool = False
    placement: str = "auto"
    """auto, device, host or files: where the training images lie."""
    save_seconds: float = 30.0

    def __post_init__(self) -> None:
        needs_validation = self.validation_every is not None or self.early_stopping is not None
        if needs_validation and self.validation is None:
            raise UsageError("--validation-every and --early-stopping need held-out images: give --validation N")
        counts = (self.validation_every, self.early_stopping, self.monitor_every)
        if any(count is not None and count < 1 for count in counts):
            raise UsageError(
                "a count is below 1: give --validation-every, --early-stopping and --monitor-every 1 or more"
            )
        if self.normalize and isinstance(self.model, nn.Module):
            raise UsageError(
                "normalize builds mean and std into a model by name, and this one is an object: put them into its "
                "forward, or give its factory, model='package.module:factory'"
            )
        check_seed(self.seed)
        coerce(self.compile, CompileMode, "--compile")
        coerce(self.placement, Placement, "--placement")
        if self.fork is not None and self.checkpoint is not None:
            raise UsageError("--fork and --checkpoint both say where to start from: give one")
        if self.new_head and self.checkpoint is None:
            raise UsageError("--new-head is for the weights of --checkpoint FILE: give both")
