"""SmallCNN: four convolutions with batch norm and two linear layers."""

from torch import nn

from probmargin.core.types import Images, Logits


def _layer(in_channels: int, out_channels: int, stride: int) -> list[nn.Module]:
    conv = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
    return [conv, nn.BatchNorm2d(out_channels), nn.ReLU()]


class SmallCNN(nn.Module):
    """A network for small data and CPUs; pooling to 2x2 makes it take any size from 8x8 up.

    With batch norm every method learns by one recipe: without it MART and AWP stay at chance on digits.
    """

    def __init__(self, num_classes: int = 10, in_channels: int = 1) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_layer(in_channels, 16, stride=1),
            *_layer(16, 32, stride=2),
            *_layer(32, 32, stride=1),
            *_layer(32, 64, stride=2),
            nn.AdaptiveAvgPool2d(2),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, num_classes))

    def forward(self, x: Images) -> Logits:
        logits: Logits = self.head(self.features(x))
        return logits
