"""Pixels into pictures that lie inside the page."""

import base64
import io
from typing import Any

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]

LARGEST_SIDE = 64
"""Pictures are shown small; larger images are shrunk to keep the page light."""


def data_uri(pixels: Pixels) -> str:
    """A PNG of (C, H, W) pixels as a data URI; small images keep every pixel.

    >>> data_uri(np.zeros((1, 2, 2), np.uint8))[:30]
    'data:image/png;base64,iVBORw0K'
    """
    from PIL import Image

    image = Image.fromarray(pixels[0] if pixels.shape[0] == 1 else pixels.transpose(1, 2, 0).copy())
    if max(image.size) > LARGEST_SIDE:
        image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def to_pixels(image: npt.NDArray[Any]) -> Pixels:
    """Floats in [0, 1] as 8-bit pixels."""
    pixels: Pixels = np.rint(np.clip(image, 0.0, 1.0) * 255).astype(np.uint8)
    return pixels


def amplified(clean: npt.NDArray[Any], adversarial: npt.NDArray[Any], reach: float) -> Pixels:
    """The difference on mid grey, so that a change of `reach` is black or white.

    >>> amplified(np.full((1, 1, 2), 0.5), np.array([[[0.5, 0.6]]]), 0.1).tolist()
    [[[128, 255]]]
    """
    return to_pixels(0.5 + (adversarial - clean) / (2 * max(reach, 1e-12)))
