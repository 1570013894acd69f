"""Batches, models and stubs that several test files use."""

from dataclasses import replace

import torch
from hypothesis import strategies as st
from torch import nn

from probmargin.core.batch import AttackTrace, BatchView
from probmargin.core.noise import KeyedNoise


def make_view(seed: int, batch: int, classes: int, scale: float, num_steps: int = 10) -> BatchView:
    """A random batch with everything in it; a larger scale means more confident logits."""
    draw = torch.Generator().manual_seed(seed)
    nat, adv, second = (torch.randn(batch, classes, generator=draw, dtype=torch.float64) * scale for _ in range(3))
    correct = torch.rand(num_steps + 1, batch, generator=draw) < 0.7
    prob = torch.rand(num_steps + 1, batch, generator=draw, dtype=torch.float64)
    prob_nat = torch.rand(batch, generator=draw, dtype=torch.float64)
    return BatchView(
        labels=torch.randint(classes, (batch,), generator=draw),
        logits_nat=nat,
        logits_adv=adv,
        logits_second=second,
        trace=AttackTrace(num_steps, prob, correct, prob, prob_label_nat=prob_nat),
    )


@st.composite
def views(draw: st.DrawFn) -> BatchView:
    return make_view(
        seed=draw(st.integers(0, 10_000)),
        batch=draw(st.integers(1, 6)),
        classes=draw(st.integers(2, 6)),
        scale=draw(st.sampled_from([0.1, 1.0, 10.0, 300.0])),
    )


def take(view: BatchView, rows: torch.Tensor) -> BatchView:
    """Some rows of a batch."""
    assert view.trace is not None
    assert view.trace.prob_label_nat is not None
    trace = replace(
        view.trace,
        loss=view.trace.loss[:, rows],
        correct=view.trace.correct[:, rows],
        prob_label=view.trace.prob_label[:, rows],
        prob_label_nat=view.trace.prob_label_nat[rows],
    )
    return BatchView(
        labels=view.labels[rows],
        logits_nat=view.nat()[rows],
        logits_adv=view.adv()[rows],
        logits_second=view.second()[rows],
        trace=trace,
    )


def alone(total: torch.Tensor) -> torch.Tensor:
    return total


class TinyNet(nn.Module):
    """A convolution, batch norm and a linear layer, for images of any size."""

    def __init__(self, classes: int = 3, channels: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.linear = nn.Linear(4, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.bn(self.conv(x)))
        logits: torch.Tensor = self.linear(hidden.amax(dim=(2, 3)))
        return logits


def tiny_net(seed: int = 0, classes: int = 3, channels: int = 1) -> TinyNet:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = TinyNet(classes, channels)
        for parameter in net.parameters():
            nn.init.normal_(parameter, std=1.0)
    return net


def images(
    seed: int, batch: int, channels: int = 1, size: int = 4, classes: int = 3
) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(batch, channels, size, size, generator=draw)
    # Some pixels on the walls of [0, 1], where clamping matters.
    x = torch.where(torch.rand(x.shape, generator=draw) < 0.2, x.round(), x)
    return x, torch.randint(classes, (batch,), generator=draw)


def keyed(batch: int, seed: int = 0) -> KeyedNoise:
    return KeyedNoise(seed=seed, ids=torch.arange(batch))
