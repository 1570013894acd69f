"""Names for the shapes that travel through the package.

They are aliases of `torch.Tensor`: the shape is part of the name, and the conformance tests check it.
B is the number of examples, K the number of classes, T the number of recorded attack iterates.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch

Images: TypeAlias = torch.Tensor
"""Floating point, (B, channels, height, width), values in [0, 1]."""

Labels: TypeAlias = torch.Tensor
"""Integers, (B,), values in 0..K-1."""

Logits: TypeAlias = torch.Tensor
"""Floating point, (B, K)."""

PerExample: TypeAlias = torch.Tensor
"""One number an example, (B,)."""

PerStep: TypeAlias = torch.Tensor
"""One number an attack iterate and example, (T, B)."""

Classifier: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""Anything that turns images into logits; usually an `nn.Module`."""

Reduce: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""Sums a tensor over all processes of a run; the identity where there is one process."""
