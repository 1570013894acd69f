"""MAIL-TRADES in a plain PyTorch loop: the loss is the one line that differs from standard training.

python examples/plain_loop.py
"""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

import probmargin as pm

EPOCHS, BURN_IN = 8, 5
"""In burn-in epochs every example counts the same; then those near the decision boundary count more."""
BALL = {"eps": 0.15, "step_size": 0.03}


def network() -> torch.nn.Module:
    """Any network from images in [0, 1] to logits."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3, padding=1),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * 64, 10),
    )


def main() -> float:
    """Train, and return the accuracy under PGD-20."""
    torch.manual_seed(0)
    data = pm.load_data("digits")
    loader = DataLoader(TensorDataset(data.train.floats(), data.train.labels), batch_size=128, shuffle=True)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    for epoch in range(EPOCHS):
        for x, labels in loader:
            loss = pm.mail_loss(model, x, labels, method="mail-trades", weighted=epoch >= BURN_IN, **BALL)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    result = pm.evaluate(model, (data.test.floats(), data.test.labels), ["nat", "pgd-20"], eps=BALL["eps"])
    sys.stdout.write(f"natural {result['nat']['accuracy']:.1%}, PGD-20 {result['pgd-20']['robust_accuracy']:.1%}\n")
    return float(result["pgd-20"]["robust_accuracy"])


if __name__ == "__main__":
    main()
