"""Devices and precision."""

import ctypes
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch

from probmargin.core.errors import UsageError

Precision = Literal["bf16", "tf32", "fp32"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Names of glibc's settings in `mallopt`."""


def keep_freed_memory() -> None:
    """Have glibc keep what is freed, in place of handing it back and asking for it anew at each layer of a network.

    A search on a CPU takes a fifth less time so. Where the C library is another one, nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_MMAP_THRESHOLD, 2**25)


def pick_device(name: str | None) -> torch.device:
    """The named device, or the best there is."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"unknown device {name!r}; use cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError("no CUDA device is available here; use --device cpu")
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device {name!r} is not supported; use cpu or cuda")
    return device


def pick_precision(name: str | None, device: torch.device) -> tuple[Precision, str | None]:
    """The precision to compute in, and a sentence where it is not the one asked for."""
    if name in ("fp16", "float16", "half"):
        raise UsageError("fp16 is refused: its gradients underflow and attacks stall unseen; use bf16, tf32 or fp32")
    if name not in (None, "bf16", "tf32", "fp32"):
        raise UsageError(f"unknown precision {name!r}; use bf16, tf32 or fp32")
    if device.type == "cpu":
        note = f"on a CPU the network computes in float32, not {name}" if name in ("bf16", "tf32") else None
        return "fp32", note
    chosen: dict[str | None, Precision] = {None: "bf16", "bf16": "bf16", "tf32": "tf32", "fp32": "fp32"}
    return chosen[name], None


def allow_tf32(*, convolutions: bool, products: bool) -> None:
    """Let cuDNN's convolutions and products of matrices round float32 to TF32, or not.

    Written through torch's older names alone: its compiler reads those, and they raise where a newer one was written.
    """
    torch.backends.cudnn.allow_tf32 = convolutions
    torch.backends.cuda.matmul.allow_tf32 = products


def set_precision(precision: Precision) -> None:
    """Let convolutions and products of float32 use TF32, or not."""
    allow_tf32(convolutions=precision != "fp32", products=precision != "fp32")


@contextmanager
def tf32(*, convolutions: bool) -> Iterator[None]:
    """Convolutions round to TF32 inside this block or not; products never do. It ends with what it found."""
    # Read through the newer names, which never raise.
    parts = (torch.backends.cudnn.conv, torch.backends.cuda.matmul)  # type: ignore[attr-defined]
    found = [part.fp32_precision == "tf32" for part in parts]
    allow_tf32(convolutions=convolutions, products=False)
    try:
        yield
    finally:
        allow_tf32(convolutions=found[0], products=found[1])


def network_precision(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The context a network's forward pass runs in; everything else stays in float32."""
    if precision == "bf16" and device.type == "cuda":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()
