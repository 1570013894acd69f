"""Independent random streams, each named by its purpose and keyed by numbers."""

import hashlib

import torch


def stream(purpose: str, *keys: int) -> torch.Generator:
    """Return a CPU generator decided by the purpose and the keys alone.

    The seed is hashed, so that neighbouring seeds and epochs, and two purposes with one seed, share nothing.

    >>> a, b = stream("order", 0, 1), stream("order", 0, 1)
    >>> bool((torch.randperm(9, generator=a) == torch.randperm(9, generator=b)).all())
    True
    """
    text = ":".join([purpose, *(str(int(key)) for key in keys)])
    # 63 bits: manual_seed takes a signed 64-bit number.
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
    return torch.Generator().manual_seed(seed)
