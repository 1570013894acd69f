"""A picture as the 8-bit pixels that the package keeps."""

import struct

import numpy as np
import torch
from PIL import Image

from probmargin.core.errors import UsageError

GREY_MODES = ("1", "L")
_CLEAR_MODES = ("RGBA", "LA", "PA")
# Deeper than 8 bits: PIL would clip these values instead of scaling them.
_DEEP_MODES = ("I", "F")
_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def check_depth(picture: object, mode: str) -> None:
    """Refuse a picture of more than 8 bits a channel."""
    if mode.split(";")[0] in _DEEP_MODES:
        raise UsageError(f"{picture} has more than 8 bits a channel (mode {mode}): save it with 8 bits")


def orientation(image: Image.Image) -> int:
    """How a camera held the picture, 1 (upright) to 8; EXIF data that cannot be read does not tell."""
    try:
        found = image.getexif().get(_ORIENTATION)
    except (struct.error, TypeError):
        return 1
    return int(found) if found in _TURNS else 1


def upright(image: Image.Image) -> Image.Image:
    """The picture turned as its EXIF data says, of which nothing else matters here."""
    turn = _TURNS.get(orientation(image))
    return image if turn is None else image.transpose(turn)


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
