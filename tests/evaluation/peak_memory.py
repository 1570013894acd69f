"""Judges random images with a small model, and prints the most memory this took in all, in bytes.

python peak_memory.py NUM_IMAGES evaluation|ensemble
"""

import resource
import sys

import torch
from torch import nn

from probmargin.attacks.apgd import APGD
from probmargin.attacks.fab import FAB
from probmargin.attacks.square import Square
from probmargin.evaluation.evaluate import EvaluationSettings, Keep, evaluate, judge
from probmargin.evaluation.protocol import Plan
from probmargin.evaluation.search import Stage

EPS = 1e-4
CAP = 16


def main(count: int, kind: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 2, 16, stride=16), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4)).eval()
    x = torch.rand(count, 3, 64, 64)
    with torch.no_grad():
        labels = torch.cat([model(part).argmax(dim=1) for part in x.split(CAP)])
    settings = EvaluationSettings(eps=EPS, batch_size=CAP)
    if kind == "evaluation":
        left = evaluate(model, x, labels, attacks=["nat", "pgd-2", "cw-2"], settings=settings)["cw-2"]["num_examples"]
    else:
        stages = (
            Stage("apgd-t", APGD(eps=EPS, num_steps=2, loss="dlr_targeted")),
            Stage("fab-t", FAB(eps=EPS, num_steps=2)),
            Stage("square", Square(eps=EPS, num_queries=4)),
        )
        plan = Plan("aa", stages, begins_with_all=False, version="standard")
        _, x_adv = judge(model, x, labels, attacks=[plan], settings=settings, keep=Keep(images=True))
        assert x_adv is not None
        left = len(x_adv)
    assert left == count
    sys.stdout.write(f"{1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
