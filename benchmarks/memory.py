"""Does an evaluation of more images take more memory than the images fill?

    python -m benchmarks.memory --device cuda --out FILE       # ResNet-18, images of CIFAR-10's size
    python -m benchmarks.memory --device cpu --digits          # small-cnn on 8 x 8 images

Every row is a process of its own: PGD, or the four attacks of AutoAttack cut short, over random images that the
network (at random weights) is right about and that no attack can break, so that all of them stay. Batches are left to
themselves.
"""

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from probmargin.attacks.apgd import APGD
from probmargin.attacks.fab import FAB
from probmargin.attacks.square import Square
from probmargin.engine.devices import pick_device
from probmargin.engine.environment import commit, hardware, versions
from probmargin.engine.files import write_json
from probmargin.evaluation.evaluate import EvaluationSettings, Keep, evaluate, judge
from probmargin.evaluation.protocol import Plan
from probmargin.evaluation.search import Stage
from probmargin.models.build import build_model

EPS = 1e-4 / 255
COUNTS = (1000, 10000)
MIB = 2**20


def cut_short() -> Plan:
    """AutoAttack's four with few steps; Square's windows are small from the start, where it remembers most."""
    stages = (
        Stage("apgd-ce", APGD(eps=EPS, num_steps=3)),
        Stage("apgd-t", APGD(eps=EPS, num_steps=3, loss="dlr_targeted")),
        Stage("fab-t", FAB(eps=EPS, num_steps=3)),
        Stage("square", Square(eps=EPS, num_queries=120, p_init=0.01)),
    )
    return Plan("aa", stages, begins_with_all=False, version="standard")


def measured(kind: str, count: int, device: torch.device, digits: bool) -> dict[str, Any]:
    """Judge random images; the most memory that took, beside images and labels on CUDA, in all on a CPU."""
    torch.manual_seed(0)
    channels, side = (1, 8) if digits else (3, 32)
    model = build_model("small-cnn" if digits else "resnet18", in_channels=channels, num_classes=10).eval().to(device)
    x = torch.rand(count, channels, side, side, device=device)
    with torch.no_grad():
        labels = torch.cat([model(part).argmax(dim=1) for part in x.split(100)])
    given = x.numel() * x.element_size() + labels.numel() * labels.element_size()
    settings = EvaluationSettings(eps=EPS, recheck=0)
    if kind == "pgd":
        evaluate(model, x, labels, attacks=["nat", "pgd-3"], settings=settings)
    else:
        judge(model, x, labels, attacks=[cut_short()], settings=settings, keep=Keep(images=True))
    row: dict[str, Any] = {"attack": kind, "images": count, "images_mib": round(given / MIB, 1)}
    if device.type == "cuda":
        row["allocated_mib"] = round((torch.cuda.max_memory_allocated() - given) / MIB, 1)
        row["reserved_mib"] = round(torch.cuda.max_memory_reserved() / MIB, 1)
    else:
        row["process_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
    return row


def in_another_process(arguments: list[str]) -> dict[str, Any]:
    """One row, measured alone."""
    command = [sys.executable, "-m", "benchmarks.memory", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def main(arguments: list[str]) -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default=None)
    parser.add_argument("--digits", action="store_true")
    parser.add_argument("--counts", type=int, nargs="+", default=list(COUNTS))
    parser.add_argument("--attacks", nargs="+", choices=["pgd", "aa"], default=["pgd", "aa"])
    parser.add_argument("--one", action="store_true", help="measure here, the first count and attack alone")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args(arguments)
    device = pick_device(options.device)
    if options.one:
        row = measured(options.attacks[0], options.counts[0], device, options.digits)
        sys.stdout.write(f"{json.dumps(row)}\n")
        return
    rows = []
    for kind in options.attacks:
        for count in options.counts:
            asked = ["--one", "--attacks", kind, "--counts", str(count), "--device", str(device)]
            rows.append(in_another_process([*asked, *(["--digits"] if options.digits else [])]))
            sys.stdout.write(f"{rows[-1]}\n")
            sys.stdout.flush()
    if options.out:
        told = {"hardware": hardware(device), "versions": versions(), "commit": commit(), "seed": 0}
        network = "small-cnn, 8 x 8 images" if options.digits else "resnet18, 3 x 32 x 32 images"
        write_json(options.out, {"id": options.out.stem, "network": network, "rows": rows, **told})


if __name__ == "__main__":
    main(sys.argv[1:])
