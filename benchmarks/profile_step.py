"""Where the time of a captured training step goes, by kernel."""

import sys

import torch

from benchmarks.training import synthetic
from probmargin.engine.devices import set_precision
from probmargin.methods.resolve import resolve
from probmargin.models.build import build_model
from probmargin.training.fast import FastNetwork, GraphStepper
from probmargin.training.state import NUM_SUMS, TrainState
from probmargin.training.stepper import Chosen


def main(method: str = "mail-trades", batch_size: str = "128") -> None:
    """Replay a few steps under the profiler and print the longest kernels."""
    device, size = torch.device("cuda"), int(batch_size)
    set_precision("bf16")
    torch.backends.cudnn.benchmark = True
    data = synthetic(2_000, 32, 3, device)
    recipe = resolve(method)
    now = recipe.at(99)
    model = build_model("resnet18", num_classes=10, in_channels=3, seed=0).to(device).train()
    state = TrainState.fresh(model, recipe)
    state.sums = torch.zeros(NUM_SUMS, dtype=torch.float64, device=device)
    stepper = GraphStepper(
        FastNetwork(model, "bf16", image_shape=data.images.shape[1:]), state, data, recipe.augment, 0
    )
    stepper.prepare(size)
    positions = torch.arange(size, device=device)
    draws = torch.zeros(size, 3, dtype=torch.int64, device=device)
    for _ in range(3):
        stepper(now, 99, 0.001, Chosen(positions, draws))
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(5):
            stepper(now, 99, 0.001, Chosen(positions, draws))
        torch.cuda.synchronize()
    rows = sorted(profile.key_averages(), key=lambda row: -row.device_time_total)
    total = sum(row.device_time_total for row in rows)
    sys.stdout.write(f"{total / 5000:.2f} ms of kernels a step, {sum(row.count for row in rows) // 5} kernels\n")
    for row in rows[:45]:
        sys.stdout.write(f"{row.device_time_total / 5000:8.3f} ms {row.count // 5:5d}x  {row.key[:110]}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
