"""Images a second of the plain loop and of the fast path, in one run.

python -m benchmarks.training [--models resnet18] [--methods mail-trades] [--batch-size 128] [--seconds 10]
python -m benchmarks.training --digits --device cpu      # embedded images, small-cnn, one thread

On a CPU processor time is measured, so that other work on the machine does not count.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import OUT, plain, save
from probmargin.data.dataset import image_set
from probmargin.data.digits import load_digits
from probmargin.engine.compile import CompileMode
from probmargin.engine.devices import Precision, pick_device, set_precision
from probmargin.engine.environment import commit, hardware, versions
from probmargin.methods.resolve import resolve
from probmargin.models.build import build_model
from probmargin.training.examples import empty_examples
from probmargin.training.fast import FastNetwork, GraphStepper
from probmargin.training.state import NUM_SUMS, TrainState
from probmargin.training.stepper import Chosen, Stepper

PEAK_FLOPS = {"NVIDIA H200": 788e12}
"""Measured bf16 matrix rate of a device, in operations a second."""


def synthetic(count: int, side: int, channels: int, device: torch.device) -> Any:
    """Random bytes: speed does not depend on what is in the pictures."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, channels, side, side), generator=draw, dtype=torch.uint8)
    return image_set(images, torch.randint(10, (count,), generator=draw)).to(device)


def rate(step: Callable[[], None], batch_size: int, seconds: float, device: torch.device) -> float:
    """Images a second, after one step that is not counted."""
    wait: Callable[[], None] = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    step()
    wait()
    began, steps = clock(), 0
    while clock() - began < seconds or steps < 2:
        step()
        steps += 1
        if steps % 8 == 0:
            wait()
    wait()
    return steps * batch_size / (clock() - began)


def plain_rate(method: str, name: str, data: Any, options: argparse.Namespace, device: torch.device) -> float:
    """The plain loop's speed, under torch's own defaults for convolutions."""
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = True, False
    torch.backends.cudnn.benchmark = False
    model = build_model(name, num_classes=10, in_channels=data.images.shape[1], seed=0).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=3.5e-3)
    batches = plain.loader(data.images.cpu(), data.labels.cpu(), options.batch_size, options.workers)

    def step() -> None:
        x, y = next(batches)
        plain.step(method, model, optimizer, x.to(device), y.to(device))

    return rate(step, options.batch_size, options.seconds, device)


def _refuse(text: str) -> None:
    raise SystemExit(f"not the fast path: {text}")


@dataclass(frozen=True)
class Fast:
    """Steps of the fast path on one batch size."""

    step: Callable[[], None]
    stepper: Stepper


def fast_steps(
    method: str,
    name: str,
    data: Any,
    options: argparse.Namespace,
    device: torch.device,
    *,
    notes_examples: bool = True,
    counts_steps: bool = False,
) -> Fast:
    """What `probmargin train` runs: compiled and captured on CUDA; with `counts_steps`, as under --dynamics."""
    precision: Precision = "bf16" if device.type == "cuda" else "fp32"
    set_precision(precision)
    torch.backends.cudnn.benchmark = True
    recipe = resolve(method, model=name, data="digits" if options.digits else "cifar10")
    now = recipe.at(recipe.epochs - 1)
    model = build_model(name, num_classes=10, in_channels=data.images.shape[1], seed=0).to(device).train()
    state = TrainState.fresh(model, recipe)
    state.sums = torch.zeros(NUM_SUMS, dtype=torch.float64, device=device)
    state.examples = empty_examples(len(data), device) if notes_examples else None
    stepper: Stepper
    if device.type == "cuda":
        mode: CompileMode = options.compile
        network = FastNetwork(model, precision, mode, image_shape=data.images.shape[1:])
        network.runs_beside = not options.one_stream
        stepper = GraphStepper(network, state, data, recipe.augment, 0)
        stepper.prepare(options.batch_size)
        stepper.say = _refuse
    else:
        stepper = Stepper(
            FastNetwork(model, precision, "off", image_shape=data.images.shape[1:]), state, data, recipe.augment, 0
        )
    stepper.counts_steps = counts_steps
    draw, pad = torch.Generator().manual_seed(0), recipe.augment.pad
    positions = [torch.randint(len(data), (options.batch_size,), generator=draw).to(device) for _ in range(16)]
    most = torch.tensor([2 * pad + 1, 2 * pad + 1, 2])
    shifts = [(torch.randint(1 << 20, (options.batch_size, 3), generator=draw) % most).to(device) for _ in range(16)]
    count = 0

    def step() -> None:
        nonlocal count
        stepper(now, 99, 0.001, Chosen(positions[count % 16], shifts[count % 16]))
        count += 1

    return Fast(step, stepper)


def fast_rate(
    method: str, name: str, data: Any, options: argparse.Namespace, device: torch.device
) -> tuple[float, float, float]:
    """The fast path's speed, the seconds until its first step was done, and peak memory in GiB."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    fast = fast_steps(method, name, data, options, device)
    fast.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    ready = time.perf_counter() - began
    speed = rate(fast.step, options.batch_size, options.seconds, device)
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
    sums = fast.stepper.state.sums
    if sums is None or not torch.isfinite(sums[1]):
        raise SystemExit(f"{method} on {name}: the loss is not a number")
    return speed, ready, memory


def operations_an_image(method: str, name: str, data: Any) -> float:
    """Floating-point operations of one image's training step, by counting one forward pass."""
    model = build_model(name, num_classes=10, in_channels=data.images.shape[1]).eval()
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(torch.zeros(1, *data.images.shape[1:]))
    attack = 2 * plain.NUM_STEPS + (1 if method == "mail-trades" else 0)
    passes = {"at": 1, "awp": 2, "mail-trades": 2, "mart": 2}[method]
    return float(counter.get_total_flops() * (attack + 3 * passes))


def main(arguments: list[str]) -> None:
    """Measure, print a table, save a record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--digits", action="store_true")
    parser.add_argument("--models", default=None)
    parser.add_argument("--methods", default="at,mail-trades,mart,awp")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--compile", default="default", choices=["default", "max-autotune", "off"])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--device", default=None)
    parser.add_argument("--one-stream", action="store_true", help="no pass beside the attack")
    parser.add_argument("--no-plain", action="store_true")
    parser.add_argument("--out", type=Path, default=OUT / "training.json")
    options = parser.parse_args(arguments)
    device = pick_device(options.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    if options.digits:
        data = load_digits().train.to(device)
    else:
        data = synthetic(50_000 if device.type == "cuda" else 2_000, options.side, 3, device)
    names = options.models or ("small-cnn" if options.digits else "resnet18,wrn-34-10")
    rows = []
    header = f"{'model':<12}{'method':<14}{'plain':>8}{'fast':>9}{'ratio':>7}{'limit':>8}{'GiB':>7}{'ready s':>9}\n"
    sys.stdout.write(header)
    for name in names.split(","):
        for method in options.methods.split(","):
            slow = 0.0 if options.no_plain else plain_rate(method, name, data, options, device)
            fast, ready, memory = fast_rate(method, name, data, options, device)
            peak = PEAK_FLOPS.get(hardware(device))
            share = fast * operations_an_image(method, name, data) / peak if peak else None
            rows.append(
                {
                    "model": name,
                    "method": method,
                    "plain_images_per_second": round(slow, 1),
                    "fast_images_per_second": round(fast, 1),
                    "ratio": round(fast / slow, 2) if slow else None,
                    "share_of_arithmetic_limit": share and round(share, 3),
                    "peak_memory_gib": round(memory, 2),
                    "seconds_to_first_step": round(ready, 1),
                }
            )
            shown = f"{100 * share:.0f}%" if share else "-"
            ratio = f"{fast / slow:.1f}" if slow else "-"
            sys.stdout.write(
                f"{name:<12}{method:<14}{slow:>8.0f}{fast:>9.0f}{ratio:>7}{shown:>8}{memory:>7.1f}{ready:>9.1f}\n"
            )
            sys.stdout.flush()
    record = {
        "id": "bench-training",
        "batch_size": options.batch_size,
        "compile": options.compile,
        "runs_beside": not options.one_stream,
        "images": "digits" if options.digits else "random",
        "clock": "wall" if device.type == "cuda" else "processor time, one thread",
        "hardware": hardware(device),
        "versions": versions(),
        "commit": commit(),
        "rows": rows,
    }
    save(options.out, record)


if __name__ == "__main__":
    main(sys.argv[1:])
