"""The plain loop, as published scripts write it: what the fast path is compared with.

Eager float32, NCHW, torch's default convolution precision, `loss.backward()` through the parameters inside the attack,
a DataLoader with four workers.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

EPS, STEP_SIZE, NUM_STEPS = 8 / 255, 2 / 255, 10


class Crops(Dataset[tuple[torch.Tensor, int]]):
    """Random crop and flip of one image at a time, on the host."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        side = self.images.shape[-1]
        padded = F.pad(self.images[index].float() / 255.0, (4, 4, 4, 4))
        dy, dx = torch.randint(0, 9, (2,)).tolist()
        image = padded[:, dy : dy + side, dx : dx + side]
        return (image.flip(-1) if torch.rand(()) < 0.5 else image), int(self.labels[index])


def loader(images: torch.Tensor, labels: torch.Tensor, batch_size: int, workers: int) -> Iterator[list[torch.Tensor]]:
    """Batches without end."""
    source = DataLoader(Crops(images, labels), batch_size, shuffle=True, num_workers=workers, drop_last=True)
    while True:
        yield from source


def attack(model: nn.Module, x: torch.Tensor, y: torch.Tensor, divergence: bool) -> torch.Tensor:
    """PGD whose backward pass fills the parameters' gradients too; kinder than scripts that redo p at every step."""
    model.eval()
    with torch.no_grad():
        p = F.softmax(model(x), 1)
    x_adv = x + 0.001 * torch.randn_like(x)
    for _ in range(NUM_STEPS):
        x_adv = x_adv.detach().requires_grad_()
        if divergence:
            loss = F.kl_div(F.log_softmax(model(x_adv), 1), p, reduction="sum")
        else:
            loss = F.cross_entropy(model(x_adv), y)
        loss.backward()
        assert x_adv.grad is not None
        x_adv = x_adv.detach() + STEP_SIZE * x_adv.grad.sign()
        x_adv = torch.min(torch.max(x_adv, x - EPS), x + EPS).clamp(0, 1)
    model.train()
    return x_adv.detach()


def loss_of(method: str, model: nn.Module, x: torch.Tensor, x_adv: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The training loss of a method, written out."""
    if method in ("at", "awp"):
        return F.cross_entropy(model(x_adv), y)
    logits, logits_adv = model(x), model(x_adv)
    p, p_adv = F.softmax(logits, 1), F.softmax(logits_adv, 1)
    if method == "mail-trades":
        true = p_adv.gather(1, y[:, None])[:, 0]
        others = p_adv.scatter(1, y[:, None], 0).amax(1)
        weight = torch.sigmoid(-2 * (true - others)).detach()
        divergence = F.kl_div(F.log_softmax(logits_adv, 1), p, reduction="none").sum(1)
        return F.cross_entropy(logits, y) + 5 * (weight / weight.mean() * divergence).mean()
    top = torch.argsort(p_adv, dim=1)[:, -2:]
    wrong = torch.where(top[:, -1] == y, top[:, -2], top[:, -1])
    boosted = F.cross_entropy(logits_adv, y) + F.nll_loss(torch.log(1.0001 - p_adv + 1e-12), wrong)
    divergence = F.kl_div(torch.log(p_adv + 1e-12), p, reduction="none").sum(1)
    return boosted + 5 * (divergence * (1.0000001 - p.gather(1, y[:, None])[:, 0])).mean()


def step(method: str, model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    """One training step."""
    x_adv = attack(model, x, y, divergence=method == "mail-trades")
    moves: list[tuple[nn.Parameter, torch.Tensor]] = []
    if method == "awp":
        model.zero_grad()
        loss_of("at", model, x, x_adv, y).backward()
        for parameter in model.parameters():
            if parameter.ndim >= 2 and parameter.grad is not None:
                size = 0.01 * parameter.detach().norm() / (parameter.grad.norm() + 1e-20)
                moves.append((parameter, size * parameter.grad.clone()))
        with torch.no_grad():
            for parameter, move in moves:
                parameter.add_(move)
    optimizer.zero_grad()
    loss_of(method, model, x, x_adv, y).backward()
    optimizer.step()
    with torch.no_grad():
        for parameter, move in moves:
            parameter.sub_(move)
