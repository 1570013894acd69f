"""Scikit-learn's embedded handwritten digits: 1,797 grey images of 8x8, no download."""

import numpy as np
import torch

from probmargin.data.dataset import DataSet, image_set, split_validation

TEST_SIZE = 360
_SPLIT_SEED = 0
_LEVELS = 16


def load_digits() -> DataSet:
    """Return the digits with a stratified split of 1,437 and 360 that is always the same.

    The files hold 0..16; pixels here are these times 255/16, rounded.
    """
    # Here, because it takes a second to import and no other data set needs it.
    from sklearn.datasets import load_digits as embedded

    bunch = embedded()
    pixels = np.rint(bunch.images * 255 / _LEVELS).astype(np.uint8)
    everything = image_set(torch.from_numpy(pixels)[:, None], torch.from_numpy(bunch.target.astype(np.int64)))
    train, test = split_validation(everything, TEST_SIZE, _SPLIT_SEED)
    return DataSet("digits", train, test, tuple(str(digit) for digit in range(10)))
