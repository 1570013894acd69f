"""How far are margins off in fewer digits? On a CPU: float16 as it is, TF32 and bfloat16 by rounding what comes in.

python -m benchmarks.margin_error RUN --data-dir DIR [--num-examples 200] [--out FILE]
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F

from probmargin.core.losses import logit_margin
from probmargin.core.noise import KeyedNoise
from probmargin.data.loader import load
from probmargin.engine.environment import commit, hardware, versions
from probmargin.engine.files import write_json
from probmargin.evaluation.network import folded_form
from probmargin.runs.run import open_run

BITS = {"tf32": 10, "bf16": 7}
"""Of the fraction, which convolutions keep of float32's 23."""
EPS = 8 / 255


def rounded(x: torch.Tensor, bits: int) -> torch.Tensor:
    """The nearest float32 whose fraction has that many bits."""
    drop = 23 - bits
    whole = x.contiguous().view(torch.int32) + (1 << (drop - 1))
    return (whole & -(1 << drop)).view(torch.float32)


@contextmanager
def rounding(bits: int) -> Iterator[None]:
    """Convolutions round images and weights inside this block."""
    real = F.conv2d

    def conv(x: torch.Tensor, weight: torch.Tensor, *rest: Any) -> torch.Tensor:
        return real(rounded(x, bits), rounded(weight, bits), *rest)

    with patch.object(F, "conv2d", conv):
        yield


def main(arguments: list[str]) -> None:
    """Margins of images at a corner of the ball in each precision, against float32."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--num-examples", type=int, default=200)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args(arguments)
    run = open_run(options.run)
    test = load(run.record["data"], options.data_dir).test
    test = test.take(range(min(options.num_examples, len(test))))
    model, labels = run.model.eval().requires_grad_(False), test.labels
    x = test.floats()
    noise = KeyedNoise(seed=0, ids=torch.arange(len(x)))
    x = (x + EPS * noise.normal(tuple(x.shape[1:]), stream="corner").sign()).clamp(0, 1)
    exact = logit_margin(model(x), labels)
    plain = folded_form(model, torch.float32)
    found = {"fp16": folded_form(model, torch.float16)(x)}
    for name, bits in BITS.items():
        with rounding(bits):
            found[name] = plain(x)
    errors = {name: logit_margin(logits, labels) - exact for name, logits in found.items()}
    rows = [
        {
            "precision": name,
            "rms": float(f"{error.square().mean().sqrt():.2e}"),
            "max": float(f"{error.abs().max():.2e}"),
        }
        for name, error in errors.items()
    ]
    for row in rows:
        sys.stdout.write(f"{row}\n")
    if options.out:
        told = {"hardware": hardware(torch.device("cpu")), "versions": versions(), "commit": commit()}
        record = {"id": "bench-margin-error", "run": run.record["id"], "num_examples": len(x), "eps": EPS, "rows": rows}
        write_json(options.out, {**record, **told})


if __name__ == "__main__":
    main(sys.argv[1:])
