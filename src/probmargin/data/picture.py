"""A picture as the 8-bit pixels that the package keeps."""

import numpy as np
import torch
from PIL import Image

from probmargin.core.errors import UsageError

GREY_MODES = ("1", "L")
_CLEAR_MODES = ("RGBA", "LA", "PA")
# Deeper than 8 bits: PIL would clip these values instead of scaling them.
_DEEP_MODES = ("I", "F")


def check_depth(picture: object, mode: str) -> None:
    """Refuse a picture of more than 8 bits a channel."""
    if mode.split(";")[0] in _DEEP_MODES:
        raise UsageError(f"{picture} has more than 8 bits a channel (mode {mode}): save it with 8 bits")


def flat(image: Image.Image, mode: str) -> Image.Image:
    """The picture in grey (mode "L") or in RGB; what is transparent becomes white."""
    if "transparency" in image.info or image.mode in _CLEAR_MODES:
        clear = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear)
    return image.convert(mode)


def pixels_of(image: Image.Image) -> torch.Tensor:
    """The pixels of a grey or RGB picture, uint8 (C, H, W)."""
    pixels = np.array(image)
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())
