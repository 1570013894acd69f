"""SmallCNN: four convolutions and two linear layers, no batch norm."""

from torch import nn

from probmargin.core.types import Images, Logits


class SmallCNN(nn.Module):
    """A network for small data and CPUs; pooling to 2x2 makes it take any size from 8x8 up."""

    def __init__(self, num_classes: int = 10, in_channels: int = 1) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, num_classes))
        for module in self.modules():
            # Without batch norm, torch's default start is so flat that an attack can hold training back for epochs.
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def forward(self, x: Images) -> Logits:
        logits: Logits = self.head(self.features(x))
        return logits
